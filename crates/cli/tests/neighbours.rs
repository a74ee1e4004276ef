//! Two programs of one virtual GPU, each a process with a worker of its own, through a real daemon: they can neither
//! read nor fault each other. One that ends while the virtual GPU is suspended, or while a kernel of it is compiled, leaves
//! nothing charged.

mod home;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use home::Home;
use mica_limits::{Environment, connect_session};
use mica_wire::session::client::SessionClient;
use mica_wire::session::*;

/// Says which part this process plays; the tests start this file again with it.
const PART: &str = "NEIGHBOURS_PART";
const SECRET: &[u8; 16] = b"nobody else's 42";
const MEMORY: u64 = 8 << 20;
const KERNELS: &[u8] = b".version 7.0\n.target sm_70\n.address_size 64
.visible .entry endless(.param .u64 p)\n{
    .reg .b64 %a; .reg .b32 %v;
    ld.param.u64 %a, [p];
again:
    ld.volatile.global.u32 %v, [%a]; st.volatile.global.u32 [%a], %v;
    bra again;
}
.visible .entry store(.param .u64 p)\n{
    .reg .b64 %a; .reg .b32 %v;
    ld.param.u64 %a, [p]; mov.u32 %v, 7; st.global.u32 [%a], %v; ret;
}\n\0";

/// Steps and registers of a kernel that takes seconds to compile, most of them in one call of the code generator.
const STEPS: u32 = 30_000;
const REGISTERS: u32 = 400;

/// Such a kernel. No text comes twice, so that nothing is found compiled.
fn slow() -> Vec<u8> {
    let nobody_elses = (std::process::id(), std::time::SystemTime::now());
    let mut text = format!(
        "// {nobody_elses:?}\n.version 7.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 p)\n{{\n\
         .reg .u64 %a; .reg .f32 %f<{REGISTERS}>;\nld.param.u64 %a, [p];\n"
    );
    for at in 0..REGISTERS {
        text += &format!("ld.global.f32 %f{at}, [%a+{}];\n", 4 * at);
    }
    for step in 0..STEPS {
        let [d, a, b] = [step, step * 7 + 1, step * 13 + 5].map(|n| n % REGISTERS);
        text += &format!("fma.rn.f32 %f{d}, %f{a}, %f{b}, %f{d};\n");
    }
    for at in 0..REGISTERS {
        text += &format!("st.global.f32 [%a+{}], %f{at};\n", 4 * at);
    }
    (text + "ret;\n}\n\0").into_bytes()
}

/// A program of the virtual GPU, with some memory.
struct Program {
    client: SessionClient,
    stream: u64,
    module: u64,
    address: u64,
}

impl Program {
    fn new(environment: &Environment) -> Self {
        // The worker of this process's last session may end just now: another one is asked for then.
        let client = connect_session(environment, "neighbour").unwrap();
        let new = client.call(&ContextCreate { flags: 0 }).unwrap();
        let (context, bytes) = (new.context, MEMORY);
        let module = client.module_load(context, KERNELS, false).unwrap().module;
        let address = client.call(&MemoryAlloc { context, bytes }).unwrap().value;
        Self {
            client,
            stream: new.default_stream,
            module,
            address,
        }
    }

    fn launch(&self, kernel: u32, address: u64) {
        let launch = Launch {
            stream: self.stream,
            module: self.module,
            kernel,
            grid: [1; 3],
            block: [1; 3],
            dynamic_shared: 0,
            cooperative: false,
        };
        self.client.launch(&launch, &address.to_le_bytes()).unwrap();
    }

    fn wait(&self) -> Result<(), SessionError> {
        let stream = self.stream;
        self.client.call(&StreamSynchronize { stream }).map(drop)
    }

    fn read(&self, address: u64) -> Result<[u8; 16], SessionError> {
        let mut bytes = [0; 16];
        self.client.read(self.stream, address, &mut bytes)?;
        Ok(bytes)
    }
}

/// Not a test of its own: those below run it in processes of their own.
#[test]
#[ignore = "no test: the tests below run this (--exact as_a_program --ignored) as a program of a virtual GPU"]
fn as_a_program() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    let environment = Environment::read().unwrap().unwrap();
    let program = Program::new(&environment);
    match part.as_str() {
        "endless" => program.launch(0, program.address),
        "slow" | "leaves" => return compile(program, &part),
        _ => (program.client)
            .write(program.stream, program.address, SECRET)
            .unwrap(),
    }
    println!("\nready {}", program.address);
    // Until the other end of standard input goes, which is the test.
    for line in std::io::stdin().lines() {
        drop(line.unwrap());
        let right = program.read(program.address).is_ok_and(|b| b == *SECRET);
        program.launch(1, program.address + 64);
        let computes = program.wait().is_ok();
        println!("\nright {}", right && computes);
    }
}

/// Has a slow kernel compiled. One that leaves gives its session up when it is told to, and lives on.
fn compile(mut program: Program, part: &str) {
    let new = program.client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, bytes) = (new.context, 4 * u64::from(REGISTERS));
    program.stream = new.default_stream;
    let loaded = program.client.module_load(context, &slow(), false);
    program.module = loaded.unwrap().module;
    let memory = program.client.call(&MemoryAlloc { context, bytes });
    program.address = memory.unwrap().value;
    println!("\nready");
    program.launch(0, program.address);
    let mut lines = std::io::stdin().lines();
    if part == "leaves" {
        lines.next().unwrap().unwrap();
        drop(program);
        println!("\nleft");
        lines.next();
        return;
    }
    println!("\ncompiled {}", program.wait().is_ok());
    lines.next();
}

/// A process that plays a part, and what it says.
struct Other {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Other {
    fn start(environment: &Environment, part: &str) -> Self {
        let hex: String = (environment.token.iter())
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "as_a_program", "--ignored", "--nocapture"])
            .env(PART, part)
            .env(Environment::SOCKET, &environment.socket)
            .env(Environment::TOKEN, hex)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    /// The rest of the next line that begins so.
    fn hear(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "it has ended");
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }

    fn say(&mut self, line: &[u8]) {
        use std::io::Write;
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(line).unwrap();
    }

    fn is_right(&mut self) -> bool {
        self.say(b"look\n");
        self.hear("right ") == "true"
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes in use and processes of a virtual GPU.
fn held(home: &Home, name: &str) -> (u64, usize) {
    let shown = home.mica(&format!("show {name} --json"));
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let processes = shown["processes"].as_array().map_or(0, Vec::len);
    (shown["memory_used_bytes"].as_u64().unwrap(), processes)
}

#[test]
fn programs_of_one_virtual_gpu_neither_read_nor_fault_each_other() {
    let home = Home::new();
    let environment = home.create("both", "");
    let mut other = Other::start(&environment, "secret");
    let address: u64 = other.hear("ready ").parse().unwrap();
    assert!(other.is_right());
    // The same address here is this program's own memory, or nobody's.
    let program = Program::new(&environment);
    if let Ok(bytes) = program.read(address) {
        assert_ne!(&bytes, SECRET, "it was read from another program");
    }
    let _ = (program.client).write(program.stream, address, b"overwritten by 1");
    let _ = program.wait();
    drop(program);
    for target in [address, 0x10, address + (1 << 40)] {
        // A fault ends the context it happens in, and no other program's.
        let program = Program::new(&environment);
        program.launch(1, target);
        let faulted = program.wait();
        assert!(target == address || faulted.is_err(), "{target:#x}");
    }
    assert!(other.is_right(), "its memory or its context was touched");
}

#[test]
fn a_program_killed_while_suspended_leaves_nothing_charged() {
    let home = Home::new();
    let environment = home.create("stopped", "");
    let mut other = Other::start(&environment, "endless");
    other.hear("ready ");
    let (bytes, _) = held(&home, "stopped");
    assert!(bytes >= MEMORY, "{bytes}");
    home.mica("suspend stopped");
    other.kill();
    let end = Instant::now() + Duration::from_secs(60);
    while held(&home, "stopped") != (0, 0) {
        assert!(
            Instant::now() < end,
            "{:?} are left",
            held(&home, "stopped")
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    // The next program runs in a new worker.
    home.mica("resume stopped");
    let mut next = Other::start(&environment, "secret");
    next.hear("ready ");
    assert!(next.is_right());
}

/// How long it takes until nothing of a virtual GPU is held any more.
fn until_nothing_is_held(home: &Home, name: &str) -> Duration {
    let began = Instant::now();
    while held(home, name).0 != 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "all is left");
    }
    began.elapsed()
}

#[test]
fn a_program_that_ends_while_a_kernel_is_compiled_leaves_nothing_charged() {
    let home = Home::new();
    let environment = home.create("compiling", "");
    let mut whole = Other::start(&environment, "slow");
    whole.hear("ready");
    let began = Instant::now();
    assert_eq!(whole.hear("compiled "), "true");
    let takes = began.elapsed();
    drop(whole);
    until_nothing_is_held(&home, "compiling");
    let look = until_nothing_is_held(&home, "compiling");
    let mut ends = Vec::new();
    for tenth in [2, 5, 8] {
        for part in ["slow", "leaves"] {
            let mut other = Other::start(&environment, part);
            other.hear("ready");
            std::thread::sleep(takes * tenth / 10);
            match part {
                "slow" => other.kill(),
                _ => other.say(b"leave\n"),
            }
            ends.push(until_nothing_is_held(&home, "compiling"));
        }
    }
    println!("compiling takes {takes:?}, a look {look:?}, ends {ends:?}");
    let most = ends.iter().max().unwrap();
    assert!(*most < takes / 4 + 2 * look, "{ends:?} of {takes:?}");
}
