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

/// Numbers that are the same in every run.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.next(list.len())]
    }
    pub fn one_in(&mut self, n: usize) -> bool {
        self.next(n) == 0
    }
}
