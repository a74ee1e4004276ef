"""Tests of walls_speed.py: python3 -m unittest"""
import unittest

from walls_speed import rows

HOST = {"large_train_ms": 100.0, "gemm_tflops": 700.0, "small_train_ms": 10.0, "infer_ms": 2.0, "graph_infer_ms": 1.0, "first_result_ms": 2000.0}


class Rows(unittest.TestCase):
    def reached(self, wall, **changed):
        return {row["what"]: row["reached"] for row in rows(wall, [HOST], [{**HOST, **changed}])}

    def test_a_slow_large_step_misses_its_goal(self):
        self.assertTrue(self.reached("tls", large_train_ms=104.0)["large training step"])
        self.assertFalse(self.reached("tls", large_train_ms=106.0)["large training step"])
        self.assertFalse(self.reached("root", large_train_ms=104.0)["large training step"])

    def test_figures_without_a_goal_are_not_judged(self):
        self.assertIsNone(self.reached("tls", small_train_ms=99.0)["small transformer training step"])
        self.assertIsNone(self.reached("root", first_result_ms=9e9)["import to first result"])

    def test_less_arithmetic_misses_its_goal(self):
        self.assertFalse(self.reached("tls", gemm_tflops=600.0)["bf16 GEMM loop"])


if __name__ == "__main__":
    unittest.main()
