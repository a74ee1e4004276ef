//! Programs whose results show whether anything of them was lost.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::sync::Arc;

use mica_limits::{LocalQuota, Quota};
use mica_snapshot::Snapshot;
use mica_vgpu::{Vgpu, VgpuSpec};
use mica_wire::session::client::SessionClient;
use mica_wire::session::*;
use mica_worker::{OutputBuffer, serve_session};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::support::MIB;

/// Steps of gradient descent with momentum on 786,432 weights; the momentum of the first 4,096 is a variable of the module.
const PTX: &[u8] = b".version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .b8 momentum[16384];
.visible .global .align 8 .u64 where = momentum;
.visible .entry step(.param .u64 w, .param .u64 x, .param .u32 count)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %d<8>;
    .reg .f32 %f<8>;
    ld.param.u64 %d0, [w];
    ld.param.u64 %d1, [x];
    ld.param.u32 %r0, [count];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    setp.ge.u32 %p0, %r4, %r0;
    @%p0 bra done;
    mul.wide.u32 %d2, %r4, 4;
    add.u64 %d3, %d0, %d2;
    add.u64 %d4, %d1, %d2;
    ld.global.f32 %f0, [%d3];
    ld.global.f32 %f1, [%d4];
    mov.f32 %f2, 0f00000000;
    setp.ge.u32 %p1, %r4, 4096;
    @%p1 bra descend;
    ld.global.u64 %d5, [where];
    add.u64 %d6, %d5, %d2;
    ld.global.f32 %f2, [%d6];
descend:
    fma.rn.f32 %f3, %f0, %f1, 0fBF800000;
    mul.f32 %f3, %f3, %f1;
    mul.f32 %f4, %f2, 0f3F000000;
    fma.rn.f32 %f4, %f3, 0f3C23D70A, %f4;
    sub.f32 %f0, %f0, %f4;
    st.global.f32 [%d3], %f0;
    @%p1 bra done;
    st.global.f32 [%d6], %f4;
done:
    ret;
}
.visible .entry loss(.param .u64 w, .param .u64 x, .param .u64 out)
{
    .reg .pred %p;
    .reg .b32 %r<4>;
    .reg .b64 %d<6>;
    .reg .f32 %f<6>;
    ld.param.u64 %d0, [w];
    ld.param.u64 %d1, [x];
    ld.param.u64 %d2, [out];
    mov.u32 %r0, 0;
    mov.f32 %f0, 0f00000000;
next:
    ld.global.f32 %f1, [%d0];
    ld.global.f32 %f2, [%d1];
    fma.rn.f32 %f3, %f1, %f2, 0fBF800000;
    fma.rn.f32 %f0, %f3, %f3, %f0;
    add.u64 %d0, %d0, 32;
    add.u64 %d1, %d1, 32;
    add.u32 %r0, %r0, 1;
    setp.lt.u32 %p, %r0, 98304;
    @%p bra next;
    st.global.f32 [%d2], %f0;
    ret;
}
\0";

const WEIGHTS: u32 = 786_432;

/// A training whose state is all on the GPU.
pub(crate) struct Training {
    client: Arc<SessionClient>,
    stream: u64,
    module: u64,
    weights: u64,
    inputs: u64,
    loss: u64,
}

fn parameters(numbers: &[u64], last: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    bytes.extend(last);
    bytes
}

impl Training {
    pub(crate) fn begin(client: Arc<SessionClient>) -> Result<Self, SessionError> {
        let new = client.call(&ContextCreate { flags: 0 })?;
        let context = new.context;
        let module = client.module_load(context, PTX, false)?.module;
        let stream = StreamCreate {
            context,
            non_blocking: true,
            priority: 0,
        };
        let stream = client.call(&stream)?.value;
        let alloc =
            |bytes| Ok::<_, SessionError>(client.call(&MemoryAlloc { context, bytes })?.value);
        let bytes = u64::from(WEIGHTS) * 4;
        let (weights, inputs, loss) = (alloc(bytes)?, alloc(bytes)?, alloc(4)?);
        let numbers = |from: u32| -> Vec<u8> {
            let word = |n: u32| (n.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32;
            (0..WEIGHTS)
                .flat_map(|n| word(n ^ from).to_le_bytes())
                .collect()
        };
        client.write(stream, weights, &numbers(1))?;
        client.write(stream, inputs, &numbers(77))?;
        Ok(Self {
            client,
            stream,
            module,
            weights,
            inputs,
            loss,
        })
    }

    /// One step; the bits of the loss.
    pub(crate) fn step(&mut self) -> Result<u32, SessionError> {
        let launch = |kernel, blocks, threads| Launch {
            stream: self.stream,
            module: self.module,
            kernel,
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            dynamic_shared: 0,
            cooperative: false,
        };
        let step = parameters(&[self.weights, self.inputs], &WEIGHTS.to_le_bytes());
        for _ in 0..3 {
            self.client.launch(&launch(0, WEIGHTS / 256, 256), &step)?;
        }
        let loss = parameters(&[self.weights, self.inputs, self.loss], &[]);
        self.client.launch(&launch(1, 1, 1), &loss)?;
        let mut bits = [0; 4];
        self.client.read(self.stream, self.loss, &mut bits)?;
        Ok(u32::from_le_bytes(bits))
    }
}

/// The losses of a training that nobody interrupts, in a worker without a daemon.
pub(crate) fn losses_without_snapshot(steps: u64) -> Vec<u32> {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let quota: Arc<dyn Quota> = Arc::new(LocalQuota::new(64 * MIB));
    let gpu = mica_backend_software::SoftwareGpu::new(Default::default()).unwrap();
    let gpu: Arc<dyn mica_gpu::Gpu> = Arc::new(gpu);
    let vgpu = Vgpu::new(Arc::clone(&gpu), quota, VgpuSpec::new("alone", 64 * MIB));
    let served = std::thread::spawn(move || {
        serve_session(&vgpu, gpu, Arc::new(OutputBuffer::default()), theirs, None).unwrap()
    });
    let client = Arc::new(SessionClient::connect(ours, "test").unwrap());
    let mut training = Training::begin(client).unwrap();
    let losses: Vec<u32> = (0..steps).map(|_| training.step().unwrap()).collect();
    let values = losses.iter().map(|bits| f32::from_bits(*bits));
    assert!(values.is_sorted_by(|a, b| a > b), "it learns at every step");
    drop(training);
    served.join().unwrap();
    losses
}

/// Sizes of allocations: in slabs, in rooms, with frames of their own.
const SIZES: [u64; 8] = [
    1,
    100,
    4096,
    65_536,
    70_000,
    1 << 20,
    (1 << 20) + 1,
    9 << 20,
];

/// One of everything that can be saved.
pub(crate) struct Everything {
    contexts: [u64; 2],
    default_stream: u64,
    streams: [u64; 2],
    events: [u64; 3],
    dead_event: u64,
    elapsed: f32,
    module: u64,
    variables: Vec<u64>,
    host: Vec<SharedHostMemory>,
    /// With their contexts and sizes.
    memory: Vec<(u64, u64, u64)>,
    limit: u64,
}

fn contents(index: usize, bytes: u64) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at * 7 + at / 251 + index as u64) as u8)
        .collect()
}

fn fill(memory: &SharedHostMemory, bytes: &[u8]) {
    // SAFETY: mapped for its length, and nobody else's.
    let here = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), memory.len()) };
    here[..bytes.len()].copy_from_slice(bytes);
}

const HEAP_LIMIT: u32 = 2;

impl Everything {
    pub(crate) fn begin(client: &SessionClient) -> Result<Self, SessionError> {
        let made = [(), ()].map(|()| client.call(&ContextCreate { flags: 0 }).unwrap());
        let contexts = made.clone().map(|made| made.context);
        let [context, other] = contexts;
        let default_stream = made[0].default_stream;
        let module = client.module_load(context, PTX, false)?;
        let limit = 3 * MIB;
        let set = ContextSetLimit {
            context: other,
            limit: HEAP_LIMIT,
            value: limit,
        };
        client.call(&set)?;
        let stream = |context, non_blocking, priority| {
            let stream = StreamCreate {
                context,
                non_blocking,
                priority,
            };
            client.call(&stream).unwrap().value
        };
        let streams = [stream(context, true, -1), stream(other, false, 0)];
        let event = || {
            let event = EventCreate {
                context,
                disable_timing: false,
            };
            client.call(&event).unwrap().value
        };
        let events = [(), (), ()].map(|()| event());
        let dead_event = event();
        client.post(&EventDestroy { event: dead_event }, &[])?;
        let mut memory = Vec::new();
        for (index, bytes) in SIZES.into_iter().chain(SIZES).enumerate() {
            let context = contexts[index % 2];
            let at = client.call(&MemoryAlloc { context, bytes })?.value;
            memory.push((context, at, bytes));
        }
        // Holes between them.
        for index in [12, 9, 5, 2] {
            let (context, address, _) = memory.remove(index);
            client.call(&MemoryFree { context, address })?;
        }
        for (index, (context, at, bytes)) in memory.iter().enumerate() {
            let stream = if *context == other {
                streams[1]
            } else {
                default_stream
            };
            client.write(stream, *at, &contents(index, *bytes))?;
        }
        let mut host = Vec::new();
        for (index, bytes) in [4096, 3 << 20, 100].into_iter().enumerate() {
            let memory = client.host_alloc(contexts[index % 2], bytes, index == 1)?;
            fill(&memory, &contents(50 + index, bytes));
            host.push(memory);
        }
        let variables = module.globals.iter().map(|global| global.address);
        let variables: Vec<u64> = variables.collect();
        client.write(default_stream, variables[0], &contents(99, 16_384))?;
        for event in &events[..2] {
            let event = *event;
            let stream = streams[0];
            client.post(&EventRecord { event, stream }, &[])?;
            client.call(&StreamSynchronize { stream })?;
            std::thread::sleep(std::time::Duration::from_millis(3));
        }
        let (start, end) = (events[0], events[1]);
        let elapsed = client.call(&EventElapsed { start, end })?.value;
        Ok(Self {
            contexts,
            default_stream,
            streams,
            events,
            dead_event,
            elapsed,
            module: module.module,
            variables,
            host,
            memory,
            limit,
        })
    }

    /// Everything is as it was.
    pub(crate) fn check(&self, client: &SessionClient) -> Result<(), SessionError> {
        let [context, other] = self.contexts;
        for (index, (context, at, bytes)) in self.memory.iter().enumerate() {
            let stream = if *context == other {
                self.streams[1]
            } else {
                self.default_stream
            };
            let mut seen = vec![0; *bytes as usize];
            client.read(stream, *at, &mut seen)?;
            assert!(seen == contents(index, *bytes), "{bytes} bytes at {at:#x}");
            let range = MemoryRange {
                context: *context,
                address: at + bytes / 2,
            };
            let range = client.call(&range)?;
            assert_eq!((range.address, range.bytes), (*at, *bytes));
        }
        let mut seen = vec![0; 16_384];
        client.read(self.default_stream, self.variables[0], &mut seen)?;
        assert!(seen == contents(99, 16_384), "the variable of the module");
        // The device reads and writes host memory where it was.
        for (index, memory) in self.host.iter().enumerate() {
            let mut seen = vec![0; memory.len()];
            let stream = if index == 1 {
                self.streams[1]
            } else {
                self.default_stream
            };
            client.read(stream, memory.device(), &mut seen)?;
            assert!(
                seen == contents(50 + index, seen.len() as u64),
                "host memory {index}"
            );
            let fill = Fill {
                stream,
                address: memory.device(),
                pitch: 0,
                value: 0x2a,
                element_bytes: 1,
                width: memory.len() as u64,
                height: 1,
            };
            client.post(&fill, &[])?;
            client.synchronize(stream)?;
            // SAFETY: mapped for its length; nothing writes to it now.
            let here = unsafe { std::slice::from_raw_parts(memory.as_ptr(), memory.len()) };
            assert!(here.iter().all(|byte| *byte == 0x2a), "host memory {index}");
        }
        let mut address = [0; 8];
        client.read(self.default_stream, self.variables[1], &mut address)?;
        assert_eq!(u64::from_le_bytes(address), self.variables[0]);
        let (start, end) = (self.events[0], self.events[1]);
        let elapsed = client.call(&EventElapsed { start, end })?.value;
        assert!(
            (elapsed - self.elapsed).abs() < 0.01,
            "{elapsed} {}",
            self.elapsed
        );
        let never = self.events[2];
        assert!(
            client.call(&EventElapsed { start, end: never }).is_err(),
            "never recorded"
        );
        assert!(
            client
                .call(&EventQuery {
                    event: self.dead_event
                })
                .is_err(),
            "it was destroyed"
        );
        let limit = ContextLimit {
            context: other,
            limit: HEAP_LIMIT,
        };
        assert_eq!(client.call(&limit)?.value, self.limit);
        // What is made now is new.
        let (bytes, mut new) = (5000, Vec::new());
        for _ in 0..50 {
            new.push(client.call(&MemoryAlloc { context, bytes })?.value);
        }
        let overlaps = |at: &u64| {
            let mut old = self.memory.iter();
            old.any(|(_, start, length)| *at < start + length && *start < at + bytes)
        };
        assert!(!new.iter().any(overlaps));
        for address in new {
            client.call(&MemoryFree { context, address })?;
        }
        Ok(())
    }

    /// Gives back host memory.
    pub(crate) fn free_host(&mut self, client: &SessionClient) -> Result<(), SessionError> {
        for (index, memory) in self.host.drain(..).enumerate() {
            client.host_free(self.contexts[index % 2], memory)?;
        }
        Ok(())
    }

    /// Gives back all memory, and the module.
    pub(crate) fn free(mut self, client: &SessionClient) -> Result<(), SessionError> {
        self.free_host(client)?;
        for (context, address, _) in &self.memory {
            let (context, address) = (*context, *address);
            client.call(&MemoryFree { context, address })?;
        }
        let module = self.module;
        client.call(&ModuleUnload { module }).map(drop)
    }
}

/// A graph of one node that does nothing.
pub(crate) fn a_graph(client: &SessionClient, context: u64) -> Result<u64, SessionError> {
    let node = GraphNode {
        after: Vec::new(),
        call: 0,
        body: Vec::new(),
    };
    client.graph_instantiate(context, &vec![node], GraphOptions::default())
}

/// Copies of a snapshot with a wrong byte in each part, and one that is too short.
pub(crate) fn damages(file: &File) -> Vec<File> {
    let mut bytes = Vec::new();
    let mut source = file.try_clone().unwrap();
    source.rewind().unwrap();
    source.read_to_end(&mut bytes).unwrap();
    let manifest = Snapshot::open(file).unwrap().manifest().clone();
    let wrong = [
        3,
        manifest.session.at + 40,
        manifest.memory.at + 9,
        bytes.len() as u64 - 9,
    ];
    let mut damaged: Vec<Vec<u8>> = (wrong.into_iter())
        .map(|at| {
            let mut bytes = bytes.clone();
            bytes[at as usize] ^= 4;
            bytes
        })
        .collect();
    damaged.push(bytes[..bytes.len() - 1].to_vec());
    let written = damaged.into_iter().map(|bytes| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        file
    });
    written.collect()
}
