//! What is recorded of a program is what it did, through a real daemon and a real worker.

mod home;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use home::Home;
use mica_control::api::{ProfileActivity, ProfileLevel, SetProfile};
use mica_control::client::ControlClient;
use mica_limits::{Environment, monotonic_ns, open_session};
use mica_views::profile::{Recorded, occupation};
use mica_wire::session::client::SessionClient;
use mica_wire::session::*;

/// Counts to `n` in each thread.
const SPIN: &str = ".version 7.0\n.target sm_75\n.address_size 64\n\
    .visible .entry _Z4spini(.param .u32 n)\n{\n.reg .b32 %r<3>; .reg .pred %p;\n\
    ld.param.u32 %r1, [n];\nmov.u32 %r2, 0;\nL:\nadd.u32 %r2, %r2, 1;\n\
    setp.lt.u32 %p, %r2, %r1;\n@%p bra L;\nret;\n}\n";

/// A program in a virtual GPU.
struct Program {
    client: SessionClient,
    stream: u64,
    module: u64,
    memory: u64,
}

impl Program {
    fn new(environment: &Environment) -> Self {
        let (_, socket) = open_session(environment).unwrap();
        let client = SessionClient::connect(socket, "profiled").unwrap();
        let new = client.call(&ContextCreate { flags: 0 }).unwrap();
        let (context, stream) = (new.context, new.default_stream);
        let module = client.module_load(context, SPIN.as_bytes(), false).unwrap();
        let bytes = 2 << 20;
        let memory = client.call(&MemoryAlloc { context, bytes }).unwrap().value;
        Self {
            client,
            stream,
            module: module.module,
            memory,
        }
    }

    fn launch(&self, iterations: u32) {
        let launch = Launch {
            stream: self.stream,
            module: self.module,
            kernel: 0,
            grid: [2, 1, 1],
            block: [32, 1, 1],
            dynamic_shared: 0,
            cooperative: false,
        };
        self.client
            .launch(&launch, &iterations.to_le_bytes())
            .unwrap();
    }

    fn copy(&self, bytes: u64) {
        let (from, to) = (self.memory, self.memory + (1 << 20));
        let area = CopyBox::linear(CopyPlace::Device(to), CopyPlace::Device(from), bytes);
        let stream = self.stream;
        self.client.post(&Copy { stream, area }, &[]).unwrap();
    }

    fn wait(&self) {
        let stream = self.stream;
        self.client.call(&StreamSynchronize { stream }).unwrap();
    }

    /// Takes what was recorded, as Mica's library in a program does.
    fn take(&self, into: &mut Recorded) {
        for (kind, bytes) in self.client.take_output().unwrap() {
            assert_eq!(kind, 3, "{:?}", String::from_utf8_lossy(&bytes));
            let lines = bytes.split_inclusive(|byte| *byte == b'\n');
            lines.for_each(|line| into.take(line));
        }
    }
}

fn control(home: &Path) -> ControlClient {
    ControlClient::new(home.join("run/control.sock"))
}

#[test]
fn every_kernel_copy_and_wait_is_recorded_once_and_in_order() {
    let home = Home::new();
    let environment = home.create("a", "");
    let daemon = control(home.path());
    let every_span = SetProfile {
        level: ProfileLevel::Spans,
        seconds: None,
    };
    daemon.set_profile("a", &every_span).unwrap();
    let program = Program::new(&environment);
    let mut recorded = Recorded::default();
    let began_ns = monotonic_ns();
    for _ in 0..50 {
        program.launch(1000);
        program.launch(20_000);
        program.copy(1 << 20);
        program.wait();
        program.take(&mut recorded);
    }
    let ended_ns = monotonic_ns();
    assert_eq!((recorded.unreadable, recorded.lost()), (0, 0));
    let lines = recorded.lines();
    let calls = |activity: ProfileActivity, name: &str| {
        let mut lines = lines.iter();
        let line = lines.find(|line| line.activity == activity && line.name == name);
        let line = line.unwrap_or_else(|| panic!("no {activity} {name} in {lines:?}"));
        (line.calls, line.bytes)
    };
    assert_eq!(calls(ProfileActivity::Kernel, "spin(int)"), (100, 0));
    assert_eq!(calls(ProfileActivity::Compile, "spin(int)").0, 1);
    let copied = calls(ProfileActivity::Copy, "device to device");
    assert_eq!(copied, (50, 50 << 20));
    // The last wait's own record comes after its answer's output was taken.
    let waits = calls(ProfileActivity::Wait, "StreamSynchronize").0;
    assert!((49..=50).contains(&waits), "{waits} waits");
    let work = [ProfileActivity::Kernel, ProfileActivity::Copy];
    let mut last_end_ns = began_ns;
    for span in recorded.spans.iter().filter(|s| work.contains(&s.activity)) {
        // One stream: in order, each after it was submitted and after the one before, all within this test.
        assert!(span.queued_ns <= span.begin_ns, "{span:?}");
        assert!(
            span.begin_ns >= last_end_ns,
            "{span:?} before {last_end_ns}"
        );
        assert!(span.end_ns > span.begin_ns, "{span:?}");
        last_end_ns = span.end_ns;
    }
    assert!(last_end_ns <= ended_ns);
    let occupied = occupation(&recorded);
    assert!(occupied.busy_ns > 0 && occupied.busy_ns <= ended_ns - began_ns);

    drop(program);
    // The worker's last word, which outlives it.
    let profile = (0..100).find_map(|_| {
        std::thread::sleep(Duration::from_millis(50));
        let profile = daemon.profile("a").unwrap();
        let kernel = profile.lines.first().is_some_and(|line| line.calls == 100);
        kernel.then_some(profile)
    });
    let profile = profile.expect("the daemon knows all kernels");
    assert_eq!(profile.lines[0].name, "spin(int)");
}

#[test]
fn what_runs_in_a_virtual_gpu_can_be_looked_at() {
    let home = Home::new();
    let environment = home.create("a", "");
    let over = Arc::new(AtomicBool::new(false));
    let runs = {
        let over = Arc::clone(&over);
        std::thread::spawn(move || {
            let program = Program::new(&environment);
            while !over.load(Ordering::Relaxed) {
                program.launch(20_000);
                program.wait();
                assert!(program.client.take_output().unwrap().is_empty());
            }
        })
    };
    let daemon = control(home.path());
    while daemon.get("a").unwrap().launches_total == 0 {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(daemon.profile("a").unwrap().lines, []);
    let looked = home.mica("profile --vgpu a --seconds 1.5 --json");
    let looked: serde_json::Value = serde_json::from_str(&looked).unwrap();
    assert_eq!(looked["level"], "off", "{looked}");
    let kernel = &looked["lines"][0];
    assert_eq!(kernel["name"], "spin(int)", "{looked}");
    assert!(kernel["calls"].as_u64().unwrap() > 0, "{looked}");
    assert!(!home.mica("show a").contains("profiled for"), "it is over");

    let for_a_second = SetProfile {
        level: ProfileLevel::Sums,
        seconds: Some(3.0),
    };
    daemon.set_profile("a", &for_a_second).unwrap();
    let shown = (0..100).map(|_| {
        std::thread::sleep(Duration::from_millis(50));
        home.mica("show a")
    });
    let mut shown = shown.filter(|shown| shown.contains("profiled for"));
    assert!(shown.any(|shown| shown.contains("spin(int)")));
    // Nobody ends it, so the daemon does.
    let ended = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        !daemon.get("a").unwrap().profiled
    });
    assert!(ended);
    over.store(true, Ordering::Relaxed);
    runs.join().unwrap();
}

#[test]
fn wrong_usage_is_told_before_anything_runs() {
    let home = Home::new();
    let fails = |line: &str| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_mica"))
            .args(line.split(' '))
            .env("MICA_RUNTIME_DIR", home.path().join("run"))
            .env("MICA_LIB_DIR", home.path())
            .env_remove("MICA_CONFIG")
            .output()
            .unwrap();
        assert!(!output.status.success(), "mica {line}");
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, said) = fails("profile --mode direct -- true");
    assert_eq!(code, Some(125), "{said}");
    assert!(
        said.contains("isolated mode") && said.contains("nsys"),
        "{said}"
    );
    let (_, said) = fails("profile -o /no/such/folder/t.json -- true");
    assert!(
        said.starts_with("mica: /no/such/folder/t.json cannot be written: "),
        "{said}"
    );
    let (code, said) = fails("profile --gpu software -m 64MiB -- /no/such/program");
    assert_eq!(code, Some(127), "{said}");
    let (_, said) = fails("profile --vgpu nobody");
    assert!(said.contains("nobody"), "{said}");
    let (code, said) = fails("profile --vgpu nobody -- true");
    assert_eq!(code, Some(2), "{said}");
    let (code, _) = fails("profile");
    assert_eq!(code, Some(2));
    let idle = home.mica("profile --gpu software -m 64MiB --json -- true");
    let idle: serde_json::Value = serde_json::from_str(&idle).unwrap();
    assert_eq!(idle["lines"], serde_json::json!([]));
}
