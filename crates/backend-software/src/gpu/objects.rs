//! Modules, arrays, textures and surfaces.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLockWriteGuard};

use mica_cuda_abi::CuResult;
use mica_gpu::{
    ArrayDescriptor, ArrayId, ContextId, DevicePtr, GpuError, ModuleId, ModuleOptions, Result,
    TextureDescriptor,
};
use mica_kernel::TextureView;

use crate::OutputKind;
use crate::attributes;
use crate::context::{Context, lock};
use crate::device::SoftwareGpu;
use crate::error::{bad_handle, invalid_value};
use crate::memory::Purpose;
use crate::module::Module;
use crate::texture::{self, Array};

impl SoftwareGpu {
    fn new_texture(&self, context: &Context, view: TextureView) -> u64 {
        let (id, oldest) = {
            let mut state = self.core.state();
            (state.new_id(), state.oldest_operation(context.id))
        };
        forget_textures(context, oldest);
        textures(context).insert(id, view);
        id
    }

    /// Compiles an image and places its variables, at these addresses if there are any.
    pub(super) fn load_module(
        &self,
        context: ContextId,
        image: &[u8],
        options: &ModuleOptions,
        places: Option<&[DevicePtr]>,
    ) -> Result<ModuleId> {
        let context = self.healthy(context)?;
        let memory = Arc::clone(&self.core.memory);
        let compiled = {
            // One at a time: a program cannot have all processors read modules.
            let _alone = lock(&self.reading);
            let read = || self.cache.compile(image, options, memory.budget());
            self.core.charged(&context, read)
        };
        let compiled = compiled.inspect_err(|error| {
            let text = error.message.as_bytes();
            self.core.write(OutputKind::Refused, text);
        })?;
        let module = Arc::new(Module::new(memory, context.id, &compiled, places)?);
        self.core.begin_coverage(&module);
        let mut state = self.core.state();
        // The context may have gone while the compiler ran.
        state.healthy_context(context.id)?;
        let id = state.new_id();
        state.modules.insert(id, module);
        Ok(ModuleId(id))
    }

    /// What of a context is not among what the calls of the interface make.
    pub(super) fn obstacle(&self, context: ContextId) -> Option<String> {
        let context = match self.healthy(context) {
            Ok(context) => context,
            Err(error) => return Some(format!("its context is broken: {error}")),
        };
        if lock(&context.heap).is_open() {
            return Some("its kernels have memory of malloc".into());
        }
        if self.core.check.is_some() || self.core.coverage.is_some() {
            return Some("its kernels are checked".into());
        }
        let has_textures = !textures(&context).is_empty();
        has_textures.then(|| "it has textures or surfaces".into())
    }

    /// How many blocks of a kernel a multiprocessor holds.
    pub(super) fn blocks_at_once(
        &self,
        module: ModuleId,
        kernel: u32,
        block_threads: u32,
        dynamic_shared: u64,
    ) -> Result<u32> {
        let module = self.own_module(module)?;
        let kernel = module
            .info
            .kernels
            .get(kernel as usize)
            .ok_or_else(|| bad_handle("kernel", u64::from(kernel)))?;
        let shared = u64::from(kernel.static_shared).saturating_add(dynamic_shared);
        if block_threads == 0 {
            return Err(invalid_value("occupancy of empty blocks"));
        }
        if block_threads > kernel.max_threads || shared > self.core.shared_limit {
            return Ok(0);
        }
        Ok(attributes::occupancy(
            &self.facts,
            kernel.registers,
            block_threads,
            shared,
        ))
    }

    /// Makes an array of texels.
    pub(super) fn new_array(
        &self,
        context: ContextId,
        descriptor: &ArrayDescriptor,
    ) -> Result<ArrayId> {
        let context = self.healthy(context)?;
        let (bytes, row, slice) = Array::layout(descriptor)?;
        let base = self
            .core
            .memory
            .alloc(context.id, bytes, Purpose::Internal)?;
        let array = Array::new(context.id, base, row, slice, *descriptor);
        let mut state = self.core.state();
        let id = state.new_id();
        state.arrays.insert(id, Arc::new(array));
        Ok(ArrayId(id))
    }

    /// Frees an array.
    pub(super) fn drop_array(&self, array: ArrayId) -> Result<()> {
        let removed = self.core.state().arrays.remove(&array.0);
        let array = removed.ok_or_else(|| bad_handle("array", array.0))?;
        self.core.memory.free_internal(array.context, array.base);
        Ok(())
    }

    /// Makes a texture object.
    pub(super) fn new_texture_object(
        &self,
        context: ContextId,
        descriptor: &TextureDescriptor,
    ) -> Result<u64> {
        let context = self.healthy(context)?;
        let view = {
            let state = self.core.state();
            texture::texture_view(&self.core.memory, &state, context.id, descriptor)?
        };
        Ok(self.new_texture(&context, view))
    }

    /// Makes a surface object of an array.
    pub(super) fn new_surface_object(&self, context: ContextId, array: ArrayId) -> Result<u64> {
        let context = self.healthy(context)?;
        let view = texture::surface_view(&self.core.state(), context.id, array.0)?;
        Ok(self.new_texture(&context, view))
    }

    /// Forgets a texture or surface object, once the work that was queued before is done.
    pub(super) fn drop_texture(&self, context: ContextId, handle: u64) -> Result<()> {
        let context = self.healthy(context)?;
        let (last, oldest) = {
            let state = self.core.state();
            (state.last_id(), state.oldest_operation(context.id))
        };
        forget_textures(&context, oldest);
        let mut destroyed = lock(&context.destroyed_textures);
        let is_known = textures(&context).contains_key(&handle);
        if !is_known || destroyed.iter().any(|(_, other)| *other == handle) {
            return Err(bad_handle("texture", handle));
        }
        if oldest == u64::MAX {
            textures(&context).remove(&handle);
            return Ok(());
        }
        if destroyed.len() >= MOST_DESTROYED {
            return Err(GpuError::new(
                CuResult::OutOfMemory,
                format!(
                    "{MOST_DESTROYED} textures were destroyed while queued work may use them; wait for that work first"
                ),
            ));
        }
        destroyed.push_back((last, handle));
        Ok(())
    }
}

/// Destroyed textures of a context that wait for queued work: a program that never waits must not fill the host's memory.
const MOST_DESTROYED: usize = 16 << 10;

fn textures(context: &Context) -> RwLockWriteGuard<'_, HashMap<u64, TextureView>> {
    (context.textures.write()).unwrap_or_else(PoisonError::into_inner)
}

/// Forgets destroyed textures that no operation before `oldest` can use any more.
fn forget_textures(context: &Context, oldest: u64) {
    let mut destroyed = lock(&context.destroyed_textures);
    while let Some((_, handle)) = destroyed.pop_front_if(|(last, _)| *last < oldest) {
        textures(context).remove(&handle);
    }
}
