//! `mica snapshot` and `mica restore` as people type them, with a daemon and workers that are killed meanwhile.
//!
//! The program is this file itself, started again, which does what Mica's library in a program does.

mod closed;
#[path = "../home/mod.rs"]
mod home;
mod left;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use home::Home;
use mica_limits::{Environment, connect_session};
use mica_wire::session::*;

/// Adds to each of 65,536 words its own place times the step.
const PTX: &[u8] = b".version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 at, .param .u32 step)
{
    .reg .b32 %r<8>;
    .reg .b64 %d<4>;
    ld.param.u64 %d0, [at];
    ld.param.u32 %r0, [step];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    mul.wide.u32 %d1, %r4, 4;
    add.u64 %d2, %d0, %d1;
    ld.global.u32 %r5, [%d2];
    mad.lo.u32 %r5, %r4, %r0, %r5;
    st.global.u32 [%d2], %r5;
    ret;
}
\0";
const WORDS: u32 = 65_536;
/// Steps of the program, unless [`STEPS_VARIABLE`] says otherwise.
const STEPS: u32 = 40;
/// So many that a test ends the program itself.
const ENDLESS: u32 = u32::MAX;
const STEPS_VARIABLE: &str = "SNAPSHOT_TEST_STEPS";
/// Where the program writes how far it is; without it this is no program.
const PROGRESS: &str = "SNAPSHOT_TEST_PROGRESS";

/// Not a test of its own: the program of the tests below.
#[test]
#[ignore = "no test: the tests below start this (--exact this_is_the_program --ignored) as the program of a virtual GPU"]
fn this_is_the_program() {
    let Some(progress) = std::env::var_os(PROGRESS).map(PathBuf::from) else {
        return;
    };
    let environment = Environment::read().unwrap().unwrap();
    let client = connect_session(&environment, "test").unwrap();
    let made = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream) = (made.context, made.default_stream);
    let module = client.module_load(context, PTX, false).unwrap().module;
    let bytes = u64::from(WORDS) * 4;
    let at = client.call(&MemoryAlloc { context, bytes }).unwrap().value;
    client.write(stream, at, &vec![0; bytes as usize]).unwrap();
    let steps = std::env::var(STEPS_VARIABLE).map_or(STEPS, |steps| steps.parse().unwrap());
    let enough = progress.with_file_name("enough");
    let mut sum = 0_u32;
    for step in 0..steps {
        if enough.exists() {
            break;
        }
        sum = sum.wrapping_add(step);
        let launch = Launch {
            stream,
            module,
            kernel: 0,
            grid: [WORDS / 256, 1, 1],
            block: [256, 1, 1],
            dynamic_shared: 0,
            cooperative: false,
        };
        let parameters = [&at.to_le_bytes()[..], &step.to_le_bytes()].concat();
        client.launch(&launch, &parameters).unwrap();
        client.synchronize(stream).unwrap();
        // Whoever reads it sees all of it.
        let whole = progress.with_file_name("progress.new");
        std::fs::write(&whole, step.to_string()).unwrap();
        std::fs::rename(&whole, &progress).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut seen = vec![0; bytes as usize];
    client.read(stream, at, &mut seen).unwrap();
    for (place, word) in seen.chunks_exact(4).enumerate() {
        let word = u32::from_le_bytes(word.try_into().unwrap());
        assert_eq!(word, (place as u32).wrapping_mul(sum), "word {place}");
    }
    std::fs::write(&progress, "right").unwrap();
}

struct World {
    home: Home,
}

impl World {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mica"));
        command
            .args(words)
            .current_dir(self.home.path())
            .env("MICA_RUNTIME_DIR", self.home.path().join("run"))
            .env("MICA_LIB_DIR", self.home.path())
            .env("MICA_STATE_DIR", self.home.path().join("state"))
            .env_remove("MICA_CONFIG")
            .env_remove("MICA_HOST_SOCKET")
            .env_remove("MICA_TOKEN")
            .stdin(Stdio::null());
        let config = self.home.path().join("mica.toml");
        if config.exists() {
            command.env("MICA_CONFIG", config);
        }
        command
    }

    fn run(&self, words: &str) -> Output {
        let words: Vec<&str> = words.split(' ').collect();
        self.command(&words).output().unwrap()
    }

    fn mica(&self, words: &str) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "mica {words}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn refused(&self, words: &str) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(1), "mica {words}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn program(&self, name: &str) -> Child {
        self.program_of(name, STEPS)
    }

    fn program_of(&self, name: &str, steps: u32) -> Child {
        let own = std::env::current_exe().unwrap();
        let own = own.to_str().unwrap();
        let words = [
            "exec",
            name,
            "--",
            own,
            "--exact",
            "this_is_the_program",
            "--ignored",
        ];
        self.command(&words)
            .env(PROGRESS, self.progress())
            .env(STEPS_VARIABLE, steps.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn progress(&self) -> PathBuf {
        self.home.path().join("progress")
    }

    fn step(&self) -> Option<u32> {
        std::fs::read_to_string(self.progress()).ok()?.parse().ok()
    }

    fn until_step(&self, step: u32) {
        self.until(|| self.step().is_some_and(|now| now >= step));
    }

    fn until(&self, mut so: impl FnMut() -> bool) {
        let began = Instant::now();
        while !so() {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "{:?}",
                self.step()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn shown(&self, name: &str) -> serde_json::Value {
        let shown = self.mica(&format!("show {name} --json"));
        serde_json::from_str(&shown).unwrap()
    }

    fn state(&self, name: &str) -> String {
        self.shown(name)["state"].as_str().unwrap().to_owned()
    }

    fn spawn(&self, words: &[&str]) -> Child {
        let mut command = self.command(words);
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    /// Restores a snapshot if its program waits for that, now or soon: where a daemon died before it told the worker to end, that
    /// goes on. Whether the program was parked.
    fn restore_if_parked(&self, name: &str, file: &str) -> bool {
        let began = Instant::now();
        while self.state(name) == "snapshotted" {
            let restored = self.run(&format!("restore {file}"));
            if restored.status.success() {
                return true;
            }
            let why = String::from_utf8_lossy(&restored.stderr);
            // A snapshot that was never made: what is on the disk is of the round before, whose worker is on its way back.
            let is_passing = [
                "cannot be opened",
                "no program waits",
                "has not ended yet",
                "being saved or restored",
            ];
            assert!(
                is_passing.iter().any(|text| why.contains(text)),
                "{file}: {why}"
            );
            assert!(began.elapsed() < Duration::from_secs(60), "{file}: {why}");
        }
        false
    }

    /// Waits until the program is past a step.
    fn goes_on_after(&self, step: Option<u32>, program: &mut Child, round: u64) {
        self.until(|| self.step() > step || !self.is_running(program));
        let is_running = self.is_running(program);
        assert!(is_running, "round {round}: {}", self.mica("events --json"));
    }

    /// Tells the program to do no more steps, and waits until it has compared all words.
    fn end_in_order(&self, program: &mut Child) {
        std::fs::write(self.home.path().join("enough"), "").unwrap();
        assert!(program.wait().unwrap().success());
        assert_eq!(std::fs::read_to_string(self.progress()).unwrap(), "right");
    }

    fn is_running(&self, program: &mut Child) -> bool {
        program.try_wait().unwrap().is_none()
    }

    fn daemon(&self) -> String {
        let stats = self.mica("stats --json");
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        stats["daemon"]["pid"].as_i64().unwrap().to_string()
    }

    fn kill_daemon(&self) {
        kill(&self.daemon());
    }
}

/// Kills a process, and waits until it has closed its sockets: what connects before that is cut off.
fn kill(pid: &str) {
    let killed = Command::new("kill").args(["-9", pid]).status().unwrap();
    assert!(killed.success());
    let process = PathBuf::from(format!("/proc/{pid}"));
    // Its memory is gone when its last thread is, also where nobody has asked about the process yet.
    let lives = || std::fs::read(process.join("cmdline")).is_ok_and(|words| !words.is_empty());
    let has_threads = || std::fs::read_dir(process.join("task")).is_ok_and(|all| all.count() > 1);
    let began = Instant::now();
    while lives() || has_threads() {
        assert!(began.elapsed() < Duration::from_secs(20), "{pid} lives on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn mode_of(file: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(file).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_program_goes_on_after_its_worker_ended_and_the_daemon_was_killed() {
    let world = World { home: Home::new() };
    let file = |name: &str| world.home.path().join(name);
    world.mica("create train -m 64MiB --gpu software --swap");
    assert!(
        world
            .refused("snapshot train none.snap")
            .contains("no program uses train")
    );
    let mut program = world.program("train");
    for (number, step) in [2, 8, 15].into_iter().enumerate() {
        world.until_step(step);
        let name = format!("{number}.snap");
        let said = world.mica(&format!("snapshot train {name}"));
        assert!(
            said.contains("mica restore") && said.contains("1 allocations"),
            "{said}"
        );
        assert_eq!(mode_of(&file(&name)), 0o600);
        assert_eq!(world.state("train"), "snapshotted");
        let stands = world.step();
        world.kill_daemon();
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(
            world.state("train"),
            "snapshotted",
            "a daemon was started anew"
        );
        assert_eq!(world.step(), stands, "the program waits");
        if number > 0 {
            let said = world.refused("restore 0.snap");
            assert!(said.contains("another snapshot"), "{said}");
        }
        let inspected = world.mica(&format!("snapshot --inspect {name} --json"));
        let inspected: serde_json::Value = serde_json::from_str(&inspected).unwrap();
        assert_eq!(inspected["snapshot"]["memory_bytes"], 262_144);
        let said = world.mica(&format!("restore {name}"));
        assert!(said.contains("goes on"), "{said}");
    }
    assert!(program.wait().unwrap().success());
    assert_eq!(std::fs::read_to_string(world.progress()).unwrap(), "right");
    let said = world.refused("restore 2.snap");
    assert!(said.contains("no program waits in train"), "{said}");
    let left = std::fs::read_dir(world.home.path()).unwrap();
    let partial = left.filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().contains("partial")
    });
    assert_eq!(partial.count(), 0);
}

#[test]
fn a_daemon_that_is_killed_at_any_moment_of_a_snapshot_costs_the_program_nothing() {
    const ROUNDS: u64 = 24;
    let world = World { home: Home::new() };
    world.mica("create train -m 64MiB --gpu software --swap");
    let mut program = world.program_of("train", ENDLESS);
    world.until_step(2);
    let (mut parked, mut went_on) = (0, 0);
    for round in 0..ROUNDS {
        let name = format!("{round}.snap");
        let daemon = world.daemon();
        let before = world.step();
        let mut snapshot = world.spawn(&["snapshot", "train", &name]);
        std::thread::sleep(Duration::from_millis(round * 4));
        kill(&daemon);
        snapshot.wait().unwrap();
        match world.restore_if_parked("train", &name) {
            true => parked += 1,
            false => went_on += 1,
        }
        world.goes_on_after(before, &mut program, round);
    }
    world.end_in_order(&mut program);
    assert_eq!(parked + went_on, ROUNDS);
}

#[test]
fn a_daemon_that_is_killed_at_any_moment_of_a_restoration_leaves_the_file_to_be_restored_again() {
    const ROUNDS: u64 = 16;
    let world = World { home: Home::new() };
    world.mica("create train -m 64MiB --gpu software --swap");
    let mut program = world.program_of("train", ENDLESS);
    world.until_step(2);
    for round in 0..ROUNDS {
        let name = format!("{round}.snap");
        world.mica(&format!("snapshot train {name}"));
        let before = world.step();
        let daemon = world.daemon();
        let mut restored = world.spawn(&["restore", &name]);
        std::thread::sleep(Duration::from_millis(round * 6));
        kill(&daemon);
        restored.wait().unwrap();
        world.restore_if_parked("train", &name);
        world.goes_on_after(before, &mut program, round);
    }
    world.end_in_order(&mut program);
}

#[test]
fn whoever_asked_for_a_snapshot_may_be_killed_at_any_moment() {
    const ROUNDS: u64 = 12;
    let world = World { home: Home::new() };
    world.mica("create train -m 64MiB --gpu software --swap");
    let mut program = world.program_of("train", ENDLESS);
    world.until_step(2);
    for round in 0..ROUNDS {
        let name = format!("{round}.snap");
        let before = world.step();
        let mut snapshot = world.spawn(&["snapshot", "train", &name]);
        std::thread::sleep(Duration::from_millis(round * 5));
        kill(&snapshot.id().to_string());
        snapshot.wait().unwrap();
        world.restore_if_parked("train", &name);
        world.goes_on_after(before, &mut program, round);
    }
    world.end_in_order(&mut program);
}

#[test]
fn a_snapshot_whose_parking_cannot_be_kept_is_refused_and_the_program_goes_on() {
    let world = World { home: Home::new() };
    world.mica("create train -m 64MiB --gpu software --swap");
    let mut program = world.program_of("train", ENDLESS);
    world.until_step(2);
    // Where the new state is written before it replaces the old one.
    let state = world.home.path().join("state");
    let state = std::fs::read_dir(&state)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let state = state
        .into_iter()
        .find(|path| path.extension().is_some_and(|e| e == "json"));
    let in_the_way = state.unwrap().with_extension("json.new");
    let _ = std::fs::remove_file(&in_the_way);
    std::fs::create_dir_all(in_the_way.join("not empty")).unwrap();
    let said = world.refused("snapshot train a.snap");
    assert!(said.contains("cannot keep its state"), "{said}");
    assert!(!world.home.path().join("a.snap").exists());
    assert_eq!(world.state("train"), "active");
    let step = world.step();
    world.goes_on_after(step, &mut program, 0);
    std::fs::remove_dir_all(&in_the_way).unwrap();
    world.mica("snapshot train a.snap");
    std::fs::create_dir_all(in_the_way.join("not empty")).unwrap();
    let said = world.refused("restore a.snap");
    assert!(said.contains("cannot keep its state"), "{said}");
    assert_eq!(world.state("train"), "snapshotted");
    std::fs::remove_dir_all(&in_the_way).unwrap();
    let step = world.step();
    world.mica("restore a.snap");
    world.goes_on_after(step, &mut program, 1);
    world.end_in_order(&mut program);
}

#[test]
fn a_worker_that_is_killed_after_its_snapshot_was_restored_takes_its_program_with_it_and_no_other()
{
    let world = World { home: Home::new() };
    world.mica("create a -m 64MiB --gpu software --swap");
    let mut program = world.program("a");
    world.until_step(3);
    world.mica("snapshot a a.snap");
    world.mica("restore a.snap");
    let step = world.step().unwrap();
    world.until_step(step + 2);
    let shown = world.mica("show a --json");
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    kill(
        &shown["processes"][0]["worker_pid"]
            .as_i64()
            .unwrap()
            .to_string(),
    );
    assert!(
        !program.wait().unwrap().success(),
        "its work is lost, and it is told"
    );
    assert!(world.refused("restore a.snap").contains("no program waits"));
    // The virtual GPU is as good as new.
    std::fs::remove_file(world.progress()).unwrap();
    assert!(world.program("a").wait().unwrap().success());
}

#[test]
fn a_program_whose_virtual_gpu_is_removed_while_it_waits_ends() {
    let world = World { home: Home::new() };
    world.mica("create gone -m 64MiB --gpu software --swap");
    let mut program = world.program("gone");
    world.until_step(3);
    world.mica("snapshot gone gone.snap");
    assert!(world.refused("rm gone").contains("a process runs in gone"));
    world.mica("rm --force gone");
    assert!(!program.wait().unwrap().success());
    let said = world.refused("restore gone.snap");
    assert!(said.contains("no virtual GPU named gone"), "{said}");
}

#[test]
fn a_program_goes_on_on_another_gpu_and_stays_where_it_is_if_it_does_not_fit_there() {
    let world = World { home: Home::new() };
    let config = "[software_gpu]\ncount = 2\nmemory_bytes = 268435456\n";
    std::fs::write(world.home.path().join("mica.toml"), config).unwrap();
    world.mica("create train -m 64MiB --gpu 0 --swap");
    assert!(
        world
            .refused("migrate train --gpu 1")
            .contains("no program uses train")
    );
    let mut program = world.program_of("train", ENDLESS);
    world.until_step(3);
    for gpu in [1, 0, 1] {
        let said = world.mica(&format!("migrate train --gpu {gpu}"));
        assert_eq!(said, format!("train is on GPU {gpu} now\n"));
        let shown = world.mica("show train --json");
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(
            (&shown["gpu"], &shown["state"]),
            (&gpu.into(), &"active".into())
        );
        let step = world.step().unwrap();
        world.until_step(step + 2);
    }
    assert!(
        world
            .refused("migrate train --gpu 1")
            .contains("on GPU 1 already")
    );
    assert!(world.refused("migrate train --gpu 7").contains("no GPU 7"));
    world.mica("create large -m 250MiB --gpu 0");
    let said = world.refused("migrate train --gpu 0");
    assert!(said.contains("unreserved on GPU 0"), "{said}");
    world.end_in_order(&mut program);
}

#[test]
fn files_that_are_no_snapshots_and_names_that_are_taken_are_refused_at_once() {
    let world = World { home: Home::new() };
    world.mica("create a -m 64MiB --gpu software --swap");
    std::fs::write(
        world.home.path().join("text"),
        "a text that is no snapshot, of more than sixty-four bytes in all",
    )
    .unwrap();
    for words in ["restore text", "snapshot --inspect text"] {
        let said = world.refused(words);
        assert!(
            said.contains("text") && said.contains("not a snapshot"),
            "{said}"
        );
    }
    assert!(world.refused("snapshot a text").contains("there already"));
    assert!(world.refused("restore missing").contains("missing"));
}
