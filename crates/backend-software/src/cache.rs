//! Compiled modules by content: loading the same image twice compiles it once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use mica_gpu::{ModuleOptions, Result};
use sha2::{Digest, Sha256};

use crate::compile::{Compiled, Compiler};
use crate::context::lock;

/// Modules kept although nothing uses them.
const KEPT: usize = 128;

/// The compiler behind a memory of what it compiled.
pub(crate) struct ModuleCache {
    compiler: Arc<dyn Compiler>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    modules: HashMap<[u8; 32], (Compiled, u64)>,
    clock: u64,
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
    pub(crate) fn compile(&self, image: &[u8], options: &ModuleOptions) -> Result<Compiled> {
        let mut hash = Sha256::new();
        hash.update([u8::from(options.memcheck)]);
        hash.update(image);
        let key: [u8; 32] = hash.finalize().into();
        {
            let mut known = lock(&self.known);
            known.clock += 1;
            let now = known.clock;
            if let Some((compiled, used)) = known.modules.get_mut(&key) {
                *used = now;
                return Ok(compiled.clone());
            }
        }
        let compiled = self.compiler.compile(image, options)?;
        let mut known = lock(&self.known);
        if known.modules.len() >= KEPT {
            let oldest = known.modules.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(key) = oldest.map(|(key, _)| *key) {
                known.modules.remove(&key);
            }
        }
        let now = known.clock;
        known.modules.insert(key, (compiled.clone(), now));
        Ok(compiled)
    }
}
