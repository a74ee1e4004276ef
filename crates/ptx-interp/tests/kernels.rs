//! Kernels that nvcc made from `ptx/kernels.cu`, run through the interpreter.

mod common;

use mica_kernel::Executable;

fn device() -> Device {
    Device::new(PTX)
}

include!("kernels/body.rs");
