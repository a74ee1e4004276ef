//! The way of an image: container → PTX → checked syntax tree → an engine.
//!
//! ```text
//!   PTX text ──────────────┐
//!   fatbin, cubin, ELF ─► select PTX ─► parse ─► native compiler ─ refuses ─► interpreter
//! ```

use std::borrow::Cow;
use std::sync::Arc;

use mica_cuda_abi::CuResult;
use mica_fatbin::Image;
use mica_gpu::{GpuError, ModuleOptions, Result};
use mica_ptx::ast::Module;
use mica_ptx_interp::InterpModule;
use mica_ptx_jit::JitModule;

use crate::compile::{Compiled, Compiler};
use crate::config::{Config, Engine};
use crate::mixed::MixedModule;

/// The compiler that a configuration asks for.
pub(crate) fn compiler(config: &Config) -> Arc<dyn Compiler> {
    Arc::new(Pipeline {
        engine: config.engine,
    })
}

struct Pipeline {
    engine: Engine,
}

impl Compiler for Pipeline {
    fn compile(&self, image: &[u8], options: &ModuleOptions) -> Result<Compiled> {
        let text = ptx_of(image)?;
        let module = mica_ptx::parse(&text).map_err(|error| {
            GpuError::new(CuResult::InvalidPtx, format!("PTX was refused: {error}"))
        })?;
        if module.address_bits != 64 {
            return Err(GpuError::new(
                CuResult::InvalidPtx,
                format!("PTX for {}-bit addresses", module.address_bits),
            ));
        }
        let (ptx_version, target) = (
            u32::from(module.version.0) * 10 + u32::from(module.version.1),
            module.target.sm,
        );
        let executable = self.executable(Arc::new(module), options)?;
        Ok(Compiled {
            executable,
            ptx_version,
            target,
        })
    }
}

impl Pipeline {
    fn executable(
        &self,
        module: Arc<Module>,
        options: &ModuleOptions,
    ) -> Result<Arc<dyn mica_kernel::Executable>> {
        if self.engine == Engine::Interpreter {
            return interpreter(module, options);
        }
        let native = mica_ptx_jit::Options {
            memcheck: options.memcheck,
            ..mica_ptx_jit::Options::default()
        };
        match JitModule::compile(Arc::clone(&module), native) {
            Ok(jit) => Ok(Arc::new(MixedModule::new(jit, module, options.memcheck))),
            Err(reason) => {
                tracing::warn!(%reason, "the module is interpreted: the compiler refuses it");
                interpreter(module, options)
            }
        }
    }
}

fn interpreter(
    module: Arc<Module>,
    options: &ModuleOptions,
) -> Result<Arc<dyn mica_kernel::Executable>> {
    match InterpModule::new(module) {
        Ok(module) => Ok(Arc::new(module.with_memcheck(options.memcheck))),
        Err(error) => Err(GpuError::new(
            CuResult::InvalidPtx,
            format!("the module cannot run here: {error}"),
        )),
    }
}

/// Compute capability of this device, for choosing PTX; code for the next generation is taken where
/// there is nothing older, because the engines run it.
const CAPABILITIES: [u32; 2] = [80, 90];
/// Most bytes of PTX that one module decompresses to.
const MOST_TEXT: u64 = 256 << 20;

/// The PTX text in an image.
fn ptx_of(image: &[u8]) -> Result<Cow<'_, [u8]>> {
    let refuse = |code, error: mica_fatbin::Error| GpuError::new(code, error.to_string());
    let parsed = Image::parse(image).map_err(|error| refuse(CuResult::InvalidImage, error))?;
    let Some(entry) = CAPABILITIES.iter().find_map(|cc| parsed.select_ptx(*cc)) else {
        return Err(GpuError::new(
            CuResult::NoBinaryForGpu,
            format!(
                "the image has no PTX for compute capability 8.0: {}",
                parsed.describe()
            ),
        ));
    };
    let text = entry.payload(MOST_TEXT);
    text.map_err(|error| refuse(CuResult::InvalidImage, error))
}
