//! Kernels that nvcc made from `ptx/kernels.cu`, run through the interpreter.

mod common;

fn device() -> Device {
    Device::interpreter(PTX)
}

include!("kernels/body.rs");
