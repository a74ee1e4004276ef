//! What people type and what they see, as transcripts against a daemon of the test's own.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A private runtime directory; its daemon ends with it.
struct Home {
    folder: tempfile::TempDir,
    libraries: PathBuf,
}

/// What a command answered.
#[derive(Debug)]
struct Answer {
    code: i32,
    out: String,
    err: String,
}

impl From<Output> for Answer {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Home {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let libraries = folder.path().join("libraries");
        std::fs::create_dir(&libraries).unwrap();
        // What programs run under is another crate's to test; here any library with the mark will do.
        let source = folder.path().join("mark.c");
        std::fs::write(&source, "const int mica_shim_marker = 1;\n").unwrap();
        for name in ["libmica_shim.so", "libmica_nvml_shim.so"] {
            let built = Command::new("cc")
                .args(["-shared", "-fPIC", "-o"])
                .arg(libraries.join(name))
                .arg(&source)
                .status()
                .unwrap();
            assert!(built.success());
        }
        Self { folder, libraries }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mica"));
        command
            .args(words)
            .env("MICA_RUNTIME_DIR", self.path().join("run"))
            .env("MICA_LIB_DIR", &self.libraries)
            .env_remove("MICA_STATE_DIR")
            .env_remove("MICA_CONFIG")
            .env_remove("MICA_HOST_SOCKET")
            .env_remove("MICA_TOKEN")
            .stdin(Stdio::null());
        command
    }

    /// Runs `mica` with these words.
    fn mica(&self, line: &str) -> Answer {
        let words: Vec<&str> = line.split(' ').collect();
        self.command(&words).output().unwrap().into()
    }

    /// Runs `mica` and expects it to succeed; what it printed.
    fn ok(&self, line: &str) -> String {
        let answer = self.mica(line);
        assert_eq!(answer.code, 0, "mica {line}: {answer:?}");
        answer.out
    }

    fn json(&self, line: &str) -> serde_json::Value {
        serde_json::from_str(&self.ok(line)).unwrap()
    }

    /// Runs `mica` and expects it to fail; what it said.
    fn fails(&self, code: i32, line: &str) -> String {
        let answer = self.mica(line);
        assert_eq!(answer.code, code, "mica {line}: {answer:?}");
        assert_eq!(answer.out, "", "mica {line}: errors go to stderr");
        answer.err
    }

    fn write(&self, name: &str, text: &str) -> String {
        let file = self.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.display().to_string()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let socket = self.path().join("run/control.sock");
        let answers = || UnixStream::connect(&socket).is_ok();
        // Of several commands that start a daemon at once, a slow one's may come up after the stop.
        eventually("the daemon ends", || {
            if answers() {
                let _ = self.command(&["daemon", "--stop"]).output();
            }
            !answers()
        });
    }
}

/// Waits for what must come; how long it takes is not the test's business.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}: never");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn help_names_every_command_and_hides_what_is_not_for_people() {
    let home = Home::new();
    let help = home.ok("--help");
    for word in [
        "run",
        "exec",
        "create",
        "ls",
        "show",
        "resize",
        "rm",
        "suspend",
        "resume",
        "cancel",
        "gpus",
        "stats",
        "events",
        "doctor",
        "demo",
        "bench",
        "daemon",
        "ptx",
        "config",
        "completions",
    ] {
        let listed = help.lines().any(|line| line.trim_start().starts_with(word));
        assert!(listed, "{word} is not in\n{help}");
    }
    for hidden in ["demo-tenant", "shim-load", "worker", "man "] {
        assert!(
            !help.contains(&format!("  {hidden}")),
            "{hidden} is in\n{help}"
        );
    }
    assert!(home.ok("--version").starts_with("mica "));
    assert!(
        home.ok("run --help")
            .contains("mica run --memory 8GiB --share 30 -- python train.py")
    );
    assert!(
        !home.path().join("run").exists(),
        "asking for help starts no daemon"
    );
}

#[test]
fn wrong_words_are_usage_errors_that_say_what_to_write() {
    let home = Home::new();
    assert!(home.fails(2, "ls --jsn").contains("'--json'"));
    assert!(
        home.fails(2, "lst")
            .contains("unrecognized subcommand 'lst'")
    );
    let size = home.fails(2, "create a -m 8GB");
    assert!(
        size.contains("write 8GiB: sizes are powers of 1024"),
        "{size}"
    );
    let share = home.fails(2, "create a -s 101");
    assert!(share.contains("not from 1 to 100 percent"), "{share}");
    assert!(
        home.fails(2, "resize a").contains("--memory"),
        "nothing to change"
    );
    assert!(home.fails(2, "run").contains("<CMD>"));
    assert!(
        !home.path().join("run").exists(),
        "wrong words start no daemon"
    );
}

#[test]
fn a_virtual_gpu_is_made_listed_shown_resized_and_removed() {
    let home = Home::new();
    let created = home.json("create team-a -m 64MiB -s 30 --json");
    assert_eq!(created["name"], "team-a");
    assert_eq!(created["memory_limit_bytes"], 64 << 20);
    assert_eq!(created["share_percent"], 30);
    assert_eq!(created["state"], "ready");

    let list = home.json("ls --json");
    assert_eq!(list.as_array().unwrap().len(), 1);
    for key in [
        "name",
        "state",
        "memory_limit_bytes",
        "memory_used_bytes",
        "memory_peak_bytes",
        "share_percent",
        "share_measured_percent",
        "gpu_seconds",
        "processes",
    ] {
        assert!(!list[0][key].is_null(), "{key} is missing in {list}");
    }
    let table = home.ok("ls");
    let titles = table.lines().next().unwrap();
    assert!(
        titles.starts_with("NAME") && titles.contains("SHARE"),
        "{table}"
    );
    assert!(
        table.lines().nth(1).unwrap().starts_with("team-a"),
        "{table}"
    );
    assert!(!table.contains('\x1b'), "no colours in a pipe");

    let resized = home.json("resize team-a -m 96MiB -s 40 --json");
    assert_eq!(resized["memory_limit_bytes"], 96 << 20);
    let shown = home.json("show team-a --json");
    assert_eq!(shown["memory_limit_bytes"], 96 << 20);
    assert_eq!(shown["share_percent"], 40);

    assert_eq!(home.ok("rm team-a"), "team-a removed\n");
    assert_eq!(home.json("ls --json"), serde_json::json!([]));
}

#[test]
fn refusals_say_why_and_what_to_do() {
    let home = Home::new();
    home.ok("create a -m 64MiB -s 60");
    let twice = home.fails(1, "create a -m 64MiB");
    assert_eq!(
        twice,
        "mica: a virtual GPU named a exists\n  hint: choose another name, or remove it\n"
    );
    let share = home.fails(1, "create b -m 64MiB -s 60");
    assert!(share.contains("40 %") || share.contains("60 %"), "{share}");
    let large = home.fails(1, "resize a -m 1000TiB");
    assert!(large.contains("at most"), "{large}");
    for line in [
        "show nope",
        "rm nope",
        "exec nope -- true",
        "doctor nope",
        "suspend nope",
    ] {
        let said = home.fails(1, line);
        assert!(
            said.contains("there is no virtual GPU named nope"),
            "{line}: {said}"
        );
        assert!(said.contains("`mica ls`"), "{line}: {said}");
    }
    let mode = home.fails(1, "create c --mode direct --gpu software");
    assert!(mode.contains("always isolated"), "{mode}");
}

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
    assert!(words.contains("carries Mica's mark"), "{words}");
    assert!(words.contains("a: limit tested"), "{words}");
    assert!(
        words.contains("one byte more than the limit was refused"),
        "{words}"
    );
    assert!(home.json("doctor --json").is_object());
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
    // Long enough to be looked at while it runs.
    let python = format!(
        "import ctypes, time; ctypes.CDLL('{}'); time.sleep(1.5)",
        real.display()
    );
    let opens: &[&str] = &["python3", "-c", &python];
    let dropped = [&["env", "-u", "LD_PRELOAD", "-u", "LD_LIBRARY_PATH"], opens].concat();
    // By its full path although Mica's library is there, and in a process that the program started.
    let started = [&["sh", "-c", "\"$@\"; true", "sh"], opens].concat();
    for escape in [&dropped[..], opens, &started] {
        let run = [
            "run", "-m", "64MiB", "--mode", "isolated", "--gpu", "software", "--",
        ];
        let words = [&run, escape].concat();
        let answer: Answer = home.command(&words).output().unwrap().into();
        assert_eq!(answer.code, 0, "{answer:?}");
        let said = answer.err.matches("ran without limits").count();
        assert_eq!(said, 1, "{escape:?}: {answer:?}");
    }
    let quiet: Answer = home
        .command(&["run", "-m", "64MiB", "--", "true"])
        .output()
        .unwrap()
        .into();
    assert_eq!((quiet.code, quiet.err.as_str()), (0, ""));
}

#[test]
fn completions_and_manual_pages_come_from_the_same_words() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish"] {
        let text = home.ok(&format!("completions {shell}"));
        assert!(text.contains("resize"), "{shell}");
    }
    let folder = home.path().join("man");
    std::fs::create_dir(&folder).unwrap();
    home.ok(&format!("man {}", folder.display()));
    for page in ["mica.1", "mica-run.1", "mica-resize.1"] {
        let text = std::fs::read_to_string(folder.join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
}

#[test]
fn a_wrong_configuration_is_refused_with_its_line() {
    let home = Home::new();
    let example = home.ok("config");
    let good = home.write("good.toml", &example);
    assert_eq!(
        home.ok(&format!("config --check {good}")),
        format!("{good}: valid\n")
    );
    let unknown = home.write("unknown.toml", "[daemon]\nidle_exit_secs = 3\n");
    let said = home.fails(1, &format!("config --check {unknown}"));
    assert!(
        said.contains("line 2: unknown field `idle_exit_secs`"),
        "{said}"
    );
    let range = home.write("range.toml", "[sharing]\nlease_us = 0\n");
    let said = home.fails(1, &format!("config --check {range}"));
    assert!(
        said.contains("line 2: sharing.lease_us: 0 is not between"),
        "{said}"
    );
    let missing = home.fails(1, "config --check /nowhere/mica.toml");
    assert!(
        missing.contains("/nowhere/mica.toml cannot be read"),
        "{missing}"
    );
}

#[test]
fn run_returns_the_programs_own_code() {
    let home = Home::new();
    assert_eq!(home.mica("run -m 64MiB -- true").code, 0);
    assert_eq!(home.mica("run -m 64MiB -- false").code, 1);
    let script = home.write(
        "seven.sh",
        "#!/bin/sh\necho $MICA_VGPU $MICA_MODE; exit 7\n",
    );
    let answer = home.mica(&format!("run -m 64MiB --name seventh -- sh {script}"));
    assert_eq!(
        (answer.code, answer.out.as_str()),
        (7, "seventh isolated\n")
    );
    let killed = home.write("killed.sh", "kill -9 $$\n");
    assert_eq!(home.mica(&format!("run -m 64MiB -- sh {killed}")).code, 137);
    let said = home.fails(1, "run -m 64MiB -- no-such-program-here");
    assert_eq!(said, "mica: no-such-program-here: no such program\n");
    assert_eq!(
        home.json("ls --json"),
        serde_json::json!([]),
        "nothing is left"
    );
}

#[test]
fn exec_runs_in_a_virtual_gpu_that_stays() {
    let home = Home::new();
    home.ok("create a -m 64MiB -s 30");
    let answer = home.mica("exec a -- printenv MICA_VGPU");
    assert_eq!((answer.code, answer.out.as_str()), (0, "a\n"));
    assert_eq!(home.mica("exec a -- false").code, 1);
    assert_eq!(home.json("ls --json").as_array().unwrap().len(), 1);
}

#[test]
fn sixteen_programs_start_at_once_without_a_daemon() {
    let home = Home::new();
    let children: Vec<_> = (0..16)
        .map(|_| {
            home.command(&["run", "-m", "16MiB", "--", "true"])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in children {
        let answer = Answer::from(child.wait_with_output().unwrap());
        assert_eq!(answer.code, 0, "{answer:?}");
    }
    assert_eq!(home.json("ls --json"), serde_json::json!([]));
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    let home = Home::new();
    let temporary = home.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let mut demo = home
        .command(&["demo", "--json"])
        .env("TMPDIR", &temporary)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let folder = || {
        let mut entries = std::fs::read_dir(&temporary).unwrap();
        entries.next().map(|entry| entry.unwrap().path())
    };
    eventually("its daemon listens", || {
        folder().is_some_and(|folder| UnixStream::connect(folder.join("control.sock")).is_ok())
    });
    let socket = folder().unwrap().join("control.sock");
    let status = Command::new("kill")
        .args(["-INT", &demo.id().to_string()])
        .status();
    assert!(status.unwrap().success());
    assert_eq!(demo.wait().unwrap().code(), Some(130));
    assert!(UnixStream::connect(socket).is_err(), "its daemon is gone");
    assert_eq!(folder(), None, "and its folder");
    assert!(
        !home.path().join("run").exists(),
        "the user's daemon was not even asked"
    );
}

#[test]
fn a_mistyped_option_of_run_is_no_program() {
    let home = Home::new();
    for line in ["run --memroy 1GiB -- true", "exec --trcae f a -- true"] {
        let option = line.split(' ').nth(1).unwrap();
        let said = home.fails(2, line);
        assert!(
            said.contains(&format!("unexpected argument '{option}'")),
            "{said}"
        );
    }
}
