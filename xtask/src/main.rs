//! Project tasks: `cargo xtask test`, `cargo xtask gpu-test`.

fn main() {}
