//! Modules: policy, charge, load.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use mica_cuda_abi::FunctionAttribute;
use mica_gpu::budget::OBJECT_BYTES;
use mica_gpu::{
    DevicePtr, GlobalDescription, GpuError, KernelDescription, ModuleId, ModuleInfo, ModuleOptions,
    ParamLayout, Share, TensorMap, TensorMapRequest,
};
use mica_snapshot::SavedModule;

use super::{Module, Session, lock, table_full};
use crate::handle::ObjectKind;
use crate::policy::{AllowedText, CodePolicy};
use crate::ranges::{Owner, Range};
use crate::vgpu::Charge;
use crate::{Result, VgpuError};

/// A loaded module with all that is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedModule {
    /// Its handle.
    pub module: u64,
    /// Kernels and variables.
    pub info: ModuleInfo,
}

/// What is needed to load a module again.
pub(super) struct Kept {
    pub(super) image: Vec<u8>,
    pub(super) memcheck: bool,
    /// Attributes of kernels that the program has set; there are few, and the device has taken each of them.
    pub(super) attributes: Mutex<BTreeMap<(u32, u32), i32>>,
    _share: Share,
}

impl Session {
    /// Loads PTX, a fatbin or a cubin, if the virtual GPU's policy allows what is in it.
    pub fn module_load(
        &self,
        context: u64,
        image: &[u8],
        options: &ModuleOptions,
    ) -> Result<LoadedModule> {
        self.load(context, image, options, None)
    }

    /// Enters a module of the device into the tables, with a given handle if it had one before. The charge grows by what it takes.
    fn enter_module(
        &self,
        (id, context, handle): (ModuleId, u64, Option<u64>),
        mut charge: Charge,
        kept: Option<Kept>,
    ) -> Result<LoadedModule> {
        let info = self.gpu.module_info(id)?;
        let globals = self.gpu.module_bytes(id)?;
        charge.absorb(self.vgpu.charge(globals, self)?);
        let share = self.module_share(&info)?;
        let shares: Result<Vec<_>> = (info.globals.iter().filter(|global| global.bytes > 0))
            .map(|global| Ok((global, self.object_share()?)))
            .collect();
        let shares = shares?;
        let mut tables = self.write();
        tables.contexts.get(context)?;
        let entry = Arc::new(Module {
            id,
            context,
            kept,
            is_bound: AtomicBool::new(false),
            made: self.next_made(),
            charge,
            share,
        });
        let module = match handle {
            None => {
                let inserted = tables.modules.insert(entry);
                inserted.map_err(|_| table_full(ObjectKind::Module))?
            }
            Some(handle) => {
                tables.modules.insert_at(handle, entry)?;
                handle
            }
        };
        for (global, share) in shares {
            let range = Range {
                bytes: global.bytes,
                context,
                owner: Owner::Global(module),
                share,
            };
            tables.ranges.0.insert(global.address.0, range);
        }
        Ok(LoadedModule { module, info })
    }

    /// As [`Session::module_load`]; where `before` has what was saved of the module, with the handle and the addresses that it had.
    pub(super) fn load(
        &self,
        context: u64,
        image: &[u8],
        options: &ModuleOptions,
        before: Option<&SavedModule>,
    ) -> Result<LoadedModule> {
        self.check()?;
        let allowed = self.allowed_text(image)?;
        let text = (allowed.as_ref()).map_or(image, |allowed| allowed.text.as_bytes());
        let owner = self.context_id(context)?;
        let kept = self.keep(image, options)?;
        // What the image will take on the device is known only afterwards; its own size is charged
        // before, its variables after, and it goes again if they do not fit.
        let charge = self.vgpu.charge(text.len() as u64, self)?;
        let loaded = match before {
            None => self.gpu.module_load(owner, text, options),
            Some(before) => {
                let all = before.variables.iter();
                let addresses: Vec<_> = all.map(|variable| DevicePtr(variable.address)).collect();
                self.gpu.module_load_at(owner, text, options, &addresses)
            }
        };
        let id = self.watch(context, loaded)?;
        let made = (id, context, before.map(|before| before.handle));
        let result = self.enter_module(made, charge, kept);
        match &result {
            Ok(_) => {
                self.vgpu.counters().modules.fetch_add(1, Relaxed);
            }
            Err(_) => {
                let _ = self.gpu.module_unload(id);
            }
        }
        result
    }

    /// Keeps the image of a module, where sessions can be saved.
    fn keep(&self, image: &[u8], options: &ModuleOptions) -> Result<Option<Kept>> {
        if !self.vgpu.spec().can_be_saved || self.gpu.address_space().is_none() {
            return Ok(None);
        }
        let share = self
            .budget
            .take(image.len() as u64, "the image of a module")?;
        Ok(Some(Kept {
            image: image.to_vec(),
            memcheck: options.memcheck,
            attributes: Mutex::default(),
            _share: share,
        }))
    }

    /// The host bytes of a module's description, which is kept twice: here and in the device.
    fn module_share(&self, info: &ModuleInfo) -> Result<Share> {
        let kernels = info.kernels.iter().map(|kernel| {
            let parts = kernel.name.len() + kernel.params.len() * size_of::<ParamLayout>();
            (parts + size_of::<KernelDescription>()) as u64
        });
        let globals = (info.globals.iter())
            .map(|global| (global.name.len() + size_of::<GlobalDescription>()) as u64);
        let bytes: u64 = kernels.chain(globals).sum();
        let bytes = bytes.saturating_mul(2).saturating_add(OBJECT_BYTES);
        Ok(self.budget.take(bytes, "a module's description")?)
    }

    /// The text to load instead of an image, where the virtual GPU's policy restricts code.
    fn allowed_text(&self, image: &[u8]) -> Result<Option<AllowedText>> {
        let spec = self.vgpu.spec();
        let policy = CodePolicy {
            tensor_cores: spec.tensor_cores,
            precision: spec.precision,
        };
        if !policy.restricts() {
            return Ok(None);
        }
        let (major, minor) = self.gpu.properties().compute_capability;
        let judged = policy.judge_image(image, major * 10 + minor, &self.budget)?;
        judged.map(Some).map_err(|reason| {
            let refusal = VgpuError::Policy {
                vgpu: spec.name.clone(),
                reason,
            };
            self.vgpu.remark(refusal.to_string());
            refusal
        })
    }

    /// Unloads a module, or has the last graph of the device that uses it unload it.
    pub fn module_unload(&self, module: u64) -> Result<()> {
        self.check()?;
        let mut tables = self.write();
        let gone = tables.modules.remove(module)?;
        tables
            .ranges
            .0
            .retain(|_, range| !matches!(range.owner, Owner::Global(owner) if owner == module));
        self.vgpu.counters().modules.fetch_sub(1, Relaxed);
        match Arc::into_inner(gone) {
            Some(gone) => Ok(self.gpu.module_unload(gone.id)?),
            None => Ok(()),
        }
    }

    /// Moves a module's variable to host memory that its context has registered.
    pub fn module_bind(&self, module: u64, global: u32, address: DevicePtr) -> Result<()> {
        self.check()?;
        let tables = self.read();
        let known = tables.modules.get(module)?;
        let found = tables.ranges.find(address.0);
        let registered = found.is_some_and(|(_, range)| {
            matches!(range.owner, Owner::Host { .. }) && range.context == known.context
        });
        let info = self.gpu.module_info(known.id)?;
        let bytes = info.globals.get(global as usize).map(|global| global.bytes);
        match (registered, bytes) {
            (true, Some(bytes)) => tables.ranges.check(address.0, bytes)?,
            _ => {
                return Err(VgpuError::Argument(format!(
                    "variable {global} cannot live at {:#x}, which is no host memory of its context",
                    address.0
                )));
            }
        }
        self.gpu.module_bind(known.id, global, address)?;
        known.is_bound.store(true, Relaxed);
        Ok(())
    }

    /// Kernels and variables of a module.
    pub fn module_info(&self, module: u64) -> Result<ModuleInfo> {
        self.check()?;
        let tables = self.read();
        Ok(self.gpu.module_info(tables.modules.get(module)?.id)?)
    }

    /// All that is known of a kernel.
    pub fn kernel_description(&self, module: u64, kernel: u32) -> Result<KernelDescription> {
        self.with_module(module, |id| self.gpu.kernel_description(id, kernel))
    }

    /// A `CUfunction_attribute` of a kernel.
    pub fn kernel_attribute(
        &self,
        module: u64,
        kernel: u32,
        attribute: FunctionAttribute,
    ) -> Result<i32> {
        self.with_module(module, |id| {
            self.gpu.kernel_attribute(id, kernel, attribute)
        })
    }

    /// Sets a `CUfunction_attribute` of a kernel.
    pub fn kernel_set_attribute(
        &self,
        module: u64,
        kernel: u32,
        attribute: FunctionAttribute,
        value: i32,
    ) -> Result<()> {
        self.check()?;
        let tables = self.read();
        let module = tables.modules.get(module)?;
        (self.gpu).kernel_set_attribute(module.id, kernel, attribute, value)?;
        if let Some(kept) = &module.kept {
            lock(&kept.attributes).insert((kernel, attribute as u32), value);
        }
        Ok(())
    }

    /// Dynamic shared memory that each of so many blocks on one multiprocessor can have.
    pub fn available_shared(
        &self,
        module: u64,
        kernel: u32,
        blocks: u32,
        threads: u32,
    ) -> Result<u64> {
        self.with_module(module, |id| {
            self.gpu.available_shared(id, kernel, blocks, threads)
        })
    }

    /// A tensor map. It names memory by address, and a kernel that uses it can reach no more than any kernel of
    /// the session.
    pub fn tensor_map(&self, context: u64, request: &TensorMapRequest) -> Result<TensorMap> {
        self.check()?;
        let context = self.context_id(context)?;
        Ok(self.gpu.tensor_map(context, request)?)
    }

    fn with_module<T>(
        &self,
        module: u64,
        ask: impl FnOnce(ModuleId) -> Result<T, GpuError>,
    ) -> Result<T> {
        self.check()?;
        let tables = self.read();
        Ok(ask(tables.modules.get(module)?.id)?)
    }

    /// Blocks of a kernel that fit on one multiprocessor.
    pub fn occupancy(
        &self,
        module: u64,
        kernel: u32,
        block_threads: u32,
        dynamic_shared: u64,
    ) -> Result<u32> {
        self.check()?;
        let tables = self.read();
        let id = tables.modules.get(module)?.id;
        Ok(self
            .gpu
            .occupancy(id, kernel, block_threads, dynamic_shared)?)
    }
}
