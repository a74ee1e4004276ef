//! Sends warnings to a web server as they come: one HTTP POST each, as JSON.
//!
//! A thread of its own does it, so that a server that hangs holds up nobody. At most [`WAITING`] warnings wait; what comes
//! beyond is dropped, and that is logged, as is every failure.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use mica_control::api::Event;

/// Warnings that wait to be sent at most.
const WAITING: usize = 64;
/// How long connecting, sending and the answer may take, each.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where warnings are sent: `http://HOST[:PORT]/PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    host: String,
    port: u16,
    path: String,
}

impl Target {
    /// Reads an address.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix("http://") else {
            return Err(format!("{text:?} does not begin with http://"));
        };
        let (place, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let bare = !place.starts_with('[') || place.ends_with(']');
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !(bare && place.starts_with('[')) => {
                let port = port
                    .parse()
                    .map_err(|_| format!("{port:?} is not a port"))?;
                (host, port)
            }
            _ => (place, 80),
        };
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if host.is_empty() || host.contains('@') || !is_plain(host) || !is_plain(path) {
            return Err(format!(
                "{text:?} is not an address such as http://host:8080/path"
            ));
        }
        Ok(Self {
            host: host.to_owned(),
            port,
            path: path.to_owned(),
        })
    }

    /// Sends one body of JSON and reads whether it was taken.
    pub(crate) fn post(&self, body: &str) -> std::io::Result<()> {
        let bare = self.host.trim_start_matches('[').trim_end_matches(']');
        let mut failure = std::io::Error::other("the name has no address");
        for address in (bare, self.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => return self.send(stream, body),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn send(&self, mut stream: TcpStream, body: &str) -> std::io::Result<()> {
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let Self { host, port, path } = self;
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\nUser-Agent: mica\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
        // `HTTP/1.1 200`: the rest says nothing that matters here.
        let mut status = [0; 12];
        stream
            .read_exact(&mut status)
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => {
                    std::io::Error::other("the server hung up without an answer")
                }
                std::io::ErrorKind::WouldBlock => {
                    std::io::Error::other("the server did not answer in time")
                }
                _ => error,
            })?;
        // Only the number of the status goes to the log.
        let code = std::str::from_utf8(&status[9..]).unwrap_or_default();
        let is_http = status.starts_with(b"HTTP/1.") && code.bytes().all(|b| b.is_ascii_digit());
        match code {
            _ if !is_http || code.is_empty() => {
                Err(std::io::Error::other("the server's answer is not HTTP"))
            }
            code if code.starts_with('2') => Ok(()),
            code => Err(std::io::Error::other(format!("the server answered {code}"))),
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { host, port, path } = self;
        write!(f, "http://{host}:{port}{path}")
    }
}

/// The thread that sends.
#[derive(Debug)]
pub(crate) struct Webhook {
    queue: Option<SyncSender<(Target, Event)>>,
}

impl Webhook {
    /// Starts the thread, when something is to be sent.
    pub(crate) fn new() -> Self {
        Self { queue: None }
    }

    /// Sends a warning, soon.
    pub(crate) fn send(&mut self, target: Target, event: Event) {
        let queue = self.queue.get_or_insert_with(|| {
            let (queue, wishes) = sync_channel(WAITING);
            let thread = std::thread::Builder::new().name("webhook".into());
            if let Err(error) = thread.spawn(move || run(&wishes)) {
                tracing::warn!("warnings cannot be sent: {error}");
            }
            queue
        });
        match queue.try_send((target, event)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                tracing::warn!("a warning was not sent: {WAITING} others wait");
            }
            Err(TrySendError::Disconnected(_)) => self.queue = None,
        }
    }
}

fn run(wishes: &Receiver<(Target, Event)>) {
    while let Ok((target, event)) = wishes.recv() {
        let body = serde_json::to_string(&event).unwrap_or_default();
        if let Err(error) = target.post(&body) {
            let (host, port) = (&target.host, target.port);
            tracing::warn!("a warning could not be sent to {host}:{port}: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufRead;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn addresses_are_read_and_wrong_ones_refused() {
        let target = |text: &str| Target::parse(text).map(|t| (t.host, t.port, t.path));
        let is = |host: &str, port, path: &str| Ok((host.to_owned(), port, path.to_owned()));
        assert_eq!(target("http://a.b:8080/x?y=1"), is("a.b", 8080, "/x?y=1"));
        assert_eq!(target("http://a"), is("a", 80, "/"));
        assert_eq!(target("http://[::1]:9/x"), is("[::1]", 9, "/x"));
        assert_eq!(target("http://[::1]/x"), is("[::1]", 80, "/x"));
        for wrong in [
            "https://a/",
            "a",
            "http://",
            "http://a:x/",
            "http://u@a/",
            "http://a/ b",
            "http://a/\r\nX: y",
        ] {
            assert!(Target::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_warning_arrives_as_json_and_a_refusal_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let mut heads = Vec::new();
            let answers = [
                "HTTP/1.1 204 No Content\r\n\r\n",
                "HTTP/1.1 500 x\r\n\r\n",
                "HTTP/1.1 \u{1b}[m\r\n\r\n",
                "SSH-2.0-2222",
                "HTTP",
            ];
            for answer in answers {
                let (stream, _) = listener.accept().unwrap();
                let mut reader = std::io::BufReader::new(stream);
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    reader.read_line(&mut head).unwrap();
                }
                let length = head.split("Content-Length: ").nth(1).unwrap();
                let length: usize = length.lines().next().unwrap().parse().unwrap();
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                reader.get_mut().write_all(answer.as_bytes()).unwrap();
                heads.push((head, String::from_utf8(body).unwrap()));
            }
            heads
        });
        let target = Target::parse(&format!("http://127.0.0.1:{port}/hook")).unwrap();
        target.post("{\"kind\":\"memory_high\"}").unwrap();
        let refused = target.post("{}").unwrap_err();
        assert!(refused.to_string().contains("500"), "{refused}");
        for words in ["is not HTTP", "is not HTTP", "hung up"] {
            let refused = target.post("{}").unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
        let heads = server.join().unwrap();
        assert!(
            heads[0].0.starts_with("POST /hook HTTP/1.1\r\n"),
            "{heads:?}"
        );
        assert_eq!(heads[0].1, "{\"kind\":\"memory_high\"}");
        assert!(target.post("{}").is_err(), "nobody listens any more");
    }
}
