//! From an image to something that runs blocks.

use std::sync::Arc;

use mica_gpu::{ModuleOptions, Result, SessionBudget, Share};
use mica_kernel::Executable;

/// Turns untrusted images into executables.
pub trait Compiler: Send + Sync {
    /// Compiles PTX, or the best PTX of a fatbin.
    ///
    /// # Errors
    /// What CUDA answers for such an image, with a sentence that says what is wrong with it.
    fn compile(&self, image: &[u8], options: &ModuleOptions) -> Result<Compiled>;

    /// As [`Compiler::compile`], charging what it holds to a budget; gives what the module is charged as.
    ///
    /// # Errors
    /// As [`Compiler::compile`], and `OutOfMemory` if the budget does not allow it.
    fn compile_within(
        &self,
        image: &[u8],
        options: &ModuleOptions,
        budget: Option<&Arc<SessionBudget>>,
    ) -> Result<(Compiled, Option<Share>)> {
        let _ = budget;
        Ok((self.compile(image, options)?, None))
    }
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
    /// The lines of its code, where it is recorded which of them are reached.
    pub coverage: Option<Arc<mica_coverage::ModuleMap>>,
}
