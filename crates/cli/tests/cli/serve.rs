//! `mica serve`: what reads the network is confined, and still does its work.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use mica_remote::hello::{HELLO_BYTES, Purpose, client_hello};

use crate::home::{Home, eventually};

/// `mica serve` and what it says.
struct Serving {
    child: Child,
    address: String,
    said: Receiver<String>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Serving {
    fn start(home: &Home) -> Self {
        let mut command = keys(home, "server", "serve --listen 127.0.0.1:0");
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, said) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).all(|l| sender.send(l).is_ok()));
        let first = said.recv_timeout(Duration::from_secs(180)).unwrap();
        let address = first.split_once(" at ").unwrap().1;
        let address = address.split(' ').next().unwrap().to_owned();
        Self {
            child,
            address,
            said,
        }
    }

    /// Waits for a line with these words.
    fn logs(&self, words: &str) {
        loop {
            let line = self.said.recv_timeout(Duration::from_secs(180));
            if line.expect(words).contains(words) {
                return;
            }
        }
    }

    /// The numbers of its processes for connections.
    fn connections(&self) -> Vec<u32> {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers
            .filter(|pid| status(*pid, "PPid").is_some_and(|p| p == self.child.id().to_string()))
            .collect()
    }
}

/// A line of `/proc/PID/status`.
fn status(pid: u32, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim_start_matches(':').trim().to_owned())
}

/// `mica` with the keys of one side.
fn keys(home: &Home, side: &str, line: &str) -> Command {
    let words: Vec<&str> = line.split(' ').collect();
    let mut command = home.command(&words);
    command.env("MICA_REMOTE_DIR", home.path().join(side));
    command
}

fn ok(home: &Home, side: &str, line: &str) -> String {
    let output = keys(home, side, line).output().unwrap();
    assert!(output.status.success(), "mica {line}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn what_reads_the_network_is_confined_and_serves() {
    let home = Home::new();
    let serving = Serving::start(&home);
    let address = &serving.address;
    // Pairing writes a file of the server's, the listing asks the daemon, both from inside the confinement.
    let line = format!("remote invite --name laptop --address {address}");
    let invite = ok(&home, "server", &line);
    ok(&home, "client", &format!("remote pair {invite} --name box"));
    let listed = ok(&home, "client", "remote ls --json");
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["servers"][0]["reachable"], true, "{listed}");
    assert!(listed["servers"][0]["gpus"][0].is_string(), "{listed}");
    eventually("the processes of these connections end", || {
        serving.connections().is_empty()
    });
    // A stranger that says hello and nothing more has a process that can do nothing.
    let mut stranger = TcpStream::connect(address).unwrap();
    stranger.write_all(&client_hello(Purpose::Use)).unwrap();
    stranger.read_exact(&mut [0; HELLO_BYTES]).unwrap();
    eventually("its process is confined", || {
        let found = serving.connections();
        found.len() == 1 && status(found[0], "Seccomp").as_deref() == Some("2")
    });
    let pid = serving.connections()[0];
    assert_eq!(status(pid, "NoNewPrivs").as_deref(), Some("1"));
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let set_bits = status(pid, set).unwrap();
        // Who has no privileges cannot empty the bounding set, and needs not.
        let is_empty = set_bits.trim_start_matches('0').is_empty();
        let is_root = rustix::process::geteuid().is_root();
        assert!(is_empty || set == "CapBnd" && !is_root, "{set}: {set_bits}");
    }
    drop(stranger);
    serving.logs("was refused: the other side ended the handshake");
    eventually("its process ends", || serving.connections().is_empty());
}

#[test]
fn an_invitation_that_nobody_could_use_is_refused() {
    let home = Home::new();
    for minutes in ["0", "10081"] {
        let line = format!("remote invite --name laptop --minutes {minutes}");
        let output = keys(&home, "server", &line).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}
