//! The way of an image: container → PTX → checked syntax tree → an engine.
//!
//! ```text
//!   PTX text ──────────────┐
//!   fatbin, cubin, ELF ─► select PTX ─► parse ─► native compiler ─ refuses ─► interpreter
//! ```

use std::borrow::Cow;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use mica_cuda_abi::CuResult;
use mica_fatbin::Image;
use mica_gpu::{GpuError, ModuleOptions, Result, SessionBudget, Share};
use mica_ptx::ast::Module;
use mica_ptx_interp::InterpModule;
use mica_ptx_jit::{CodeCache, DiskCodeCache, JitModule, KeptCodeCache, Width};
use mica_ptx_ops::device_runtime;
use sha2::{Digest, Sha256};

use crate::compile::{Compiled, Compiler};
use crate::config::{Capability, Config, Engine};
use crate::coverage;
use crate::mixed::MixedModule;
use crate::module_cost::ReadingShare;

/// The compiler that a configuration asks for.
pub(crate) fn compiler(config: &Config) -> Arc<dyn Compiler> {
    Arc::new(Pipeline {
        engine: config.engine,
        check: config.check,
        coverage: config.coverage.is_some(),
        exact: config.seed.is_some(),
        capability: config.capability,
        code_cache: OnceLock::new(),
    })
}

struct Pipeline {
    engine: Engine,
    check: Option<mica_check::CheckSettings>,
    coverage: bool,
    /// Leaves nothing to what was measured.
    exact: bool,
    capability: Capability,
    /// Opened by the first module, so that an idle device touches no files.
    code_cache: OnceLock<Option<Arc<dyn CodeCache>>>,
}

/// Names the folder of compiled kernels; `off` keeps none.
pub const KERNEL_CACHE: &str = "MICA_KERNEL_CACHE";

/// Most mebibytes of compiled kernels to keep; what was used longest ago goes first.
pub const KERNEL_CACHE_MIB: &str = "MICA_KERNEL_CACHE_MIB";
const DEFAULT_CACHE_MIB: u64 = 512;

fn cache_bytes() -> u64 {
    let set = std::env::var(KERNEL_CACHE_MIB).ok();
    let mib = set.and_then(|text| match text.trim().parse() {
        Ok(mib) => Some(mib),
        Err(_) => {
            tracing::warn!("{KERNEL_CACHE_MIB}={text} is not a number of mebibytes");
            None
        }
    });
    mib.unwrap_or(DEFAULT_CACHE_MIB).saturating_mul(1 << 20)
}

/// Folder of compiled kernels: `MICA_KERNEL_CACHE`, else `XDG_CACHE_HOME/mica/kernels`, else
/// `~/.cache/mica/kernels`; `None` where none are kept.
pub fn kernel_cache_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    match set(KERNEL_CACHE) {
        Some(value) if value == "off" => None,
        Some(value) => Some(value.into()),
        None => {
            let home = || set("HOME").map(|home| PathBuf::from(home).join(".cache"));
            let base = set("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?;
            Some(base.join("mica/kernels"))
        }
    }
}

/// The keeper of this process, where it may write no files itself.
static KEEPER: OnceLock<Arc<dyn CodeCache>> = OnceLock::new();

/// From now on this process asks a keeper at the other end of the stream for compiled kernels ([`keep_kernels`]).
pub fn use_keeper(stream: UnixStream) {
    // Asked twice: the first one stays.
    let _ = KEEPER.set(Arc::new(KeptCodeCache::new(stream)));
}

/// Keeps compiled kernels in a folder for the process at the other end, until that has ended.
pub fn keep_kernels(stream: UnixStream, folder: &Path) {
    match DiskCodeCache::open(folder, cache_bytes()) {
        Ok(cache) => mica_ptx_jit::keep(stream, &cache),
        Err(error) => tracing::warn!(%error, "compiled kernels are not kept"),
    }
}

/// Where this process keeps compiled kernels.
pub fn kernel_cache() -> Option<Arc<dyn CodeCache>> {
    if let Some(keeper) = KEEPER.get() {
        return Some(Arc::clone(keeper));
    }
    let dir = kernel_cache_folder()?;
    match DiskCodeCache::open(&dir, cache_bytes()) {
        Ok(cache) => Some(Arc::new(cache)),
        Err(error) => {
            tracing::warn!(%error, "compiled kernels are not kept in {}", dir.display());
            None
        }
    }
}

impl Compiler for Pipeline {
    fn compile(&self, image: &[u8], options: &ModuleOptions) -> Result<Compiled> {
        let (compiled, _) = self.compile_within(image, options, None)?;
        Ok(compiled)
    }

    fn compile_within(
        &self,
        image: &[u8],
        options: &ModuleOptions,
        budget: Option<&Arc<SessionBudget>>,
    ) -> Result<(Compiled, Option<Share>)> {
        let mut share = ReadingShare::default();
        let text = ptx_of(image, self.capability, |bytes| share.add(budget, bytes))?;
        if device_runtime::is_called(&text) {
            share.add(budget, 2 * (text.len() + device_runtime::TEXT.len()) as u64)?;
        }
        let text = device_runtime::join(text).map_err(|why| {
            let text = format!("PTX that launches kernels was refused: {why}");
            GpuError::new(CuResult::InvalidPtx, text)
        })?;
        let cost = mica_ptx::reading_bytes(&text);
        share.add(budget, cost)?;
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
        let module = Arc::new(module);
        let mut kept = cost;
        let coverage = match self.coverage {
            true => {
                let name = format!("{}.ptx", &name_of(&text)[..16]);
                share.add(budget, coverage::most_bytes(&module))?;
                let map = coverage::map_of(&module, &name);
                kept += map.bytes();
                Some(Arc::new(map))
            }
            false => None,
        };
        let executable = self.executable(module, &text, options)?;
        let compiled = Compiled {
            executable,
            ptx_version,
            target,
            coverage,
        };
        Ok((compiled, share.keep(kept)))
    }
}

impl Pipeline {
    fn executable(
        &self,
        module: Arc<Module>,
        text: &[u8],
        options: &ModuleOptions,
    ) -> Result<Arc<dyn mica_kernel::Executable>> {
        if self.engine == Engine::Interpreter {
            return interpreter(module, options, self.coverage);
        }
        let cache = self.code_cache.get_or_init(kernel_cache).clone();
        let options = &ModuleOptions {
            // A kernel that has to be interpreted is checked for its addresses at least.
            memcheck: options.memcheck || self.check.is_some(),
        };
        let native = mica_ptx_jit::Options {
            memcheck: options.memcheck && self.check.is_none(),
            monitor: self.check.is_some(),
            // Another order of threads is only to be had where they run one by one.
            monitor_own: (self.check)
                .is_none_or(|check| check.tools.watch_every_access() || check.schedule.is_some()),
            coverage: self.coverage,
            // How wide code is decides how many threads run together, and that the order of atomics; how wide it
            // should be is measured.
            width: match self.exact {
                true => Width::Bits128,
                false => Width::Auto,
            },
            code_cache: cache.map(|cache| (cache, name_of(text))),
            ..mica_ptx_jit::Options::default()
        };
        match JitModule::compile(Arc::clone(&module), native) {
            Ok(jit) => {
                let watched = (options.memcheck, self.coverage);
                Ok(Arc::new(MixedModule::new(jit, module, watched)))
            }
            Err(reason) => {
                tracing::warn!(%reason, "the module is interpreted: the compiler refuses it");
                interpreter(module, options, self.coverage)
            }
        }
    }
}

/// A name that no other text has.
fn name_of(text: &[u8]) -> String {
    let hash = Sha256::digest(text);
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn interpreter(
    module: Arc<Module>,
    options: &ModuleOptions,
    coverage: bool,
) -> Result<Arc<dyn mica_kernel::Executable>> {
    match InterpModule::new(module) {
        Ok(module) => {
            let module = module.with_memcheck(options.memcheck);
            Ok(Arc::new(module.with_coverage(coverage)))
        }
        Err(error) => Err(GpuError::new(
            CuResult::InvalidPtx,
            format!("the module cannot run here: {error}"),
        )),
    }
}

/// Most bytes of PTX that one module decompresses to.
const MOST_TEXT: u64 = 256 << 20;

/// The PTX text in an image; `charge` is asked for the bytes it takes before they are taken. Code for later capabilities
/// is taken where there is nothing older, and refused by name if it uses an instruction that the engines lack.
fn ptx_of(
    image: &[u8],
    capability: Capability,
    charge: impl FnOnce(u64) -> Result<()>,
) -> Result<Cow<'_, [u8]>> {
    let refuse = |code, error: mica_fatbin::Error| GpuError::new(code, error.to_string());
    let parsed = Image::parse(image).map_err(|error| refuse(CuResult::InvalidImage, error))?;
    let (major, minor) = capability.numbers();
    let Some(entry) = parsed.select_ptx_or_newer(10 * major + minor) else {
        return Err(GpuError::new(
            CuResult::NoBinaryForGpu,
            // What helps first: where room is short, the end of a long list is missed least.
            format!(
                "the software GPU needs PTX (nvcc -arch=compute_80; NVRTC: compute_80 and nvrtcGetPTX) and this is {}",
                parsed.describe()
            ),
        ));
    };
    // A vector that grows takes twice what is in it.
    charge(entry.payload_bytes().saturating_mul(2))?;
    let text = entry.payload(MOST_TEXT);
    text.map_err(|error| refuse(CuResult::InvalidImage, error))
}
