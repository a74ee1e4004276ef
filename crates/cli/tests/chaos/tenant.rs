//! One tenant: a program in its virtual GPU that checks every result it gets.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, ChildStdout, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::processes::{self, Process};
use crate::world::Home;

/// Where a tenant's virtual GPU comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `mica create`, then `mica exec`.
    Standing,
    /// `mica run`.
    Ephemeral,
}

#[derive(Debug)]
pub(crate) struct Tenant {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) limit_bytes: u64,
    held_mib: u64,
    running: Option<Running>,
}

/// A launcher (`mica run` or `mica exec`) and what its program prints.
#[derive(Debug)]
struct Running {
    launcher: Child,
    progress: Arc<Progress>,
    readers: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Progress {
    /// In use on its device once it is ready.
    used_bytes: AtomicU64,
    steps: AtomicU32,
    said: Mutex<String>,
}

impl Tenant {
    pub(crate) fn new(index: usize) -> Self {
        let index = index as u64;
        Self {
            name: format!("tenant-{index}"),
            kind: match index % 2 {
                0 => Kind::Standing,
                _ => Kind::Ephemeral,
            },
            limit_bytes: (64 + 8 * index) << 20,
            held_mib: 8 + 4 * index,
            running: None,
        }
    }

    /// Starts its program; [`Tenant::steps`] says how far it is.
    pub(crate) fn start(&mut self, home: &Home) {
        assert!(self.running.is_none(), "{} runs", self.name);
        let load = format!(
            r#"{{"pattern":"verify","iterations":400,"depth":{},"start_unix_ms":0,"seconds":0}}"#,
            self.held_mib
        );
        let memory = (self.limit_bytes >> 20).to_string() + "MiB";
        let words: &[&str] = match self.kind {
            Kind::Standing => &["exec", &self.name],
            Kind::Ephemeral => &["run", "--name", &self.name, "-m", &memory, "-s", "10"],
        };
        let program = [words, &["--", home.mica(), "load", &load]].concat();
        let mut launcher = home
            .command(&program)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let progress = Arc::new(Progress::default());
        let (out, err) = (
            launcher.stdout.take().unwrap(),
            launcher.stderr.take().unwrap(),
        );
        let readers = vec![progress.clone().follow(out), progress.clone().listen(err)];
        self.running = Some(Running {
            launcher,
            progress,
            readers,
        });
    }

    fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    /// Steps that came back right.
    pub(crate) fn steps(&self) -> u32 {
        self.running().progress.steps.load(SeqCst)
    }

    /// What its program uses, as the driver told it.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.running().progress.used_bytes.load(SeqCst)
    }

    pub(crate) fn launcher(&self) -> u32 {
        self.running().launcher.id()
    }

    /// Its program: the launcher's only child.
    pub(crate) fn program(&self) -> u32 {
        let pid = self.launcher();
        let children = format!("/proc/{pid}/task/{pid}/children");
        let children = std::fs::read_to_string(children).unwrap();
        let mut children = children.split_whitespace();
        let child = children.next().expect("a launcher has a program");
        child.parse().unwrap()
    }

    /// The code its launcher ended with, if it has.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        let running = self.running.as_mut()?;
        let status = running.launcher.try_wait().unwrap()?;
        Some(status.code().unwrap_or(-1))
    }

    /// Forgets a launcher that has ended; what it said.
    pub(crate) fn bury(&mut self) -> String {
        let mut running = self.running.take().unwrap();
        running.launcher.wait().unwrap();
        for reader in running.readers {
            reader.join().unwrap();
        }
        running.progress.said.lock().unwrap().clone()
    }

    /// What it has said so far.
    pub(crate) fn said(&self) -> String {
        self.running().progress.said.lock().unwrap().clone()
    }

    /// Ends it in order.
    pub(crate) fn stop(&mut self) {
        // SAFETY: sends a signal to a child that was not waited for yet.
        unsafe { libc::kill(self.launcher() as libc::pid_t, libc::SIGTERM) };
        self.bury();
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        // After a failure: its program must not outlive the test.
        if let Some(running) = &mut self.running {
            let _ = running.launcher.kill();
            let _ = running.launcher.wait();
        }
    }
}

impl Progress {
    fn follow(self: Arc<Self>, out: ChildStdout) -> JoinHandle<()> {
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Some(bytes) = line.strip_prefix("ready ") {
                    self.used_bytes.store(bytes.parse().unwrap(), SeqCst);
                } else if let Some(steps) = line.strip_prefix("step ") {
                    self.steps.store(steps.parse().unwrap(), SeqCst);
                }
            }
        })
    }

    fn listen(self: Arc<Self>, mut err: ChildStderr) -> JoinHandle<()> {
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = err.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..count]);
                self.said.lock().unwrap().push_str(&text);
            }
        })
    }
}

/// The processes there should be while everybody runs.
pub(crate) fn expected(tenants: &[Tenant]) -> Vec<&'static str> {
    let mut words = vec!["daemon"];
    for tenant in tenants {
        words.extend(match tenant.kind {
            Kind::Standing => ["exec", "load", "worker"],
            Kind::Ephemeral => ["run", "load", "worker"],
        });
    }
    words.sort_unstable();
    words
}

/// Whether the processes there are, are those there should be.
pub(crate) fn is_complete(tenants: &[Tenant], home: &Home) -> Result<(), Vec<Process>> {
    let found = processes::of(home.path());
    let words: Vec<&str> = found.iter().map(|process| process.word.as_str()).collect();
    match words == expected(tenants) {
        true => Ok(()),
        false => Err(found),
    }
}
