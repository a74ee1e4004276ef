//! The interpreter tests' device, for compiled modules.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

#[path = "../../../ptx-interp/tests/common/mod.rs"]
mod device;

#[allow(unused_imports, reason = "each test uses a part of it")]
pub use device::*;

use mica_ptx_jit::{JitModule, Options};
use std::sync::Arc;

/// A device with a compiled module.
pub fn compiled(text: &str, lanes: u32) -> Device {
    let parsed = mica_ptx::parse(text.as_bytes()).unwrap_or_else(|e| panic!("does not parse: {e}"));
    let options = Options {
        lanes,
        ..Options::default()
    };
    let module = JitModule::compile(Arc::new(parsed), options).unwrap_or_else(|e| panic!("{e}"));
    Device::new(Box::new(module))
}
