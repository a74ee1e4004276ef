//! The text of fused kernels is PTX that NVIDIA's assembler takes, where there is one.

use std::process::Command;

use super::Expr;
use super::ptx::{Shape, kernel};
use crate::{Activation, DType};

#[test]
fn the_assembler_takes_every_kernel() {
    let Some(ptxas) = std::env::var_os("MICA_PTXAS") else {
        eprintln!("skipped: MICA_PTXAS does not name an assembler");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let gelu = Expr::input(0).activate_derivative(Activation::Gelu) * Expr::input(1);
    let tanh = Expr::input(0).tanh().min(Expr::input(1)).ln() + Expr::scalar(0);
    let types = [DType::F32, DType::F16, DType::BF16, DType::I8, DType::I32];
    for (number, dtype) in types.into_iter().enumerate() {
        for (axes, per_thread) in [(0, 1), (0, 4), (0, 8), (3, 1)] {
            let outputs = [(&gelu, dtype), (&tanh, types[(number + 1) % 5])];
            let inputs = [dtype, types[(number + 2) % 5]];
            let shape = Shape {
                outputs: &outputs,
                inputs: &inputs,
                scalars: 1,
                axes,
                per_thread,
                is_card: number % 2 == 1 || per_thread == 8,
            };
            let file = folder.path().join("kernel.ptx");
            std::fs::write(&file, kernel(&shape)).unwrap();
            let output = Command::new(&ptxas)
                .args(["-arch=sm_90", "-o", "/dev/null"])
                .arg(&file)
                .output()
                .unwrap();
            let words = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success(),
                "{dtype} {axes} {per_thread}: {words}"
            );
        }
    }
}
