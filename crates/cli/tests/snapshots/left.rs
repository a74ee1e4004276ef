//! A program that can go on on neither GPU after a migration: what it had on its GPU is in a file.

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
        false => std::fs::remove_file(file).unwrap(),
    }
}

#[test]
fn a_migration_that_no_gpu_takes_leaves_a_file_and_says_what_to_type() {
    let world = world();
    let mut program = world.program_of("train", ENDLESS);
    world.until_step(2);
    for (round, name) in ["train.snap", "train-2.snap"].into_iter().enumerate() {
        let file = std::fs::canonicalize(world.home.path()).unwrap().join(name);
        break_workers(&world, true);
        let said = world.refused("migrate train --gpu 1");
        assert!(said.contains("neither GPU"), "{said}");
        let hint = format!("mica restore {}", file.display());
        assert!(said.contains(&hint), "{said}");
        assert_eq!(mode_of(&file), 0o600);
        assert_eq!(world.state("train"), "snapshotted");
        assert!(world.is_running(&mut program));
        break_workers(&world, false);
        let step = world.step();
        world.mica(&hint["mica ".len()..]);
        world.goes_on_after(step, &mut program, round as u64);
        assert_eq!(world.shown("train")["gpu"], 0);
    }
    world.end_in_order(&mut program);
}

#[test]
fn the_file_of_a_migration_is_left_elsewhere_where_the_folder_has_no_room() {
    let world = world();
    let mut program = world.program_of("train", ENDLESS);
    world.until_step(2);
    break_workers(&world, true);
    let elsewhere = world.home.path().join("tmp");
    std::fs::create_dir(&elsewhere).unwrap();
    // Nobody makes a file here, not root either.
    let mut migrate = world.command(&["migrate", "train", "--gpu", "1"]);
    migrate.current_dir("/proc").env("TMPDIR", &elsewhere);
    let said = migrate.output().unwrap();
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    let said = String::from_utf8(said.stderr).unwrap();
    let file = elsewhere.join("train.snap");
    assert!(said.contains(&file.display().to_string()), "{said}");
    break_workers(&world, false);
    let step = world.step();
    world.mica(&format!("restore {}", file.display()));
    world.goes_on_after(step, &mut program, 0);
    world.end_in_order(&mut program);
}

#[test]
fn the_file_of_a_migration_stays_in_memory_until_a_disk_has_room() {
    let world = world();
    let mut program = world.program_of("train", ENDLESS);
    world.until_step(2);
    break_workers(&world, true);
    let elsewhere = world.home.path().join("tmp");
    let mut migrate = world.command(&["migrate", "train", "--gpu", "1"]);
    migrate
        .current_dir("/proc")
        .env("TMPDIR", &elsewhere)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let migrate = migrate.spawn().unwrap();
    world.until(|| world.state("train") == "snapshotted");
    // Until it has tried in vain.
    std::thread::sleep(Duration::from_secs(1));
    std::fs::create_dir(&elsewhere).unwrap();
    let said = migrate.wait_with_output().unwrap();
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(said.contains("do not end it"), "{said}");
    break_workers(&world, false);
    world.mica(&format!(
        "restore {}",
        elsewhere.join("train.snap").display()
    ));
    world.end_in_order(&mut program);
}

#[test]
fn a_program_that_is_in_a_snapshot_goes_on_on_the_gpu_that_it_was_moved_to() {
    let world = world();
    let mut program = world.program_of("train", ENDLESS);
    world.until_step(2);
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
