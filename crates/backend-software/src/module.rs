//! Loaded modules: their variables in device memory, their kernels' descriptions.

use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};

use mica_cuda_abi::CuResult;
use mica_gpu::{
    DevicePtr, GlobalDescription, GpuError, KernelDescription, ModuleInfo, ParamLayout, Result,
    Share,
};
use mica_kernel::{Executable, GlobalInfo};

use crate::cache::Charged;
use crate::compile::Compiled;
use crate::error::invalid_value;
use crate::memory::{DeviceMemory, Purpose};
use crate::module_cost::compile_cost;

/// One module of one context. Its variables live as long as it, or a launch of it, does.
pub(crate) struct Module {
    pub(crate) context: u64,
    pub(crate) executable: Arc<dyn Executable>,
    pub(crate) info: ModuleInfo,
    /// Where its variables are.
    pub(crate) globals: Vec<AtomicU64>,
    /// How long a block of each kernel took of late, in nanoseconds plus one; 0 if unknown.
    pub(crate) block_ns: Vec<AtomicU32>,
    /// Memory that is its own for them.
    owned: Vec<u64>,
    pub(crate) memory: Arc<DeviceMemory>,
    /// The lines of its code, where it is recorded which of them are reached.
    pub(crate) coverage: Option<Arc<mica_coverage::ModuleMap>>,
    /// What the compiled code of each kernel is charged as, from its first launch on.
    code: Vec<OnceLock<Option<Share>>>,
    /// What the module itself is charged as.
    _share: Arc<Option<Share>>,
}

/// What a compilation is charged as: host memory while it goes on, and code afterwards.
pub(crate) struct CompileCharges {
    _compiling: Option<Share>,
    kept: Option<Share>,
}

impl Module {
    /// Places and fills the variables; where `places` has their addresses, there.
    pub(crate) fn new(
        memory: Arc<DeviceMemory>,
        context: u64,
        charged: &Charged,
        places: Option<&[DevicePtr]>,
    ) -> Result<Self> {
        let compiled = &charged.compiled;
        let executable = Arc::clone(&compiled.executable);
        let infos = executable.globals();
        let mut module = Self {
            context,
            executable: Arc::clone(&executable),
            info: ModuleInfo::default(),
            globals: Vec::with_capacity(infos.len()),
            owned: Vec::with_capacity(infos.len()),
            block_ns: (executable.kernels().iter())
                .map(|_| AtomicU32::new(0))
                .collect(),
            code: (executable.kernels().iter())
                .map(|_| OnceLock::new())
                .collect(),
            memory,
            coverage: compiled.coverage.clone(),
            _share: Arc::clone(&charged.share),
        };
        if places.is_some_and(|places| places.len() != infos.len()) {
            let what = format!("the module has {} variables", infos.len());
            return Err(invalid_value(what));
        }
        for (index, global) in infos.iter().enumerate() {
            let wanted = places.and_then(|places| places.get(index));
            let address = module.place(global, wanted.map(|at| at.0))?;
            module.globals.push(AtomicU64::new(address));
            module.owned.push(address);
        }
        for (global, address) in infos.iter().zip(&module.owned) {
            module.fill(global, *address)?;
        }
        module.info = describe(compiled, infos, &module.owned);
        Ok(module)
    }

    /// Charges for compiling a kernel, before its first launch. Dropped, it gives everything back.
    pub(crate) fn charge_compiling(&self, kernel: usize) -> Result<Option<CompileCharges>> {
        if (self.code.get(kernel)).is_none_or(|code| code.get().is_some()) {
            return Ok(None);
        }
        let (peak, kept) = compile_cost(self.executable.instructions(kernel));
        Ok(Some(CompileCharges {
            _compiling: self.memory.charge_host(peak, "compiling a kernel")?,
            kept: self.memory.charge_host(kept, "a compiled kernel")?,
        }))
    }

    /// Keeps what compiled code is charged as, and gives the rest back: the kernel is compiled.
    pub(crate) fn keep_code(&self, kernel: usize, charges: Option<CompileCharges>) {
        if let (Some(code), Some(charges)) = (self.code.get(kernel), charges) {
            let _ = code.set(charges.kept);
        }
    }

    /// Moves a variable to memory that the host shares, with its present contents. Addresses of it that
    /// other variables hold stay what they were.
    pub(crate) fn bind(&self, global: u32, address: u64) -> Result<()> {
        let index = global as usize;
        let (Some(slot), Some(info)) = (
            self.globals.get(index),
            self.executable.globals().get(index),
        ) else {
            return Err(invalid_value(format!(
                "the module has no variable {global}"
            )));
        };
        if !self.memory.is_live(address, info.size, true)
            || !address.is_multiple_of(u64::from(info.align).max(1))
        {
            let what = format!("variable {} cannot live at {address:#x}", info.name);
            return Err(invalid_value(what));
        }
        let _pin = self.memory.pin();
        let from = slot.load(Acquire);
        // SAFETY: both are live memory of at least this size in the arena, and pinned.
        unsafe { std::ptr::copy(from as *const u8, address as *mut u8, info.size as usize) };
        slot.store(address, Release);
        Ok(())
    }

    /// Bytes of device memory that its variables take.
    pub(crate) fn taken_bytes(&self) -> u64 {
        let globals = self.executable.globals().iter();
        globals
            .map(|global| {
                self.memory
                    .taken_bytes(placed_bytes(global))
                    .unwrap_or(u64::MAX)
            })
            .fold(0, u64::saturating_add)
    }

    fn place(&self, global: &GlobalInfo, wanted: Option<u64>) -> Result<u64> {
        let align = u64::from(global.align).max(1);
        let bytes = placed_bytes(global);
        let base = match wanted {
            None => (self.memory).alloc(self.context, bytes, Purpose::Internal)?,
            Some(at) => (self.memory).alloc_internal_at(self.context, bytes, at)?,
        };
        if !base.is_multiple_of(align) {
            self.memory.free_internal(self.context, base);
            return Err(GpuError::new(
                CuResult::InvalidPtx,
                format!("variable {} asks for an alignment of {align}", global.name),
            ));
        }
        Ok(base)
    }

    fn fill(&self, global: &GlobalInfo, address: u64) -> Result<()> {
        let mut bytes = global.init.clone();
        let mut patch = |at: u64, value: u64| -> Result<()> {
            let end = at.checked_add(8).filter(|end| *end <= global.size);
            let Some(end) = end else {
                return Err(GpuError::new(
                    CuResult::InvalidPtx,
                    format!(
                        "an address in the initializer of {} lies outside",
                        global.name
                    ),
                ));
            };
            if bytes.len() < end as usize {
                bytes.resize(end as usize, 0);
            }
            bytes[at as usize..end as usize].copy_from_slice(&value.to_le_bytes());
            Ok(())
        };
        for &(at, index, addend) in &global.relocations {
            let Some(target) = self.owned.get(index) else {
                return Err(GpuError::new(
                    CuResult::InvalidPtx,
                    format!("{} refers to a variable that does not exist", global.name),
                ));
            };
            patch(at, target.wrapping_add_signed(addend))?;
        }
        for (at, function) in &global.function_relocations {
            let value = self.executable.function_address(function).ok_or_else(|| {
                GpuError::new(
                    CuResult::InvalidPtx,
                    format!(
                        "{} refers to function {function}, which is not there",
                        global.name
                    ),
                )
            })?;
            patch(*at, value)?;
        }
        let len = bytes.len().min(global.size as usize);
        // SAFETY: `size` bytes were just allocated at `address` for this module alone.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, len) };
        Ok(())
    }
}

/// Bytes that are allocated for a variable.
fn placed_bytes(global: &GlobalInfo) -> u64 {
    // Small allocations are aligned to 256 bytes, those with pages of their own to 4096.
    let least = if global.align > 256 { 64 << 10 } else { 1 };
    global.size.max(least)
}

impl Drop for Module {
    fn drop(&mut self) {
        for address in &self.owned {
            self.memory.free_internal(self.context, *address);
        }
    }
}

fn describe(compiled: &Compiled, globals: &[GlobalInfo], addresses: &[u64]) -> ModuleInfo {
    let constants: u64 = globals.iter().filter(|g| g.constant).map(|g| g.size).sum();
    let kernels = compiled.executable.kernels().iter();
    ModuleInfo {
        kernels: kernels
            .map(|kernel| KernelDescription {
                name: kernel.name.clone(),
                params: kernel
                    .params
                    .iter()
                    .map(|p| ParamLayout {
                        offset: p.offset,
                        size: p.size,
                    })
                    .collect(),
                static_shared: kernel.static_shared,
                local_bytes: kernel.local_bytes,
                const_bytes: u32::try_from(constants).unwrap_or(u32::MAX),
                registers: kernel.registers.clamp(1, 255),
                max_threads: most_threads(kernel.max_threads),
                // `CU_FUNC_ATTRIBUTE_PTX_VERSION` is that of the virtual architecture.
                ptx_version: compiled.target,
                binary_version: 80,
                is_complete: true,
            })
            .collect(),
        globals: globals
            .iter()
            .zip(addresses)
            .map(|(global, address)| GlobalDescription {
                name: global.name.clone(),
                address: DevicePtr(*address),
                bytes: global.size,
                // The engine moves those of the text to memory that the host shares.
                is_managed: false,
            })
            .collect(),
    }
}

/// A kernel's own bound within the device's.
pub(crate) fn most_threads(kernel: u32) -> u32 {
    if kernel == 0 { 1024 } else { kernel.min(1024) }
}
