//! Compiled modules by content: loading the same image twice compiles it once.
//!
//! What nobody has loaded is kept for the next who loads it, within a bound in number and in bytes, and as long as
//! the session's budget has room for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use mica_cuda_abi::CuResult;
use mica_gpu::{ModuleOptions, Result, SessionBudget, Share};
use sha2::{Digest, Sha256};

use crate::compile::{Compiled, Compiler};
use crate::context::lock;

/// Modules kept although nothing uses them.
const KEPT: usize = 128;
/// Most host bytes of those.
const KEPT_BYTES: u64 = 64 << 20;

/// The compiler behind a memory of what it compiled.
pub(crate) struct ModuleCache {
    compiler: Arc<dyn Compiler>,
    known: Mutex<Known>,
}

/// A compiled module, and what it is charged as while anybody holds it.
#[derive(Clone)]
pub(crate) struct Charged {
    pub(crate) compiled: Compiled,
    pub(crate) share: Arc<Option<Share>>,
}

impl Charged {
    /// Whether the cache alone holds it.
    fn is_unused(&self) -> bool {
        Arc::strong_count(&self.share) == 1
    }

    fn bytes(&self) -> u64 {
        (*self.share).as_ref().map_or(0, Share::bytes)
    }
}

#[derive(Default)]
struct Known {
    modules: HashMap<[u8; 32], (Charged, u64)>,
    clock: u64,
}

impl Known {
    /// Forgets what was used longest ago, of what nobody uses, until the rest is within both bounds.
    fn forget(&mut self, most: usize, most_bytes: u64) -> Vec<Charged> {
        let unused = self.modules.iter().filter(|(_, (m, _))| m.is_unused());
        let mut unused: Vec<([u8; 32], u64, u64)> = unused
            .map(|(key, (module, used))| (*key, *used, module.bytes()))
            .collect();
        unused.sort_by_key(|(_, used, _)| *used);
        let mut bytes: u64 = unused.iter().map(|(_, _, bytes)| *bytes).sum();
        let mut left = unused.len();
        let mut gone = Vec::new();
        for (key, _, each) in unused {
            if left <= most && bytes <= most_bytes {
                break;
            }
            (left, bytes) = (left - 1, bytes - each);
            gone.extend(self.modules.remove(&key).map(|(module, _)| module));
        }
        gone
    }
}

impl ModuleCache {
    pub(crate) fn new(compiler: Arc<dyn Compiler>) -> Self {
        Self {
            compiler,
            known: Mutex::default(),
        }
    }

    /// Compiles, or remembers. Two threads with the same new image both compile it; one result is
    /// kept.
    pub(crate) fn compile(
        &self,
        image: &[u8],
        options: &ModuleOptions,
        budget: Option<&Arc<SessionBudget>>,
    ) -> Result<Charged> {
        let mut hash = Sha256::new();
        hash.update([u8::from(options.memcheck)]);
        hash.update(image);
        let key: [u8; 32] = hash.finalize().into();
        {
            let mut known = lock(&self.known);
            known.clock += 1;
            let now = known.clock;
            if let Some((module, used)) = known.modules.get_mut(&key) {
                *used = now;
                return Ok(module.clone());
            }
        }
        let mut made = self.compiler.compile_within(image, options, budget);
        if made
            .as_ref()
            .is_err_and(|e| e.code == CuResult::OutOfMemory)
        {
            // What is only kept makes room for what is wanted.
            let gone = lock(&self.known).forget(0, 0);
            if !gone.is_empty() {
                drop(gone);
                made = self.compiler.compile_within(image, options, budget);
            }
        }
        let (compiled, share) = made?;
        let share = Arc::new(share);
        let module = Charged { compiled, share };
        let mut known = lock(&self.known);
        let now = known.clock;
        known.modules.insert(key, (module.clone(), now));
        let gone = known.forget(KEPT, KEPT_BYTES);
        drop(known);
        drop(gone);
        Ok(module)
    }

    /// Forgets modules that nobody uses beyond what is kept: called when one was unloaded.
    pub(crate) fn tidy(&self) {
        let gone = lock(&self.known).forget(KEPT, KEPT_BYTES);
        drop(gone);
    }
}
