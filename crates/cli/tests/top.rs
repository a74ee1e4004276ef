//! `mica top` on a real terminal: driven by keys and the mouse in tmux, at 80x24 and 200x50, through the end of a daemon and the
//! start of another. Its screens are compared with `top.txt`; `BLESS=1` rewrites the file.

mod home;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use home::Home;

/// A terminal with a program in it, which ends with it.
struct Terminal {
    socket: PathBuf,
}

impl Terminal {
    /// A shell line in a terminal of 80x24.
    fn start(home: &Home, line: &str) -> Self {
        let terminal = Self {
            // A server that has just ended may still hold its socket.
            socket: home.path().join(format!("tmux-{}", line.len())),
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

    /// Presses the left button at a place, counted from 1.
    fn click(&self, column: u32, row: u32) {
        for end in ['M', 'm'] {
            let bytes = format!("\x1b[<0;{column};{row}{end}");
            let bytes: Vec<String> = bytes.bytes().map(|b| format!("{b:02x}")).collect();
            let mut words = vec!["send-keys", "-H"];
            words.extend(bytes.iter().map(String::as_str));
            self.tmux(&words);
        }
    }

    /// Waits until a line of the screen contains this.
    fn shows(&self, wanted: &str) -> Vec<String> {
        self.shows_all(&[wanted])
    }

    /// Waits until the screen has a line for each of these.
    fn shows_all(&self, wanted: &[&str]) -> Vec<String> {
        let began = Instant::now();
        loop {
            let screen = self.screen();
            let has = |wanted: &&str| screen.iter().any(|line| line.contains(*wanted));
            // The last line is drawn last.
            if wanted.iter().all(has) && has(&"? Help") {
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

/// Screens without what differs from run to run, one below the other.
#[derive(Default)]
struct Transcript(String);

impl Transcript {
    fn add(&mut self, what: &str, screen: &[String]) {
        self.0 += &format!("=== {what}\n");
        for (row, line) in screen.iter().enumerate() {
            self.0 += &plain(row, line);
            self.0.push('\n');
        }
    }

    fn check(&self) {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/top.txt");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(file, &self.0).unwrap();
        }
        let expected = std::fs::read_to_string(file).unwrap_or_default();
        for (number, (found, expected)) in self.0.lines().zip(expected.lines()).enumerate() {
            assert_eq!(found, expected, "line {} of {file}", number + 1);
        }
        assert_eq!(self.0.lines().count(), expected.lines().count(), "{file}");
    }
}

/// A line without the host's name, times, the size of its memory and the user.
fn plain(row: usize, line: &str) -> String {
    let parts: Vec<&str> = line.split('│').map(str::trim).collect();
    match (row, &parts[..]) {
        (0, [name, up, vgpus, programs, _clock]) if up.starts_with("up ") => {
            let version = name.split(' ').take(1).chain(["VERSION HOST"]);
            let words: Vec<&str> = programs.split_whitespace().collect();
            let name: Vec<&str> = version.collect();
            format!(
                "{} │ up TIME │ {vgpus} │ {} │ CLOCK",
                name.join(" "),
                words.join(" ")
            )
        }
        (1, _) if line.starts_with("GPU 0") => match line.rsplit_once("0/") {
            Some((before, _)) => format!("{before}0/SIZE"),
            None => line.to_owned(),
        },
        _ if line.starts_with("a new daemon answers") => {
            "a new daemon answers (PROCESS)".to_owned()
        }
        // The last seconds of charts.
        _ if line.chars().all(|c| " ─▁▂▃▄▅▆▇█".contains(c)) => String::new(),
        _ => match line.split_once("this is the last picture: ") {
            Some(_) => "no daemon for TIME, this is the last picture: REASON".to_owned(),
            None => without_user(line),
        },
    }
}

fn without_user(line: &str) -> String {
    let user = Command::new("id").arg("-un").output().unwrap().stdout;
    let user = String::from_utf8_lossy(&user).trim().to_owned();
    line.replace(&format!("{user:<8} normal"), "USER     normal")
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
    let mut transcript = Transcript::default();
    transcript.add("80x24", &terminal.shows("beta"));
    terminal.keys(&["?"]);
    transcript.add("help", &terminal.shows("zoom in and out in time"));
    terminal.keys(&["?", "/", "b", "e", "t"]);
    transcript.add("filter", &terminal.shows("filter: bet"));
    terminal.keys(&["Escape"]);
    terminal.shows("alpha");
    terminal.keys(&["-"]);
    terminal.shows("1 hour");
    terminal.keys(&["+"]);
    terminal.shows("10 minutes");

    // Nothing happens without a yes.
    terminal.keys(&["j", "z"]);
    transcript.add(
        "suspend?",
        &terminal.shows("hold everything that runs in it? (y/n)"),
    );
    terminal.keys(&["n"]);
    terminal.shows("nothing was done");
    terminal.keys(&["z", "y"]);
    let both = ["alpha is suspended", "alpha          suspended"];
    transcript.add("suspended", &terminal.shows_all(&both));
    assert!(home.mica("ls").contains("suspended"));
    terminal.keys(&["e"]);
    terminal.shows("resize alpha: memory=64MiB share=30");
    terminal.keys(&["BSpace", "BSpace", "4", "0", "Enter", "y"]);
    terminal.shows_all(&["alpha has 64 MiB and 40 % now", "0/40 "]);

    // The mouse: a title sorts, a row is selected.
    terminal.click(28, 3);
    terminal.shows("SHARE got/asked*");
    terminal.click(3, 3);
    terminal.shows("NAME*");
    terminal.click(3, 5);
    terminal.keys(&["z"]);
    terminal.shows("Suspend beta");
    terminal.keys(&["n"]);
    terminal.shows("nothing was done");
    terminal.click(3, 4);

    terminal.tmux(&["resize-window", "-x", "200", "-y", "50"]);
    terminal.shows("LAUNCH/s");
    terminal.shows("waiting for its turn");
    transcript.add("200x50", &terminal.shows("alpha: share"));
    terminal.tmux(&["resize-window", "-x", "80", "-y", "24"]);
    terminal.shows("HISTORY");

    home.mica("daemon --stop");
    transcript.add("a daemon that ends", &terminal.shows("no daemon for"));
    home.mica("ls");
    transcript.add("another daemon", &terminal.shows("a new daemon answers"));

    // The terminal is given back, with its cursor and its keys.
    terminal.keys(&["q"]);
    let began = Instant::now();
    while !terminal
        .screen()
        .iter()
        .any(|line| line.contains("ended=0"))
    {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{:?}",
            terminal.screen()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    transcript.check();
}

#[test]
fn top_shows_no_colour_where_none_is_wanted_and_watches_a_forwarded_socket() {
    if Command::new("tmux").arg("-V").output().is_err() {
        eprintln!("skipped: needs tmux");
        return;
    }
    let home = Home::new();
    home.mica("create alpha -m 64MiB -s 30");
    let forwarded = home.path().join("node-7.sock");
    std::os::unix::fs::symlink(home.path().join("run/control.sock"), &forwarded).unwrap();
    for (variable, has_colours) in [("NO_COLOR=1", false), ("COLOURS=1", true)] {
        let top = format!(
            "env {variable} TERM=xterm-256color MICA_RUNTIME_DIR=/nonexistent LC_ALL=C.UTF-8 {} top --socket {}",
            env!("CARGO_BIN_EXE_mica"),
            forwarded.display()
        );
        let terminal = Terminal::start(&home, &top);
        let screen = terminal.shows("alpha");
        assert!(screen[0].contains("node-7.sock"), "{screen:?}");
        assert!(screen[3].contains("0/30"), "{screen:?}");
        let painted = terminal.tmux(&["capture-pane", "-p", "-e"]);
        let is_colour = |codes: &str| {
            let codes = codes.split('m').next().unwrap_or_default();
            codes
                .split(';')
                .any(|code| matches!(code.parse::<u32>(), Ok(30..=38 | 40..=48 | 90..=107)))
        };
        let found = painted.split("\x1b[").skip(1).any(is_colour);
        assert_eq!(found, has_colours, "{variable}: {painted:?}");
    }
}
