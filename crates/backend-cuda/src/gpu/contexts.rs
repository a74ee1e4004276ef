//! Contexts: making and ending them, their limits, stopping and starting their channels.

use std::sync::{Arc, Mutex, OnceLock};

use mica_cuda_abi::{CuResult, Limit};
use mica_gpu::{ContextId, GpuError, Result};
use mica_rm::{RmError, SuspendHow};

use super::known_ranges;
use super::{Address, Context, CudaGpu, Stream, Submitted, lock, stale};
use crate::driver::{CudaDriver, Raw, answer};
use crate::nvml::Nvml;

impl CudaGpu {
    pub(super) fn context(&self, id: ContextId) -> Result<Arc<Context>> {
        self.contexts
            .get(id.0)
            .ok_or_else(|| stale("context", id.0))
    }

    pub(super) fn make_context(&self) -> Result<ContextId> {
        let _only_one = lock(&self.making_context);
        let before = mica_rm::compute_group_ids();
        let mut raw: Raw = std::ptr::null_mut();
        let functions = &self.driver.functions;
        // SAFETY: writes one handle; the device exists.
        let code = unsafe { (functions.context_create)(&mut raw, 0, self.ordinal as i32) };
        CudaDriver::note_context_change();
        answer("cuCtxCreate", code)?;
        let mut groups = mica_rm::compute_group_ids();
        groups.retain(|group| !before.contains(group));
        let context = Arc::new(Context {
            raw: raw as Address,
            groups,
            default_stream: OnceLock::new(),
            fault: Mutex::default(),
            textures: Mutex::default(),
            registered: Mutex::default(),
            idle_events: Mutex::default(),
            recording: Mutex::default(),
            framed: Mutex::default(),
            submitted: Submitted::default(),
            rows: Mutex::default(),
            reference: Mutex::default(),
        });
        // The null handle is the stream that blocking streams are ordered against.
        let stream = Stream {
            context: context.clone(),
            raw: 0,
        };
        let _ = context.default_stream.set(self.streams.add(stream));
        let id = ContextId(self.contexts.add(context));
        match self.reserve_places() {
            Ok(()) => Ok(id),
            Err(error) => {
                let _ = self.end_context(id);
                Err(error)
            }
        }
    }

    pub(super) fn end_context(&self, id: ContextId) -> Result<()> {
        let removed = self.contexts.remove(id.0);
        let context = removed.ok_or_else(|| stale("context", id.0))?;
        let same = |other: &Arc<Context>| Arc::ptr_eq(other, &context);
        self.streams.remove_where(|stream| same(&stream.context));
        self.events.remove_where(|event| same(&event.context));
        self.modules.remove_where(|module| same(&module.context));
        self.arrays.remove_where(|array| same(&array.context));
        self.end_rows(&context);
        // What launches of graphs use on the host goes after the context.
        let graphs = self.end_graphs(&context);
        for (_, (host, _)) in std::mem::take(&mut *lock(&context.registered)) {
            self.enter(&context)?;
            // SAFETY: registered by us, still mapped by the contract of `host_register`.
            unsafe { (self.driver.functions.host_unregister)(host as Raw) };
        }
        let _gone = known_ranges::giving_back();
        let code = self.releases.end_context(&context, || {
            CudaDriver::note_context_change();
            // SAFETY: made by us and out of every table.
            let code = unsafe { (self.driver.functions.context_destroy)(context.raw as Raw) };
            CudaDriver::note_context_change();
            code
        });
        drop(graphs);
        // Nothing runs in the context any more, and frames belong to none.
        for (address, frame) in std::mem::take(&mut *lock(&context.framed)) {
            // After a fault the driver refuses everything: then it goes with the process.
            let _ = self.drop_framed(address, frame);
        }
        match answer("cuCtxDestroy", code) {
            // A context that ended in a fault is gone all the same.
            Err(error) if error.code.is_sticky() => Ok(()),
            other => other,
        }
    }

    pub(super) fn fault_of(&self, id: ContextId) -> Option<GpuError> {
        let context = self.context(id).ok()?;
        if let Some(fault) = lock(&context.fault).clone() {
            return Some(fault);
        }
        // Every call on a context that has faulted says so; this one does not wait.
        // SAFETY: the null stream of the current context.
        let _ = self.call(&context, "cuStreamQuery", || unsafe {
            (self.driver.functions.stream_query)(std::ptr::null_mut())
        });
        lock(&context.fault).clone()
    }

    pub(super) fn limit_of(&self, id: ContextId, limit: Limit) -> Result<u64> {
        let context = self.context(id)?;
        let mut value = 0;
        // SAFETY: writes one number; unknown limits are refused.
        self.call(&context, "cuCtxGetLimit", || unsafe {
            (self.driver.functions.context_limit)(&mut value, limit as u32)
        })?;
        Ok(value as u64)
    }

    pub(super) fn set_limit(&self, id: ContextId, limit: Limit, value: u64) -> Result<()> {
        let context = self.context(id)?;
        // SAFETY: takes two numbers.
        self.call(&context, "cuCtxSetLimit", || unsafe {
            (self.driver.functions.context_set_limit)(limit as u32, value as usize)
        })
    }

    pub(super) fn switch(&self, id: ContextId, stop: bool) -> Result<()> {
        let context = self.context(id)?;
        let refused = |error: RmError| {
            let sentence = format!("the context's channels cannot be switched: {error}");
            GpuError::new(CuResult::NotSupported, sentence)
        };
        if let Err(error) = self.driver.observed() {
            return Err(refused(error.clone()));
        }
        match stop {
            true => mica_rm::suspend_groups(&context.groups, SuspendHow::Preempt),
            false => mica_rm::resume_groups(&context.groups),
        }
        .map_err(refused)
    }

    pub(super) fn device_memory(&self) -> Result<(u64, u64)> {
        if let Some(context) = self.contexts.any() {
            let (mut free, mut total) = (0, 0);
            // SAFETY: writes two numbers.
            self.call(&context, "cuMemGetInfo", || unsafe {
                (self.driver.functions.memory_info)(&mut free, &mut total)
            })?;
            return Ok((free as u64, total as u64));
        }
        // Without a context the driver does not tell, and one would cost half a gigabyte.
        let found = self.nvml.get_or_init(|| self.find_in_nvml());
        let info = found
            .as_ref()
            .and_then(|(nvml, index)| nvml.memory_info(*index).ok());
        match info {
            Some(info) => Ok((info.free_bytes, info.total_bytes)),
            None => Err(GpuError::new(
                CuResult::InvalidContext,
                "free memory cannot be read: there is no context yet and no NVML",
            )),
        }
    }

    fn find_in_nvml(&self) -> Option<(Nvml, u32)> {
        let nvml = Nvml::load().ok()?;
        let bytes = self.properties.uuid;
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let same = |uuid: &str| {
            let digits = uuid.trim_start_matches("GPU-").replace('-', "");
            digits.eq_ignore_ascii_case(&hex)
        };
        let index = nvml.devices().iter().find(|d| same(&d.uuid))?.index;
        Some((nvml, index))
    }
}
