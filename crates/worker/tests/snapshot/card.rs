//! Snapshots of a device with a driver, which is a stand-in here: kernels only note what they were given, memory is real.

use std::sync::Arc;

use mica_backend_cuda::CudaGpu;
use mica_gpu::Gpu;
use mica_limits::{Environment, connect_session};
use mica_wire::session::client::SessionClient;
use mica_wire::session::*;
use mica_worker::{DeviceSource, OutputBuffer, WorkerConfig, WorkerError, join_confined, run_with};

use super::stand_in::StandIn;
use super::support::{MIB, environment};
use super::{restore, snapshot, start_with, swappable};

const PTX: &[u8] = b".version 8.0\n.target sm_90\n.global .u32 counter;\n\0";
const MALLOC: &[u8] =
    b".version 8.0\n.target sm_90\n.extern .func (.param .b64 r) malloc (.param .b64 n);\n\0";

struct Card(Arc<CudaGpu>);

impl DeviceSource for Card {
    fn open(&self, _: Arc<OutputBuffer>) -> Result<Arc<dyn Gpu>, WorkerError> {
        Ok(Arc::clone(&self.0) as _)
    }

    fn open_at(
        &self,
        output: Arc<OutputBuffer>,
        address_space: (u64, u64),
    ) -> Result<Arc<dyn Gpu>, WorkerError> {
        let continued = self.0.continue_in(address_space);
        continued.map_err(|error| WorkerError::Device(error.to_string()))?;
        self.open(output)
    }
}

/// A worker whose driver puts the variable of a module at so many times 4 GiB.
fn serve(place: i32) {
    if Environment::read().is_none() {
        return;
    }
    let config = WorkerConfig {
        nvidia: true,
        ..WorkerConfig::from_environment().unwrap()
    };
    let link = join_confined(&config).unwrap();
    let (stand_in, gpu) = StandIn::open();
    stand_in.set("fake_vmm", place);
    gpu.make_continuable();
    run_with(&config, link, Arc::new(Card(Arc::new(gpu)))).unwrap();
}

/// Not a test of its own: a worker of the tests below.
#[test]
#[ignore = "no test: the tests below start a daemon, which runs this (--exact card::worker --ignored) as the worker of a virtual GPU"]
fn worker() {
    serve(0x6e00);
}

/// Not a test of its own: a worker whose driver puts variables elsewhere.
#[test]
#[ignore = "no test: a test below starts a daemon, which runs this (--exact card::other_worker --ignored) as the worker of a virtual GPU"]
fn other_worker() {
    serve(0x6d00);
}

const SIZES: [u64; 5] = [100, 4096, 70_000, 3 << 20, 70 << 20];

struct Program {
    client: SessionClient,
    context: u64,
    stream: u64,
    other_stream: u64,
    events: [u64; 3],
    elapsed: f32,
    module: u64,
    memory: Vec<(u64, u64)>,
    variable: u64,
}

fn contents(index: usize, bytes: u64) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at * 5 + at / 249 + index as u64) as u8)
        .collect()
}

impl Program {
    fn begin(client: SessionClient) -> Self {
        let made = client.call(&ContextCreate { flags: 0 }).unwrap();
        let (context, stream) = (made.context, made.default_stream);
        let other = StreamCreate {
            context,
            non_blocking: true,
            priority: 0,
        };
        let other_stream = client.call(&other).unwrap().value;
        let module = client.module_load(context, PTX, false).unwrap();
        let event = |disable_timing| {
            let event = EventCreate {
                context,
                disable_timing,
            };
            client.call(&event).unwrap().value
        };
        let events = [event(false), event(false), event(true)];
        for event in events {
            client.post(&EventRecord { event, stream }, &[]).unwrap();
            client.synchronize(stream).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let (start, end) = (events[0], events[1]);
        let elapsed = client.call(&EventElapsed { start, end }).unwrap().value;
        let memory = SIZES.map(|bytes| {
            (
                client.call(&MemoryAlloc { context, bytes }).unwrap().value,
                bytes,
            )
        });
        for (index, (at, bytes)) in memory.iter().enumerate() {
            client.write(stream, *at, &contents(index, *bytes)).unwrap();
        }
        let variable = module.globals[0].address;
        client.write(stream, variable, &[1, 2, 3, 4]).unwrap();
        Self {
            client,
            context,
            stream,
            other_stream,
            events,
            elapsed,
            module: module.module,
            memory: memory.to_vec(),
            variable,
        }
    }

    fn check(&self) {
        for (index, (at, bytes)) in self.memory.iter().enumerate() {
            let mut seen = vec![0; *bytes as usize];
            self.client.read(self.other_stream, *at, &mut seen).unwrap();
            assert!(seen == contents(index, *bytes), "{bytes} bytes at {at:#x}");
        }
        let mut seen = [0; 4];
        self.client
            .read(self.stream, self.variable, &mut seen)
            .unwrap();
        assert_eq!(seen, [1, 2, 3, 4]);
        let [start, end, untimed] = self.events;
        let elapsed = self
            .client
            .call(&EventElapsed { start, end })
            .unwrap()
            .value;
        assert!(
            (elapsed - self.elapsed).abs() < 0.01,
            "{elapsed} {}",
            self.elapsed
        );
        assert!(self.client.call(&EventQuery { event: untimed }).is_ok());
        let launch = Launch {
            stream: self.stream,
            module: self.module,
            kernel: 0,
            grid: [1; 3],
            block: [1; 3],
            dynamic_shared: 0,
            cooperative: false,
        };
        self.client.launch(&launch, &[0; 12]).unwrap();
        self.client.synchronize(self.stream).unwrap();
        let (context, bytes) = (self.context, 5 << 20);
        let address = self
            .client
            .call(&MemoryAlloc { context, bytes })
            .unwrap()
            .value;
        let is_apart = |(at, length): &(u64, u64)| address >= at + length || address + bytes <= *at;
        assert!(self.memory.iter().all(is_apart));
        self.client.call(&MemoryFree { context, address }).unwrap();
    }
}

#[test]
fn a_program_on_a_card_goes_on_at_the_same_addresses_after_its_worker_and_the_daemon_have_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (mut daemon, mut control) = start_with(dir.path(), "card::worker");
    let created = control
        .create(&mica_control::api::VgpuSpec {
            memory_limit_bytes: Some(128 * MIB),
            ..swappable("card")
        })
        .unwrap();
    let client = connect_session(&environment(&created), "test").unwrap();
    let program = Program::begin(client);
    for _ in 0..2 {
        let file = snapshot(&control, &created)
            .unwrap_or_else(|why| panic!("{why}: {:#?}", control.past_events()));
        drop(daemon);
        (daemon, control) = start_with(dir.path(), "card::worker");
        restore(&control, &created, &file).unwrap();
        program.check();
    }
    // Where the driver puts a variable elsewhere, the program waits on.
    let file = snapshot(&control, &created).unwrap();
    drop(daemon);
    (daemon, control) = start_with(dir.path(), "card::other_worker");
    let text = restore(&control, &created, &file).unwrap_err();
    assert!(text.contains("variable counter of a module"), "{text}");
    drop(daemon);
    (daemon, control) = start_with(dir.path(), "card::worker");
    restore(&control, &created, &file).unwrap();
    program.check();
    // What only the driver has is named, and the program goes on.
    let context = program.context;
    let module = program
        .client
        .module_load(context, MALLOC, false)
        .unwrap()
        .module;
    let text = snapshot(&control, &created).unwrap_err();
    assert!(text.contains("malloc"), "{text}");
    program.client.call(&ModuleUnload { module }).unwrap();
    program.check();
    snapshot(&control, &created).unwrap();
    drop(daemon);
}

#[test]
fn memory_that_had_no_room_among_the_addresses_that_can_be_given_again_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start_with(dir.path(), "card::worker");
    let created = control.create(&swappable("card")).unwrap();
    let client = connect_session(&environment(&created), "test").unwrap();
    let made = client.call(&ContextCreate { flags: 0 }).unwrap();
    let context = made.context;
    let is_apart = |address: u64| (1 << 44..1 << 46).contains(&address);
    // All addresses that can be given again, in pieces from large to small.
    let mut reserved = Vec::new();
    for shift in (21..40).rev() {
        let bytes = 1_u64 << shift;
        loop {
            let reserve = AddressReserve { bytes, align: 0 };
            let address = client.call(&reserve).unwrap().value;
            reserved.push((address, bytes));
            if !is_apart(address) {
                break;
            }
        }
    }
    let bytes = 3 << 20;
    let address = client.call(&MemoryAlloc { context, bytes }).unwrap().value;
    assert!(!is_apart(address), "{address:#x}");
    for (address, bytes) in reserved {
        client.call(&AddressFree { address, bytes }).unwrap();
    }
    let text = snapshot(&control, &created).unwrap_err();
    assert!(text.contains("addresses"), "{text}");
    client.call(&MemoryFree { context, address }).unwrap();
    let again = client.call(&MemoryAlloc { context, bytes }).unwrap().value;
    assert!(is_apart(again), "{again:#x}");
    let file = snapshot(&control, &created).unwrap();
    restore(&control, &created, &file).unwrap();
    client
        .call(&MemoryFree {
            context,
            address: again,
        })
        .unwrap();
}
