//! A program that does one thing at a time, as it is told.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::{HANG, eventually};

/// A program that does one thing for each byte it is sent, and says so.
pub(crate) struct Served {
    child: Child,
    answers: Receiver<String>,
}

impl Served {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        let mut served = Self { child, answers };
        assert_eq!(served.answer(), "ready");
        served
    }

    /// Has the whole process stand still.
    pub(crate) fn freeze(&self) {
        self.signal(libc::SIGSTOP);
        let stat = format!("/proc/{}/stat", self.child.id());
        eventually("it stands still", || {
            let stat = std::fs::read_to_string(&stat).unwrap();
            stat.rsplit(") ").next().unwrap().starts_with('T')
        });
    }

    pub(crate) fn thaw(&self) {
        self.signal(libc::SIGCONT);
    }

    /// Has it say whether the thread it stands in can be followed back.
    pub(crate) fn look_back(&mut self) -> String {
        self.signal(libc::SIGUSR1);
        self.answer()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a signal to a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    pub(crate) fn send(&mut self, what: &str) {
        self.child
            .stdin
            .as_mut()
            .unwrap()
            .write_all(what.as_bytes())
            .unwrap();
    }

    pub(crate) fn answer(&mut self) -> String {
        self.answers.recv_timeout(HANG).unwrap()
    }

    /// The answer, while `meanwhile` is done now and then.
    pub(crate) fn answer_while(&mut self, mut meanwhile: impl FnMut()) -> String {
        let began = Instant::now();
        loop {
            if let Ok(answer) = self.answers.recv_timeout(Duration::from_millis(30)) {
                return answer;
            }
            assert!(began.elapsed() < HANG, "no answer");
            meanwhile();
        }
    }

    /// The answer, unless something else happens first.
    pub(crate) fn answer_or(&mut self, happened: impl Fn() -> bool) -> Option<String> {
        let began = Instant::now();
        loop {
            if let Ok(answer) = self.answers.recv_timeout(Duration::from_millis(30)) {
                return Some(answer);
            }
            if happened() {
                return None;
            }
            assert!(began.elapsed() < HANG, "no answer");
        }
    }

    pub(crate) fn ask(&mut self, what: &str) -> String {
        self.send(what);
        self.answer()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
