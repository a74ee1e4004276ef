//! A worker on an NVIDIA GPU as a client of the daemon's leases, before a stand-in for the driver.

mod common;

use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use common::host::{Host, until};
use common::nvidia::{PTX, Program};
use common::stand_in::StandIn;
use mica_wire::host::page::{client_flags, gate, suspend};
use mica_wire::session::*;
use mica_worker::{SharedDevice, WorkerConfig, run_with};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const MIB: u64 = 1 << 20;

/// A worker with its stand-ins: a driver whose work ends when the test says so, and the daemon's end of the page.
struct Bench {
    host: Host,
    stand_in: StandIn,
}

impl Bench {
    fn new() -> Self {
        let (stand_in, gpu) = StandIn::open();
        let host = Host::new(256 * MIB);
        host.answer(256 * MIB);
        let config = WorkerConfig {
            environment: host.environment.clone(),
            idle_exit: None,
            max_streams: 0,
            tensor_cores: true,
            tf32: true,
            nvidia: true,
            check: None,
            kernels: Default::default(),
            swap: false,
            guard: false,
            nice: None,
            confinement: None,
        };
        let link = Arc::clone(&host.link);
        std::thread::spawn(move || {
            run_with(&config, link, Arc::new(SharedDevice(Arc::new(gpu)))).unwrap();
        });
        let flags = &host.page.client.flags;
        until(|| flags.load(SeqCst) & client_flags::GATE_CONTROL != 0);
        Self { host, stand_in }
    }

    fn get(&self, name: &str) -> c_int {
        self.stand_in.get(name)
    }

    /// From here on what runs does not end, or does again.
    fn hold(&self, hold: bool) {
        self.stand_in.set("fake_hold", hold.into());
    }

    fn launches(&self) -> u64 {
        self.host.page.counters.launches.load(SeqCst)
    }

    fn drains(&self) -> u64 {
        self.host.page.counters.drains.load(SeqCst)
    }

    fn program(&self) -> Program {
        let (ours, theirs): (OwnedFd, OwnedFd) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        self.host.open_session(theirs);
        Program::begin(ours)
    }
}

/// Runs on a thread of its own.
fn apart<R: Send + 'static>(
    program: &Program,
    run: impl FnOnce(Program) -> R + Send + 'static,
) -> std::thread::JoinHandle<R> {
    let program = program.clone();
    std::thread::spawn(move || run(program))
}

#[test]
fn a_closed_gate_holds_launches_and_nothing_else() {
    let bench = Bench::new();
    let program = bench.program();
    let other = program.another_stream();
    program.launch();
    program.synchronize();
    assert_eq!((bench.launches(), bench.get("fake_launches")), (1, 1));

    bench.host.set(gate::CLOSED, 1, 0);
    program.launch();
    until(|| bench.host.waiting() == 1);
    // What needs no turn is served: memory, modules, streams, questions, small copies of other calls' answers.
    let address = program.alloc(4096);
    assert_eq!(
        program.client.call(&MemoryInfo {}).unwrap().limit_bytes,
        256 * MIB
    );
    program
        .client
        .module_load(program.context, PTX, false)
        .unwrap();
    let third = program.another_stream();
    assert!(
        !program.is_done(program.stream),
        "its work has not even begun"
    );
    assert!(program.is_done(other) && program.is_done(third));
    program
        .client
        .call(&StreamSynchronize { stream: other })
        .unwrap();
    assert_eq!((bench.launches(), bench.get("fake_launches")), (1, 1));

    // What comes after it in its stream comes after it.
    let waiter = apart(&program, |program| program.synchronize());
    let reader = apart(&program, move |program| {
        program
            .client
            .write(program.stream, address, &[7; 16])
            .unwrap();
        let mut back = [0; 16];
        program
            .client
            .read(program.stream, address, &mut back)
            .unwrap();
        back
    });
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!waiter.is_finished() && !reader.is_finished());
    assert_eq!(bench.get("fake_copies"), 0);
    bench.host.set(gate::OPEN, 2, 0);
    waiter.join().unwrap();
    assert_eq!(reader.join().unwrap(), [7; 16]);
    assert_eq!((bench.launches(), bench.get("fake_launches")), (2, 2));
    assert_eq!(bench.host.waiting(), 0);
}

#[test]
fn calls_keep_their_order_through_a_closed_gate() {
    let bench = Bench::new();
    let program = bench.program();
    let address = program.alloc(4 * MIB);
    bench.host.set(gate::CLOSED, 1, 0);
    // More than may be in line at once, and between them what needs no turn itself.
    let writer = apart(&program, move |program| {
        for value in 0..3000_u32 {
            if value % 3 == 0 {
                program.launch();
            }
            let bytes = value.to_le_bytes();
            program
                .client
                .write(program.stream, address, &bytes)
                .unwrap();
        }
        let mut back = [0; 4];
        program
            .client
            .read(program.stream, address, &mut back)
            .unwrap();
        u32::from_le_bytes(back)
    });
    until(|| bench.host.waiting() == 1);
    // By leases and without.
    for turn in 0..20 {
        bench.host.set(
            gate::LEASED,
            2 + turn,
            mica_limits::monotonic_ns() + 300_000,
        );
        until(|| bench.host.yielded() == 2 + turn);
    }
    bench.host.set(gate::OPEN, 30, 0);
    assert_eq!(writer.join().unwrap(), 2999);
    assert_eq!((bench.launches(), bench.get("fake_launches")), (1000, 1000));
}

#[test]
fn large_copies_fills_and_graphs_wait_like_launches() {
    let bench = Bench::new();
    let program = bench.program();
    let (client, stream) = (&program.client, program.stream);
    let address = program.alloc(4 * MIB);
    let mut body = program.kernel(0).encode().as_slice().to_vec();
    body.extend([0; 12]);
    let nodes = vec![GraphNode {
        after: Vec::new(),
        call: Launch::NUMBER,
        body,
    }];
    let graph = client
        .graph_instantiate(program.context, &nodes, GraphOptions::default())
        .unwrap();
    let fill = |width| Fill {
        stream,
        address,
        pitch: 0,
        value: 1,
        element_bytes: 1,
        width,
        height: 1,
    };
    let submit: [&dyn Fn(); 3] = [
        &|| client.post(&GraphLaunch { graph, stream }, &[]).unwrap(),
        &|| client.post(&fill(2 * MIB), &[]).unwrap(),
        &|| client.write(stream, address, &vec![0; 2 << 20]).unwrap(),
    ];
    for (turn, submit) in (0_u32..).zip(submit) {
        // Small ones do not.
        client.post(&fill(16), &[]).unwrap();
        program.synchronize();
        let before = bench.launches();
        bench.host.set(gate::CLOSED, 2 * turn + 1, 0);
        std::thread::scope(|scope| {
            let bench = &bench;
            scope.spawn(move || {
                until(|| bench.host.waiting() == 1);
                assert_eq!(bench.launches(), before);
                bench.host.set(gate::OPEN, 2 * turn + 2, 0);
            });
            submit();
            program.synchronize();
        });
        assert!(bench.launches() > before);
    }
    assert_eq!(bench.get("fake_launches"), 1);
}

#[test]
fn a_lease_that_ended_is_drained_and_given_back() {
    let bench = Bench::new();
    let program = bench.program();
    program.launch();
    until(|| bench.launches() == 1);
    // Its work goes on for a while.
    bench.hold(true);
    bench.host.set(gate::LEASED, 5, 1);
    until(|| bench.get("fake_inside") == 1);
    assert_eq!(bench.host.yielded(), 0);
    program.launch();
    until(|| bench.host.waiting() == 1);
    // No thread of the session waits for it: the program is served.
    program.alloc(4096);
    bench.hold(false);
    until(|| bench.host.yielded() == 5);
    assert_eq!(bench.launches(), 1);
    bench.host.grant(6);
    program.synchronize();
    assert_eq!((bench.launches(), bench.get("fake_launches")), (2, 2));
    until(|| bench.host.yielded() == 6);
}

#[test]
fn no_more_is_queued_under_a_lease_than_can_finish_soon() {
    let bench = Bench::new();
    let program = bench.program();
    program.launch();
    until(|| bench.launches() == 1);
    bench.hold(true);
    bench.host.grant(1);
    for _ in 0..100 {
        program.launch();
    }
    until(|| bench.get("fake_inside") == 1);
    let queued = bench.launches();
    assert!(queued < 50, "{queued} launches are queued");
    bench.hold(false);
    // The holder may have been seen idle meanwhile, and its lease is gone.
    let mut sequence = 1;
    while bench.launches() < 101 {
        if bench.host.yielded() == sequence {
            sequence += 1;
            bench.host.grant(sequence);
        }
        std::thread::yield_now();
    }
}

#[test]
fn waits_of_bursty_programs_are_counted() {
    let bench = Bench::new();
    let program = bench.program();
    for round in 1..=5 {
        program.launch();
        program.synchronize();
        assert_eq!((bench.launches(), bench.drains()), (round, round));
    }
    program.synchronize();
    assert_eq!(bench.drains(), 5, "the same moment, waited for again");
    let context = program.context;
    let request = EventCreate {
        context,
        disable_timing: false,
    };
    let event = program.client.call(&request).unwrap().value;
    let stream = program.stream;
    let record = EventRecord { event, stream };
    program.launch();
    program.client.post(&record, &[]).unwrap();
    program.launch();
    program.client.call(&EventSynchronize { event }).unwrap();
    assert_eq!(bench.drains(), 6, "one is left, which is next to nothing");
    program.launch();
    assert!(program.client.call(&EventQuery { event }).unwrap().value);
    assert_eq!(bench.drains(), 6, "two are left");
    program
        .client
        .call(&ContextSynchronize { context })
        .unwrap();
    assert_eq!(bench.drains(), 7);
    let finished = bench.host.page.counters.finished.load(SeqCst);
    assert_eq!(finished, bench.launches(), "nothing else is used");
    // Of two streams one was waited for: that is no proof that nothing runs.
    program.launch_on(program.another_stream());
    program.launch();
    program.synchronize();
    assert_eq!(bench.drains(), 8);
    assert_ne!(
        bench.host.page.counters.finished.load(SeqCst),
        bench.launches()
    );
    bench.host.grant(1);
    until(|| bench.host.yielded() == 1);
    assert_eq!(
        bench.host.page.counters.finished.load(SeqCst),
        bench.launches()
    );
}

#[test]
fn reads_through_staging_wait_once_for_kernels_and_not_for_uploads() {
    let bench = Bench::new();
    let program = bench.program();
    let (client, stream) = (&program.client, program.stream);
    let bytes: Vec<u8> = (0..MIB as usize + 4096)
        .map(|at| (at % 251) as u8)
        .collect();
    let address = program.alloc(bytes.len() as u64);
    let context = program.context;
    client.call(&ContextSynchronize { context }).unwrap();
    let waits = || bench.get("fake_stream_waits");
    let before = waits();
    for _ in 0..3 {
        client.write(stream, address, &bytes).unwrap();
        let mut back = vec![0; bytes.len()];
        client.read(stream, address, &mut back).unwrap();
        assert!(back == bytes);
        client.read(stream, address, &mut back[..4096]).unwrap();
        assert!(client.has_only_uploads());
    }
    assert_eq!(waits(), before, "there is nothing to wait for but copies");
    program.launch();
    let mut back = vec![0; bytes.len()];
    client.read(stream, address, &mut back).unwrap();
    assert!(back == bytes);
    assert_eq!(waits(), before + 1, "the driver prints for the kernel");
}

#[test]
fn a_worker_whose_work_does_not_drain_obeys() {
    let bench = Bench::new();
    let program = bench.program();
    until(|| bench.host.page.client.flags.load(SeqCst) & client_flags::CONTEXT != 0);
    program.launch();
    until(|| bench.launches() == 1);
    bench.hold(true);
    bench.host.set(gate::LEASED, 5, 1);
    until(|| bench.get("fake_inside") == 1);
    program.launch();
    until(|| bench.host.waiting() == 1);
    // The stand-in has no channels to stop: what is asked of the worker is tried, and told.
    let done = &bench.host.page.client.command_done;
    let told = || bench.host.notes_of("cannot be suspended");
    for (times, what) in (1..).zip([suspend::PAUSE, suspend::STOP]) {
        let command = bench.host.command(what);
        until(|| done.load(SeqCst) == command && told() == times);
        let command = bench.host.command(suspend::RUN);
        until(|| done.load(SeqCst) == command);
    }
    // Marked by the arbiter, it goes on without leases while its work still runs.
    bench.host.set(gate::CLOSED, 5, 0);
    bench.host.set(gate::OPEN, 6, 0);
    until(|| bench.get("fake_launches") == 2);
    assert_eq!(bench.host.yielded(), 0);
    bench.hold(false);
    until(|| bench.host.yielded() == 5);
}

#[test]
fn a_session_that_dies_at_the_gate_leaves_nothing_and_holds_up_nobody() {
    let bench = Bench::new();
    let (one, two, three) = (bench.program(), bench.program(), bench.program());
    two.launch();
    two.synchronize();
    // One that ends with work that it never waits for: that has ended with it.
    three.launch();
    until(|| bench.launches() == 2);
    let finished = || bench.host.page.counters.finished.load(SeqCst);
    assert_eq!(finished(), 1);
    drop(three);
    until(|| finished() == 2);
    bench.host.set(gate::CLOSED, 1, 0);
    for _ in 0..10 {
        one.launch();
    }
    until(|| bench.host.waiting() == 1);
    // It ends with its gate still closed.
    let contexts = bench.get("fake_contexts");
    drop(one);
    until(|| bench.get("fake_contexts") == contexts - 1);
    until(|| bench.host.waiting() == 0);
    assert_eq!(bench.launches(), 2);
    two.alloc(4096);
    two.launch();
    until(|| bench.host.waiting() == 1);
    bench.host.set(gate::OPEN, 2, 0);
    two.synchronize();
    assert_eq!((bench.launches(), bench.get("fake_launches")), (3, 3));
    until(|| bench.host.page.traffic.sessions.load(SeqCst) == 1);
    let has_context = || bench.host.page.client.flags.load(SeqCst) & client_flags::CONTEXT != 0;
    assert!(has_context());
    drop(two);
    until(|| !has_context());
}

#[test]
fn a_host_function_that_returns_is_heard_while_its_program_is_at_the_gate() {
    let bench = Bench::new();
    let program = bench.program();
    let stream = program.stream;
    // The stand-in calls it on the thread that adds it, so another one's call waits for the answer.
    let callback = StreamCallback {
        stream,
        callback: 77,
    };
    let (one, two) = (program.clone(), program.another_stream());
    let answered = std::thread::spawn(move || {
        let client = &one.client;
        while client
            .next_notice(std::time::Duration::from_millis(100))
            .unwrap()
            != Some(77)
        {}
        client.post(&CallbackDone { callback: 77 }, &[]).unwrap();
    });
    bench.host.set(gate::CLOSED, 1, 0);
    program.launch_on(two);
    until(|| bench.host.waiting() == 1);
    program.client.post(&callback, &[]).unwrap();
    // Answered, so what came before it has been read.
    program.client.call(&MemoryInfo {}).unwrap();
    // It is in line behind the launch; both go when the gate opens, and the answer finds the ring read.
    bench.host.set(gate::OPEN, 2, 0);
    answered.join().unwrap();
    program.synchronize();
    assert_eq!(bench.get("fake_launches"), 1);
}

#[test]
fn as_many_waits_as_a_program_can_have_get_through_in_line() {
    let bench = Bench::new();
    let program = bench.program();
    bench.host.set(gate::CLOSED, 1, 0);
    let threads: Vec<_> = (0..SLOTS)
        .map(|_| {
            apart(&program, |program| {
                for _ in 0..20 {
                    program.launch();
                    program.synchronize();
                }
            })
        })
        .collect();
    until(|| bench.host.waiting() == 1);
    for turn in 2..50 {
        bench.host.grant(turn);
        std::thread::yield_now();
        bench.host.set(gate::CLOSED, turn, 0);
    }
    bench.host.set(gate::OPEN, 50, 0);
    for thread in threads {
        thread.join().unwrap();
    }
    let launches = 20 * SLOTS as u64;
    assert_eq!(
        (bench.launches(), bench.get("fake_launches") as u64),
        (launches, launches)
    );
}
