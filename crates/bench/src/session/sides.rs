//! The two sides of a comparison: the engine in this process, and the same behind a session.

use std::sync::Arc;

use mica_gpu::ModuleOptions;
use mica_vgpu::{Session, Vgpu};
use mica_wire::session::client::SessionClient;
use mica_wire::session::{ContextCreate, Launch, MemoryAlloc, MemoryFree};

use super::{MIB, engine, median, time};
use mica_worker::WorkerError;

/// A kernel that does nothing.
const EMPTY: &[u8] = b".version 7.0\n.target sm_75\n.address_size 64\n\n\
.visible .entry nothing(.param .u64 p)\n{\n    ret;\n}\n\0";

/// The engine in this process.
pub(super) struct Direct {
    session: Arc<Session>,
    stream: u64,
    module: u64,
}

impl Direct {
    pub(super) fn new(vgpu: &Arc<Vgpu>) -> Result<Self, WorkerError> {
        let session = vgpu.open_session().map_err(engine)?;
        let new = session.context_create().map_err(engine)?;
        let options = ModuleOptions::default();
        let loaded = session.module_load(new.context, EMPTY, &options);
        let module = loaded.map_err(engine)?.module;
        let stream = new.default_stream;
        Ok(Self {
            session,
            stream,
            module,
        })
    }

    pub(super) fn launch(&self) -> Result<(), WorkerError> {
        let params = 0_u64.to_le_bytes();
        let (s, m) = (self.stream, self.module);
        let one = [1, 1, 1];
        self.session
            .launch(s, m, 0, one, one, 0, false, &params)
            .map_err(engine)
    }

    pub(super) fn sync(&self) -> Result<(), WorkerError> {
        self.session.stream_synchronize(self.stream).map_err(engine)
    }
}

/// The engine behind a session.
pub(super) struct Through {
    client: SessionClient,
    stream: u64,
    context: u64,
    launch: Launch,
}

impl Through {
    pub(super) fn new(client: SessionClient) -> Result<Self, WorkerError> {
        let new = client.call(&ContextCreate { flags: 0 })?;
        let module = client.module_load(new.context, EMPTY, false)?.module;
        let launch = Launch {
            stream: new.default_stream,
            module,
            kernel: 0,
            grid: [1; 3],
            block: [1; 3],
            dynamic_shared: 0,
            cooperative: false,
        };
        Ok(Self {
            client,
            stream: new.default_stream,
            context: new.context,
            launch,
        })
    }

    pub(super) fn launch(&self) -> Result<(), WorkerError> {
        let params = 0_u64.to_le_bytes();
        Ok(self.client.launch(&self.launch, &params)?)
    }

    pub(super) fn sync(&self) -> Result<(), WorkerError> {
        Ok(self.client.synchronize(self.stream)?)
    }

    pub(super) fn copies(&self, rounds: usize) -> Result<Copies, WorkerError> {
        let (host, mut other) = (vec![1_u8; 64 * MIB], vec![2_u8; 64 * MIB]);
        let (mut fresh, mut fresh_to) = (Vec::new(), Vec::new());
        for _ in 0..3 * rounds {
            let mut cold: Vec<u8> = Vec::with_capacity(host.len());
            fresh.extend(time(1, || {
                cold.extend_from_slice(&host);
                Ok(())
            })?);
            let address = self.alloc(host.len() as u64)?;
            let to = || self.client.write_now(self.stream, address, &host);
            fresh_to.extend(time(1, || to().map_err(WorkerError::from))?);
            let context = self.context;
            self.client.call(&MemoryFree { context, address })?;
        }
        let address = self.alloc(host.len() as u64)?;
        let mut rates = |bytes: usize, runs: usize| -> Result<[f64; 3], WorkerError> {
            let mut ns = [const { Vec::new() }; 3];
            // The first turn touches everything once on all sides.
            for run in 0..=runs {
                let (from, to) = (&host[..bytes], &mut other[..bytes]);
                let took = [
                    time(1, || {
                        to.copy_from_slice(std::hint::black_box(from));
                        std::hint::black_box(&to);
                        Ok(())
                    })?,
                    time(1, || {
                        Ok(self.client.write_now(self.stream, address, from)?)
                    })?,
                    time(1, || Ok(self.client.read(self.stream, address, to)?))?,
                ];
                if run > 0 {
                    for (all, took) in ns.iter_mut().zip(took) {
                        all.extend(took);
                    }
                }
            }
            let rate =
                |ns: &mut Vec<f64>| bytes as f64 / f64::from(1 << 30) / (median(ns, 0.5) / 1e9);
            Ok(ns.each_mut().map(rate))
        };
        Ok(Copies {
            small: rates(MIB, 200 * rounds)?,
            large: rates(64 * MIB, 6 * rounds)?,
            fresh_ms: [fresh, fresh_to].map(|mut ns| median(&mut ns, 0.5) / 1e6),
        })
    }

    pub(super) fn alloc(&self, bytes: u64) -> Result<u64, WorkerError> {
        let context = self.context;
        Ok(self.client.call(&MemoryAlloc { context, bytes })?.value)
    }
}

/// Copies: GiB/s of memcpy, to the device, from the device; milliseconds of first copies.
pub(super) struct Copies {
    pub(super) small: [f64; 3],
    pub(super) large: [f64; 3],
    pub(super) fresh_ms: [f64; 2],
}
