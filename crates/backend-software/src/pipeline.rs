//! The way of an image: container → PTX → checked AST → an engine.

use std::sync::Arc;

use mica_cuda_abi::CuResult;
use mica_gpu::{GpuError, ModuleOptions, Result};

use crate::compile::{Compiled, Compiler};
use crate::config::Config;

/// The compiler that a configuration asks for.
pub(crate) fn compiler(_config: &Config) -> Arc<dyn Compiler> {
    Arc::new(NoCompiler)
}

struct NoCompiler;

impl Compiler for NoCompiler {
    fn compile(&self, _image: &[u8], _options: &ModuleOptions) -> Result<Compiled> {
        Err(GpuError::new(
            CuResult::JitCompilerNotFound,
            "no PTX compiler is part of this build",
        ))
    }
}
