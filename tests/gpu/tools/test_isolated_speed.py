"""The judge of isolated mode's speed itself: `python3 -m unittest` in this folder."""
import contextlib
import io
import json
import os
import tempfile
import unittest

import isolated_speed

NATIVE = {"large_train_ms": 50.0, "gemm_tflops": 700.0, "small_train_ms": 10.0, "infer_ms": 2.0, "graph_infer_ms": 1.0, "first_result_ms": 3000.0}
AT_THE_GOAL = {"large_train_ms": 51.0, "gemm_tflops": 686.0, "small_train_ms": 11.5, "infer_ms": 2.4, "graph_infer_ms": 1.05, "first_result_ms": 3300.0}


class Judge(unittest.TestCase):
    def run_with(self, native, isolated):
        """The exit code, the lines, and the JSON of rounds on both sides."""
        with tempfile.TemporaryDirectory() as folder:
            names = [os.path.join(folder, name) for name in ("native", "isolated", "json")]
            for name, side in zip(names, (native, isolated)):
                with open(name, "w") as out:
                    out.writelines(["a word of PyTorch\n"] + [json.dumps(round) + "\n" for round in side])
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                code = isolated_speed.main(*names)
            rows = json.load(open(names[2])) if os.path.exists(names[2]) else None
        return code, said.getvalue().splitlines(), rows

    def test_figures_at_the_goal_pass(self):
        code, lines, rows = self.run_with([NATIVE], [AT_THE_GOAL])
        self.assertEqual(code, 0)
        self.assertEqual([line[:5] for line in lines], ["pass "] * 6)
        self.assertAlmostEqual(rows[0]["ratio"], 1.02)

    def test_each_figure_past_its_goal_fails(self):
        for key, value in AT_THE_GOAL.items():
            worse = value * (0.99 if key == "gemm_tflops" else 1.01)
            code, lines, rows = self.run_with([NATIVE], [AT_THE_GOAL | {key: worse}])
            self.assertEqual((code, [row["reached"] for row in rows].count(False)), (1, 1), key)
            self.assertEqual(sum(line.startswith("FAIL") for line in lines), 1, key)

    def test_one_slow_round_of_three_does_not_count(self):
        slow = {key: value * 3 for key, value in NATIVE.items()}
        code, _, rows = self.run_with([NATIVE, slow, NATIVE], [NATIVE, NATIVE, slow])
        self.assertEqual((code, rows[0]["native"], rows[0]["isolated"]), (0, 50.0, 50.0))

    def test_a_side_without_a_round_fails(self):
        code, lines, rows = self.run_with([NATIVE], [])
        self.assertEqual((code, rows), (1, None))
        self.assertIn("0 isolated", lines[0])


if __name__ == "__main__":
    unittest.main()
