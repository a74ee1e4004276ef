//! `mica top` on a real terminal: driven by keys in tmux, at 80x24 and 200x50, through the end of a daemon and the start of another.

mod home;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use home::Home;

/// Lines that are the same on every machine, as transcripts.
const TITLES: &str = "NAME*          STATE     SHARE got/asked  WAITS  MEMORY used/limit   HISTORY";
const KEYS: &str = "q Quit / Filter s Sort + In - Out z Suspend r Resume e Resize x End ? Help";

/// A terminal with a program in it, which ends with it.
struct Terminal {
    socket: PathBuf,
}

impl Terminal {
    /// A shell line in a terminal of 80x24.
    fn start(home: &Home, line: &str) -> Self {
        let terminal = Self {
            socket: home.path().join("tmux"),
        };
        terminal.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "80",
            "-y",
            "24",
            line,
        ]);
        terminal
    }

    fn tmux(&self, words: &[&str]) -> String {
        let output = Command::new("tmux")
            .arg("-S")
            .arg(&self.socket)
            .args(words)
            .env("LC_ALL", "C.UTF-8")
            .output()
            .unwrap();
        assert!(output.status.success(), "tmux {words:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn keys(&self, keys: &[&str]) {
        let mut words = vec!["send-keys"];
        words.extend(keys);
        self.tmux(&words);
    }

    fn screen(&self) -> Vec<String> {
        let text = self.tmux(&["capture-pane", "-p"]);
        text.lines()
            .map(|line| line.trim_end().to_owned())
            .collect()
    }

    /// Waits until a line of the screen contains this.
    fn shows(&self, wanted: &str) -> Vec<String> {
        let began = Instant::now();
        loop {
            let screen = self.screen();
            if screen.iter().any(|line| line.contains(wanted)) {
                return screen;
            }
            let text = screen.join("\n");
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "no {wanted:?} in\n{text}"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut kill = Command::new("tmux");
        let _ = kill.arg("-S").arg(&self.socket).arg("kill-server").output();
    }
}

#[test]
fn top_is_driven_by_keys_and_outlives_its_daemon() {
    if Command::new("tmux").arg("-V").output().is_err() {
        eprintln!("skipped: needs tmux");
        return;
    }
    let home = Home::new();
    home.mica("create alpha -m 64MiB -s 30");
    home.mica("create beta -m 32MiB -s 20 --cap");
    let top = format!(
        "env MICA_RUNTIME_DIR={} LC_ALL=C.UTF-8 {} top; echo ended=$?; sleep 600",
        home.path().join("run").display(),
        env!("CARGO_BIN_EXE_mica")
    );
    let terminal = Terminal::start(&home, &top);
    let screen = terminal.shows("beta");
    assert_eq!(screen[2], TITLES);
    assert_eq!(screen[23], KEYS);
    assert!(screen[3].starts_with("alpha          ready"), "{screen:?}");
    assert!(
        screen[3].contains("0/30") && screen[3].contains("0/64 MiB"),
        "{screen:?}"
    );
    assert!(screen[4].contains("0/^20"), "{screen:?}");

    terminal.keys(&["?"]);
    terminal.shows("zoom in and out in time");
    terminal.keys(&["?", "/", "b", "e", "t"]);
    let screen = terminal.shows("filter: bet");
    assert!(
        !screen.iter().any(|line| line.starts_with("alpha")),
        "{screen:?}"
    );
    terminal.keys(&["Escape"]);
    terminal.shows("alpha");
    terminal.keys(&["-"]);
    terminal.shows("1 hour");

    // Nothing happens without a yes.
    terminal.keys(&["j", "z"]);
    terminal.shows("Suspend alpha: hold everything that runs in it? (y/n)");
    terminal.keys(&["n"]);
    terminal.shows("nothing was done");
    terminal.keys(&["z", "y"]);
    terminal.shows("alpha is suspended");
    assert!(home.mica("ls").contains("suspended"));
    terminal.keys(&["e"]);
    terminal.shows("resize alpha: memory=64MiB share=30");
    terminal.keys(&["BSpace", "BSpace", "4", "0", "Enter", "y"]);
    terminal.shows("alpha has 64 MiB and 40 % now");

    terminal.tmux(&["resize-window", "-x", "200", "-y", "50"]);
    terminal.shows("LAUNCH/s");
    terminal.shows("waiting for its turn");
    terminal.tmux(&["resize-window", "-x", "80", "-y", "24"]);

    home.mica("daemon --stop");
    terminal.shows("no daemon for");
    home.mica("ls");
    terminal.shows("a new daemon answers");
    assert!(terminal.screen()[3].starts_with("alpha          suspended"));

    // The terminal is given back, with its cursor and its keys.
    terminal.keys(&["q"]);
    terminal.shows("ended=0");
}
