//! Memory through a real daemon and its workers: regions, which several virtual GPUs share, and what workers keep for
//! later.

mod home;

use std::process::{Command, Output};
use std::time::Duration;

use home::Home;
use mica_limits::{Environment, open_session};
use mica_wire::session::client::SessionClient;
use mica_wire::session::*;

const MIB: u64 = 1 << 20;

/// A program of a virtual GPU, with a worker of its own.
struct Program {
    client: SessionClient,
    context: u64,
    stream: u64,
}

impl Program {
    fn new(environment: &Environment) -> Self {
        let (_, socket) = open_session(environment).unwrap();
        let client = SessionClient::connect(socket, "program").unwrap();
        let made = client.call(&ContextCreate { flags: 0 }).unwrap();
        let (context, stream) = (made.context, made.default_stream);
        Self {
            client,
            context,
            stream,
        }
    }

    /// Opens what a handle names, as `cuIpcOpenMemHandle` does; the address.
    fn open(&self, handle: &SharedHandle) -> Result<u64, SessionError> {
        let opened = self.client.call(&OpenShared { id: handle.id })?;
        let (frame, bytes, access) = (opened.frame, opened.bytes, opened.access);
        let reserved = self.client.call(&AddressReserve { bytes, align: 0 })?;
        let address = reserved.value;
        self.client.call(&FrameMap { address, frame })?;
        self.client.call(&FrameAccess {
            address,
            bytes,
            access,
        })?;
        self.client.call(&FrameRelease { frame })?;
        Ok(address)
    }

    fn write(&self, address: u64, value: u8) -> Result<(), SessionError> {
        self.client.write(self.stream, address, &[value; 64])?;
        self.client.synchronize(self.stream)
    }

    fn byte(&self, address: u64) -> u8 {
        let mut byte = [0];
        self.client.read(self.stream, address, &mut byte).unwrap();
        byte[0]
    }
}

/// Runs a command, whatever becomes of it.
fn mica(home: &Home, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mica"))
        .args(line.split(' '))
        .env("MICA_RUNTIME_DIR", home.path().join("run"))
        .env("MICA_LIB_DIR", home.path())
        .output()
        .unwrap()
}

/// What a command that fails says.
fn refused(home: &Home, line: &str) -> String {
    let output = mica(home, line);
    assert!(!output.status.success(), "mica {line}: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The handle that the programs of a virtual GPU find in their environment.
fn handle_of(home: &Home, vgpu: &str, variable: &str) -> SharedHandle {
    let given = home.mica(&format!("exec {vgpu} -- env"));
    let mut lines = given.lines();
    let hex = lines
        .find_map(|line| line.strip_prefix(variable)?.strip_prefix('='))
        .unwrap_or_else(|| panic!("{variable} is not in {given}"));
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
    SharedHandle::decode(&std::array::from_fn(byte), SharedKind::Allocation).unwrap()
}

fn used_bytes(home: &Home, vgpu: &str) -> u64 {
    let shown: serde_json::Value =
        serde_json::from_str(&home.mica(&format!("show {vgpu} --json"))).unwrap();
    shown["memory_used_bytes"].as_u64().unwrap()
}

#[test]
fn one_copy_of_the_weights_serves_several_virtual_gpus_and_counts_once() {
    let home = Home::new();
    let [loader, reader, stranger] =
        ["loader", "reader", "stranger"].map(|name| home.create(name, ""));
    home.mica("region create model-weights -m 96MiB --gpu software");
    home.mica("region attach model-weights loader --write");
    home.mica("region attach model-weights reader");
    let handle = handle_of(&home, "loader", "MICA_REGION_MODEL_WEIGHTS");
    assert_eq!(handle.bytes, 96 * MIB);
    assert_eq!(
        handle_of(&home, "reader", "MICA_REGION_MODEL_WEIGHTS"),
        handle
    );

    // More than either virtual GPU may have, and neither is charged.
    let writer = Program::new(&loader);
    let there = writer.open(&handle).unwrap();
    writer.write(there, 3).unwrap();
    writer.write(there + 95 * MIB, 4).unwrap();
    let program = Program::new(&reader);
    let here = program.open(&handle).unwrap();
    assert_eq!((program.byte(here), program.byte(here + 95 * MIB)), (3, 4));
    for name in ["loader", "reader"] {
        assert!(used_bytes(&home, name) < 32 * MIB, "{name} is charged");
    }

    assert!(program.write(here, 9).is_err(), "it may only be read");
    assert_eq!(writer.byte(there), 3);
    let outside = Program::new(&stranger);
    assert!(outside.open(&handle).is_err(), "it is not attached there");

    let busy = refused(&home, "region detach model-weights reader");
    assert!(
        busy.contains("may have the region model-weights open"),
        "{busy}"
    );
    assert!(refused(&home, "region rm model-weights --force").contains("programs run in"));
    let list = home.mica("region ls");
    assert!(list.contains("loader:rw, reader"), "{list}");
}

#[test]
fn a_region_outlives_the_daemon_with_a_program_that_has_it_open() {
    let home = Home::new();
    let [one, other] = ["one", "other"].map(|name| home.create(name, ""));
    home.mica("region create kept -m 4MiB --gpu software");
    home.mica("region attach kept one");
    home.mica("region attach kept other --write");
    let handle = handle_of(&home, "one", "MICA_REGION_KEPT");
    let writer = Program::new(&other);
    let address = writer.open(&handle).unwrap();
    writer.write(address, 6).unwrap();
    let reader = Program::new(&one);
    let read = reader.open(&handle).unwrap();
    drop(writer);

    home.mica("daemon --stop");
    home.mica("ls");
    // The worker of the reader, which may not write, brings the memory to the new daemon.
    let list = || home.mica("region ls");
    for _ in 0..200 {
        if list().contains("ready") {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(list().contains("ready"), "{}", list());
    let again = Program::new(&other);
    let address = again.open(&handle).unwrap();
    assert_eq!(again.byte(address), 6);
    again.write(address, 7).unwrap();
    assert_eq!(reader.byte(read), 7);
}

#[test]
fn what_does_not_fit_is_refused_with_the_reason() {
    let home = Home::new();
    home.create("a", "");
    let refusals = [
        ("region attach none a", "there is no region named none"),
        ("region create no/name -m 4MiB", "is not a name"),
        ("region create r -m 50%", "number of bytes"),
        ("region create r -m 900TiB --gpu software", "900 TiB asked"),
        ("run --region none -- true", "there is no region named none"),
        ("run --region a:wx -- true", "neither ro"),
    ];
    for (line, words) in refusals {
        let said = refused(&home, line);
        assert!(said.contains(words), "mica {line}: {said}");
    }
    home.mica("region create r -m 3MiB --gpu software");
    assert!(
        home.mica("region ls --json").contains("4194304"),
        "whole frames"
    );
    assert!(refused(&home, "region create r -m 4MiB").contains("exists"));
    assert!(refused(&home, "region attach r nobody").contains("nobody"));
    home.mica("region attach r a");
    assert!(refused(&home, "region rm r").contains("is attached to a"));
    // Another virtual GPU of the same name does not inherit it.
    home.mica("rm a");
    home.create("a", "");
    assert!(!home.mica("exec a -- env").contains("MICA_REGION_R"));
    home.mica("region rm r");
    assert_eq!(home.mica("region ls"), "no regions\n");
}

#[test]
fn run_attaches_regions_to_its_own_virtual_gpu() {
    let home = Home::new();
    home.mica("region create r -m 2MiB --gpu software");
    let given = home.mica("run -m 64MiB --region r:rw -- env");
    assert!(given.contains("MICA_REGION_R=4d494341"), "{given}");
    assert!(!home.mica("region ls").contains(":rw"), "nothing is left");
}

/// Bytes that the worker of the only program keeps in its pool, and how many of them allocations have.
fn pool(shown: &str) -> (u64, u64) {
    let map: serde_json::Value = serde_json::from_str(shown).unwrap();
    let pool = &map["programs"][0]["pool"];
    let figure = |name: &str| {
        let figure = pool[name].as_u64();
        figure.unwrap_or_else(|| panic!("no {name} in {shown}"))
    };
    (figure("held_bytes"), figure("given_bytes"))
}

#[test]
fn compaction_gives_back_what_a_worker_keeps_and_leaves_what_is_in_use() {
    let home = Home::new();
    let program = Program::new(&home.create("a", "--swap"));
    let alloc = || {
        let context = program.context;
        let bytes = 512 << 10;
        let made = program.client.call(&MemoryAlloc { context, bytes });
        made.unwrap().value
    };
    let addresses: Vec<u64> = (0..40).map(|_| alloc()).collect();
    program.write(addresses[0], 7).unwrap();
    for address in &addresses[1..] {
        let (context, address) = (program.context, *address);
        let free = MemoryFree { context, address };
        program.client.call(&free).unwrap();
    }
    let (held, used) = pool(&home.mica("memory a --compact --json"));
    assert!(used >= 512 << 10 && held < 8 << 20, "{held} {used}");
    assert_eq!(program.byte(addresses[0]), 7);
    let said = home.mica("memory a --compact");
    assert!(said.contains("nothing is kept for later"), "{said}");
}
