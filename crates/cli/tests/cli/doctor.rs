//! What the doctor says.

use std::process::Command;

use crate::home::{Answer, Home};

#[test]
fn the_doctor_says_that_all_is_well() {
    let home = Home::new();
    home.ok("create a -m 64MiB -s 30");
    let words = home.ok("doctor");
    assert!(words.contains("a: memory limit"), "{words}");
    assert!(
        words.ends_with("every limit that can be checked now is in force\n"),
        "{words}"
    );
    assert!(
        words.contains("carries Mica's mark; from MICA_LIB_DIR"),
        "{words}"
    );
    assert!(words.contains("a: limit tested"), "{words}");
    assert!(
        words.contains("one byte more than the limit was refused"),
        "{words}"
    );
    assert!(home.json("doctor --json").is_object());
}

#[test]
fn a_chosen_folder_without_libraries_is_an_error() {
    let home = Home::new();
    let words = ["run", "-m", "64MiB", "--gpu", "software", "--", "true"];
    let mut command = home.command(&words);
    let output = command.env("MICA_LIB_DIR", home.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let expected = format!("mica: {} has no libmica_shim.so\n", home.path().display());
    assert!(!output.status.success());
    assert_eq!(said, expected);
}

#[test]
fn the_doctor_says_when_programs_would_get_another_library() {
    let home = Home::new();
    let built = Command::new("cc")
        .args(["-shared", "-x", "c", "/dev/null", "-o"])
        .arg(home.libraries.join("libmica_shim.so"))
        .status()
        .unwrap();
    assert!(built.success());
    let answer = home.mica("doctor");
    assert_ne!(answer.code, 0, "{answer:?}");
    assert!(answer.out.contains("is not Mica's"), "{answer:?}");
}

#[test]
fn a_program_that_loads_another_driver_is_told_so_at_its_end() {
    let home = Home::new();
    let real = home.path().join("libcuda.so.1");
    let built = Command::new("cc")
        .args(["-shared", "-x", "c", "/dev/null", "-o"])
        .arg(&real)
        .status()
        .unwrap();
    assert!(built.success());
    let run = [
        "run", "-m", "64MiB", "--mode", "isolated", "--gpu", "software", "--",
    ];
    let dropping: &[&str] = &["env", "-u", "LD_PRELOAD", "-u", "LD_LIBRARY_PATH"];
    // By its full path although Mica's library is there, and in a process that the program started.
    let starting: &[&str] = &["sh", "-c", "\"$@\"; true", "sh"];
    for way in [dropping, &[], starting] {
        // It is looked at ever more rarely, so one that was slow to open the driver must stay longer to be seen.
        let was_told = [1, 8, 32].iter().any(|seconds| {
            let python = format!(
                "import ctypes, time; ctypes.CDLL('{}'); time.sleep({seconds})",
                real.display()
            );
            let words = [&run, way, &["python3", "-c", &python]].concat();
            let answer: Answer = home.command(&words).output().unwrap().into();
            assert_eq!(answer.code, 0, "{answer:?}");
            let said = answer.err.matches("ran without limits").count();
            assert!(said <= 1, "{way:?}: {answer:?}");
            said == 1
        });
        assert!(was_told, "{way:?}");
    }
    let quiet: Answer = home
        .command(&["run", "-m", "64MiB", "--", "true"])
        .output()
        .unwrap()
        .into();
    assert_eq!((quiet.code, quiet.err.as_str()), (0, ""));
}

/// NVML of a host with two cards whose driver knows this version of CUDA.
fn fake_nvml(home: &Home, cuda: u32) -> String {
    let library = home.path().join(format!("libnvml{cuda}.so"));
    let source = "/../backend-cuda/tests/fake_nvml.c";
    let built = Command::new("cc")
        .args(["-w", "-shared", "-fPIC", "-DUNIT=(1ull<<30)"])
        .args([&format!("-DCUDA={cuda}"), "-o"])
        .arg(&library)
        .arg(format!("{}{source}", env!("CARGO_MANIFEST_DIR")))
        .status()
        .unwrap();
    assert!(built.success());
    library.display().to_string()
}

#[test]
fn a_card_without_the_drivers_library_is_told_of_when_a_program_starts() {
    let home = Home::new();
    let mut command = home.command(&["run", "-m", "1MiB", "--", "true"]);
    command
        .env("MICA_LIBNVML", fake_nvml(&home, 13000))
        .env("MICA_LIBCUDA", "/no/such/library");
    let answer: Answer = command.output().unwrap().into();
    assert_eq!(answer.code, 0, "{answer:?}");
    let words =
        "mica: the NVIDIA driver's libcuda.so.1 was not found (MICA_LIBCUDA says where it is)";
    assert!(answer.err.starts_with(words), "{answer:?}");
}

#[test]
fn what_is_not_in_force_is_said_when_it_is_made() {
    let home = Home::new();
    let nvml = fake_nvml(&home, 13000);
    let answer = |words: &str| -> Answer {
        let words: Vec<&str> = words.split(' ').collect();
        let mut command = home.command(&words);
        command.env("MICA_LIBNVML", &nvml);
        command.output().unwrap().into()
    };
    let why = "a limit on streams cannot be enforced in direct mode\n";
    let refused = answer("run --max-streams 2 -m 1MiB -- true");
    assert!(
        refused.code == 125 && refused.err.contains(why),
        "{refused:?}"
    );
    let run = answer("run --name a --max-streams 2 --allow-degraded -m 1MiB -- true");
    let said = format!("mica: a is degraded: {why}");
    assert!(run.code == 0 && run.err.starts_with(&said), "{run:?}");
    let made = answer("create b --max-streams 2 --allow-degraded -m 1MiB");
    assert_eq!(made.err, format!("mica: b is degraded: {why}"));
}

#[test]
fn a_driver_that_is_missing_or_too_old_is_told_of() {
    let home = Home::new();
    let with = |nvml: &str, words: &[&str]| -> Answer {
        let mut command = home.command(words);
        command.env("MICA_LIBNVML", nvml).output().unwrap().into()
    };
    let none = with("/no/such/library", &["doctor"]);
    assert!(
        none.out
            .contains("NVIDIA GPUs\n         none: /no/such/library cannot be loaded"),
        "{none:?}"
    );
    let asked = with(
        "/no/such/library",
        &["run", "--gpu", "nvidia", "--", "true"],
    );
    assert!(
        asked
            .err
            .contains("`mica doctor` may say why one is missing"),
        "{asked:?}"
    );
    home.ok("daemon --stop");

    let refused = with(
        &fake_nvml(&home, 11040),
        &["run", "-m", "1MiB", "--", "true"],
    );
    assert_eq!(refused.code, 125, "{refused:?}");
    let why = "the driver supports CUDA 11.4, Mica needs 12.0 or newer: update the NVIDIA driver";
    assert!(refused.err.contains(why), "{refused:?}");
    let listed = home.ok("gpus");
    assert!(
        listed.contains(&format!("GPU 0 cannot be shared: {why}")),
        "{listed}"
    );
}
