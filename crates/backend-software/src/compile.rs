//! From an image to something that runs blocks.

use std::sync::Arc;

use mica_gpu::{ModuleOptions, Result};
use mica_kernel::Executable;

/// Turns untrusted images into executables.
pub trait Compiler: Send + Sync {
    /// Compiles PTX, or the best PTX of a fatbin.
    ///
    /// # Errors
    /// What CUDA answers for such an image, with a sentence that says what is wrong with it.
    fn compile(&self, image: &[u8], options: &ModuleOptions) -> Result<Compiled>;
}

/// A compiled module.
#[derive(Clone)]
pub struct Compiled {
    /// Runs its kernels.
    pub executable: Arc<dyn Executable>,
    /// PTX ISA version × 10.
    pub ptx_version: u32,
    /// The `.target`'s number × 1, as `sm_80` is 80.
    pub target: u32,
}
