//! Memory that this process and the worker both map.

use std::sync::Arc;

use mica_wire::session as wire;
use mica_wire::session::client::SessionClient;
use mica_wire::session::{SessionError, SharedHostMemory};

use crate::Result;
use crate::backend::ManagedMemory;

struct Managed {
    client: Arc<SessionClient>,
    context: u64,
    /// There until this is dropped.
    memory: Option<SharedHostMemory>,
    device: u64,
    host: *mut u8,
}

// SAFETY: a mapping of plain memory; `ManagedMemory` only tells where it is, and whoever copies there answers for that.
unsafe impl Send for Managed {}
// SAFETY: as for `Send`.
unsafe impl Sync for Managed {}

pub(super) fn alloc(
    client: &Arc<SessionClient>,
    context: u64,
    bytes: u64,
) -> Result<Box<dyn ManagedMemory>> {
    let memory = client.host_alloc(context, bytes, true)?;
    Ok(Box::new(Managed {
        client: Arc::clone(client),
        context,
        device: memory.device(),
        host: memory.as_ptr(),
        memory: Some(memory),
    }))
}

impl ManagedMemory for Managed {
    fn device(&self) -> u64 {
        self.device
    }

    fn host(&self) -> *mut u8 {
        self.host
    }

    /// The device uses the pages where they are.
    fn prefetch(&self, stream: u64, _: u64, _: u64, _: bool) -> Result<()> {
        let asked: Result<_, SessionError> = self.client.call(&wire::StreamQuery { stream });
        asked?;
        Ok(())
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            // Fails only if the context is gone, and what the device has of the memory with it.
            let _ = self.client.host_free(self.context, memory);
        }
    }
}
