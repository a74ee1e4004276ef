//! Programs that move to another GPU, or can go on on neither: what they had on their GPU is in a file of the daemon's, whoever
//! dies meanwhile.

use super::*;

/// A world with two software GPUs, whose workers do not start while there is a file `broken`.
fn world() -> World {
    let world = World { home: Home::new() };
    let broken = world.home.path().join("broken");
    let script = format!(
        "test -e {} && exit 1; exec {} worker",
        broken.display(),
        env!("CARGO_BIN_EXE_mica")
    );
    let config = format!(
        "[software_gpu]\ncount = 2\nmemory_bytes = 268435456\n[daemon]\nworker_command = [\"sh\", \"-c\", {script:?}]\n"
    );
    std::fs::write(world.home.path().join("mica.toml"), config).unwrap();
    world.mica("create train -m 64MiB --gpu 0 --swap");
    world
}

fn break_workers(world: &World, broken: bool) {
    let file = world.home.path().join("broken");
    match broken {
        true => std::fs::write(file, "").unwrap(),
        false => drop(std::fs::remove_file(file)),
    }
}

/// The file that the daemon keeps of a virtual GPU that moves, and the one that is being written.
fn kept(world: &World) -> [PathBuf; 2] {
    let folder = world.home.path().join("state/moving");
    ["train.snap", "train.new"].map(|name| folder.join(name))
}

/// The GPU that a virtual GPU is not on.
fn other_gpu(world: &World) -> u64 {
    1 - world.shown("train")["gpu"].as_u64().unwrap()
}

/// Types what a person types whose program waits.
fn type_again(world: &World, round: u64) {
    if world.state("train") == "snapshotted" {
        let moved = world.run("migrate train --gpu 0");
        let why = String::from_utf8_lossy(&moved.stderr);
        assert!(!why.contains("mica restore"), "round {round}: {why}");
    }
}

/// Waits until a program that somebody may have parked has made another step.
fn let_go_on(world: &World, program: &mut Child, round: u64) {
    let began = Instant::now();
    let stands = world.step();
    // What was done before the death is no step of a program that goes on.
    while world.is_running(program) && world.step() <= stands {
        type_again(world, round);
        let is_late = began.elapsed() > Duration::from_secs(60);
        assert!(!is_late, "round {round}: {}", world.mica("events --json"));
    }
    world.goes_on_after(stands, program, round);
}

/// Tells the program to do no more steps. A move that somebody asked for before may come to its end only now.
fn end_in_order(world: &World, program: &mut Child) {
    std::fs::write(world.home.path().join("enough"), "").unwrap();
    world.until(|| {
        type_again(world, u64::MAX);
        !world.is_running(program)
    });
    world.end_in_order(program);
}

fn signal(pid: &str, name: &str) {
    let sent = Command::new("kill").args([name, pid]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn a_migration_that_no_gpu_takes_is_kept_and_says_what_to_type() {
    let world = world();
    let mut program = world.program_of("train", ENDLESS);
    world.until_step(2);
    let [file, begun] = kept(&world);
    for (round, gpu) in [1, 0, 0].into_iter().enumerate() {
        break_workers(&world, true);
        let to = other_gpu(&world);
        let said = world.refused(&format!("migrate train --gpu {to}"));
        let hint = format!("mica migrate train --gpu {to}");
        assert!(
            said.contains("could not go on") && said.contains(&hint),
            "{said}"
        );
        assert_eq!(mode_of(&file), 0o600);
        assert!(!begun.exists());
        assert_eq!(world.state("train"), "snapshotted");
        world.kill_daemon();
        assert_eq!(world.state("train"), "snapshotted");
        let said = world.refused("snapshot train own.snap");
        assert!(said.contains("in a snapshot already"), "{said}");
        // Again, and on the one that it is on.
        let from = 1 - to;
        let said = world.refused(&format!("migrate train --gpu {from}"));
        assert!(said.contains("could not go on"), "{said}");
        assert!(world.is_running(&mut program));
        break_workers(&world, false);
        let step = world.step();
        world.mica(&format!("migrate train --gpu {gpu}"));
        world.goes_on_after(step, &mut program, round as u64);
        assert_eq!(world.shown("train")["gpu"], gpu);
    }
    world.end_in_order(&mut program);
    world.mica("rm --force train");
    world.until(|| !file.exists());
}

#[test]
fn a_migration_for_which_the_disk_has_no_room_leaves_the_program_where_it_is() {
    let world = world();
    let mut program = world.program_of("train", ENDLESS);
    world.until_step(2);
    // Nothing can be made below a file.
    let folder = world.home.path().join("state/moving");
    std::fs::write(&folder, "").unwrap();
    let said = world.refused("migrate train --gpu 1");
    assert!(
        said.contains("was not moved") && said.contains("goes on"),
        "{said}"
    );
    assert_eq!(world.state("train"), "active");
    let step = world.step();
    world.goes_on_after(step, &mut program, 0);
    std::fs::remove_file(&folder).unwrap();
    world.mica("migrate train --gpu 1");
    world.end_in_order(&mut program);
}

/// Who dies while a virtual GPU moves.
#[derive(Clone, Copy, PartialEq)]
enum Dies {
    Command,
    Daemon,
    Both,
}

/// Moves a program time and again, also where no GPU takes it, and kills whom it is about a little later each time.
fn killed_at_any_moment(dies: Dies) {
    const ROUNDS: u64 = 16;
    let world = world();
    let mut program = world.program_of("train", ENDLESS);
    world.until_step(2);
    for round in 0..ROUNDS {
        break_workers(&world, round % 2 == 1);
        let to = other_gpu(&world).to_string();
        let daemon = world.daemon();
        let mut command = world.spawn(&["migrate", "train", "--gpu", &to]);
        std::thread::sleep(Duration::from_millis(round * 5));
        if dies != Dies::Daemon {
            kill(&command.id().to_string());
        }
        if dies != Dies::Command {
            kill(&daemon);
        }
        break_workers(&world, false);
        command.wait().unwrap();
        let_go_on(&world, &mut program, round);
    }
    end_in_order(&world, &mut program);
}

#[test]
fn whoever_moves_a_virtual_gpu_may_be_killed_at_any_moment() {
    killed_at_any_moment(Dies::Command);
}

#[test]
fn a_daemon_that_is_killed_at_any_moment_of_a_migration_costs_the_program_nothing() {
    killed_at_any_moment(Dies::Daemon);
}

#[test]
fn a_daemon_and_whoever_moves_a_virtual_gpu_may_be_killed_together() {
    killed_at_any_moment(Dies::Both);
}

/// Rounds in which a daemon is to be held up before it has heard of its worker: where it has, a round says nothing.
const TRIES: u32 = 50;

/// A worker that has written all is killed before the daemon has heard of it, which has it end. `words` are those of the command
/// for a virtual GPU that is to go to another GPU.
fn worker_is_killed_before_its_word(
    words: impl Fn(&World) -> Vec<String>,
    file: &dyn Fn(&World) -> PathBuf,
) {
    let world = world();
    let mut program = world.program_of("train", ENDLESS);
    world.until_step(2);
    let is_held = (0..TRIES).any(|_| {
        let words = words(&world);
        let before = world.step();
        let is_held = holds_up(&world, &words, &file(&world));
        if words[0] == "snapshot" {
            assert_eq!(world.state("train"), "snapshotted");
            world.mica(&format!("restore {}", file(&world).display()));
        }
        world.goes_on_after(before, &mut program, 0);
        is_held
    });
    assert!(is_held, "the daemon heard of its worker {TRIES} times");
    world.end_in_order(&mut program);
}

/// Stops the daemon while a command has a file written, and kills the worker once the file is whole. Whether the worker was there
/// still: else the daemon had heard of it, and had it end.
fn holds_up(world: &World, words: &[String], file: &Path) -> bool {
    let worker = world.shown("train")["processes"][0]["worker_pid"].to_string();
    let daemon = world.daemon();
    // That of the round before.
    let _ = std::fs::remove_file(file);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = world.spawn(&words);
    let has_begun = || std::fs::metadata(file).is_ok_and(|file| file.len() > 0);
    while !has_begun() && world.is_running(&mut command) {
        std::thread::yield_now();
    }
    signal(&daemon, "-STOP");
    let lives = || Path::new(&format!("/proc/{worker}/task")).exists();
    let is_whole =
        || std::fs::File::open(file).is_ok_and(|file| mica_snapshot::Snapshot::open(&file).is_ok());
    // A file that the daemon keeps has another name once it has heard.
    world.until(|| is_whole() || !lives() || !file.exists());
    // It tells its program and the daemon.
    std::thread::sleep(Duration::from_millis(300));
    let is_held = lives() && is_whole();
    if is_held {
        kill(&worker);
    }
    signal(&daemon, "-CONT");
    assert!(command.wait().unwrap().success());
    is_held
}

#[test]
fn a_worker_may_be_killed_as_soon_as_its_snapshot_is_whole() {
    let words = |_: &World| ["snapshot", "train", "a.snap"].map(String::from).to_vec();
    worker_is_killed_before_its_word(words, &|world| world.home.path().join("a.snap"));
}

#[test]
fn a_worker_may_be_killed_as_soon_as_what_it_moves_is_whole() {
    let words = |world: &World| {
        let to = other_gpu(world).to_string();
        ["migrate", "train", "--gpu", &to]
            .map(String::from)
            .to_vec()
    };
    worker_is_killed_before_its_word(words, &|world| {
        let [_, begun] = kept(world);
        begun
    });
}

#[test]
fn a_program_that_is_in_a_snapshot_goes_on_on_the_gpu_that_it_was_moved_to() {
    let world = world();
    let mut program = world.program_of("train", ENDLESS);
    world.until_step(2);
    // What it leaves behind is of no use for the snapshot.
    world.mica("migrate train --gpu 1");
    world.mica("migrate train --gpu 0");
    world.mica("snapshot train a.snap");
    let said = world.mica("migrate train --gpu 1");
    assert!(
        said.contains("train is on GPU 1 now") && said.contains("mica restore"),
        "{said}"
    );
    assert_eq!(world.shown("train")["gpu"], 1);
    world.kill_daemon();
    assert_eq!(world.state("train"), "snapshotted");
    assert_eq!(world.shown("train")["gpu"], 1, "it is on the disk");
    let step = world.step();
    world.mica("restore a.snap");
    world.goes_on_after(step, &mut program, 0);
    assert_eq!(world.shown("train")["gpu"], 1);
    world.end_in_order(&mut program);
}
