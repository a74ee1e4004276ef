//! A program in a session whose device is the stand-in driver's.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use mica_wire::session::client::SessionClient;
use mica_wire::session::*;

pub(crate) const PTX: &[u8] = b".version 8.0\n.target sm_90\n.global .u32 counter;\n\0";

/// A program in a session with the worker.
#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) client: Arc<SessionClient>,
    pub(crate) context: u64,
    pub(crate) stream: u64,
    pub(crate) module: u64,
}

impl Program {
    /// Shakes hands, makes a context and loads a module.
    pub(crate) fn begin(socket: OwnedFd) -> Self {
        let client = Arc::new(SessionClient::connect(socket, "test").unwrap());
        let new = client.call(&ContextCreate { flags: 0 }).unwrap();
        let module = client.module_load(new.context, PTX, false).unwrap().module;
        Self {
            client,
            context: new.context,
            stream: new.default_stream,
            module,
        }
    }

    pub(crate) fn launch(&self) {
        self.launch_on(self.stream);
    }

    pub(crate) fn launch_on(&self, stream: u64) {
        let launch = self.kernel(stream);
        self.client.launch(&launch, &[0; 12]).unwrap();
    }

    pub(crate) fn kernel(&self, stream: u64) -> Launch {
        Launch {
            stream,
            module: self.module,
            kernel: 0,
            grid: [1; 3],
            block: [1; 3],
            dynamic_shared: 0,
            cooperative: false,
        }
    }

    pub(crate) fn synchronize(&self) {
        let stream = self.stream;
        self.client.call(&StreamSynchronize { stream }).unwrap();
    }

    pub(crate) fn is_done(&self, stream: u64) -> bool {
        self.client.call(&StreamQuery { stream }).unwrap().value
    }

    pub(crate) fn alloc(&self, bytes: u64) -> u64 {
        let context = self.context;
        let request = MemoryAlloc { context, bytes };
        self.client.call(&request).unwrap().value
    }

    pub(crate) fn another_stream(&self) -> u64 {
        let request = StreamCreate {
            context: self.context,
            non_blocking: true,
            priority: 0,
        };
        self.client.call(&request).unwrap().value
    }
}
