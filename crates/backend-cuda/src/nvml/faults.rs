//! Faults of GPUs, as NVML tells them: the driver calls them Xid.

use std::ffi::c_void;

use super::table::{EventData, SUCCESS};
use super::{Nvml, NvmlError, check, missing};

/// The kind of event that is a fault: `nvmlEventTypeXidCriticalError`.
const XID: u64 = 8;
/// Faults of one look: more wait for the next.
const MOST: usize = 64;

impl Nvml {
    /// From here on [`Nvml::faults`] tells the faults of every GPU that can tell them.
    ///
    /// # Errors
    /// NVML is too old, or no GPU tells its faults.
    pub fn watch_faults(&mut self) -> Result<(), NvmlError> {
        let create = (self.table.event_set_create).ok_or(missing("nvmlEventSetCreate"))?;
        let register = (self.table.register_events).ok_or(missing("nvmlDeviceRegisterEvents"))?;
        let mut set: *mut c_void = std::ptr::null_mut();
        // SAFETY: writes one handle.
        check("nvmlEventSetCreate", unsafe { create(&mut set) })?;
        let registered = self.handles.iter().map(|device| {
            // SAFETY: handles that NVML gave out, which stay valid until it is shut down.
            check("nvmlDeviceRegisterEvents", unsafe {
                register(*device as _, XID, set)
            })
        });
        let outcomes: Vec<_> = registered.collect();
        if let Some(Err(error)) = outcomes.iter().find(|outcome| outcome.is_err())
            && outcomes.iter().all(Result::is_err)
        {
            return Err(error.clone());
        }
        self.fault_set = Some(set as usize);
        Ok(())
    }

    /// Faults since the last look, as the number of the GPU and of the fault. Does not wait.
    pub fn faults(&self) -> Vec<(u32, u64)> {
        let mut faults = Vec::new();
        let (Some(set), Some(wait)) = (self.fault_set, self.table.event_set_wait) else {
            return faults;
        };
        while faults.len() < MOST {
            let mut event = EventData {
                device: std::ptr::null_mut(),
                kind: 0,
                data: 0,
                gpu_instance: 0,
                compute_instance: 0,
            };
            // SAFETY: a set that NVML made and that is never freed; writes one structure of this layout.
            if unsafe { wait(set as _, &mut event, 0) } != SUCCESS {
                break;
            }
            let index = self
                .handles
                .iter()
                .position(|h| *h == event.device as usize);
            if let (XID, Some(index)) = (event.kind, index) {
                faults.push((index as u32, event.data));
            }
        }
        faults
    }
}
