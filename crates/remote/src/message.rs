//! What is said behind TLS before a session: a request and an answer, JSON with its length before it.

use std::io;

use mica_control::api::{Created, Event, VgpuSpec};
use mica_tunnel::Carrier;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::RemoteError;

/// Most bytes of a request.
pub const MOST_REQUEST_BYTES: usize = 16 << 10;
/// Most bytes of an answer.
pub const MOST_ANSWER_BYTES: usize = 1 << 20;

/// What a client asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Take my certificate: I have an invitation.
    Pair {
        /// Its secret, in hexadecimal digits.
        secret: String,
    },
    /// Make a virtual GPU that lives as long as this connection.
    Run {
        /// What it should be.
        spec: Box<VgpuSpec>,
        /// The GPU by index or kind.
        gpu: Option<String>,
        /// The program's command line, for listings.
        command: String,
    },
    /// Serve one process in a virtual GPU; frames follow the answer.
    Session {
        /// From the answer to `Run`.
        ticket: String,
        /// The process's number over there.
        pid: u32,
    },
    /// Go on with a session whose connection broke.
    Resume {
        /// Bytes of the session's stream that have come; 0 for a connection that keeps a virtual GPU.
        received: u64,
    },
    /// The virtual GPU of this connection is not needed any more.
    End,
    /// Describe the virtual GPU of this connection.
    Describe,
    /// What happened in the virtual GPU of this connection.
    Events,
    /// I am here; what the link is like.
    Ping {
        /// Microseconds of the last round trip; 0 while unknown.
        round_trip_us: u64,
        /// Bytes a second that the link took lately; 0 while unknown.
        bytes_per_second: u64,
        /// Broken connections that were replaced.
        resumed: u64,
        /// Bytes of uploads that were not sent again.
        saved_bytes: u64,
    },
    /// Who are you: for `mica remote ls`.
    Status,
}

/// How a broken connection is replaced by another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeTerms {
    /// The session's number, in hexadecimal digits, for the hello of the other connection.
    pub session: String,
    /// Milliseconds that the server waits for it; 0: not at all.
    pub within_ms: u64,
}

/// What the server answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// No.
    Refused {
        /// Why, in a sentence.
        why: String,
    },
    /// You are known from now on.
    Paired {
        /// Under this name.
        client: String,
    },
    /// The virtual GPU.
    Running {
        /// All about it; its token is of no use there and is empty.
        created: Box<Created>,
        /// For sessions.
        ticket: String,
        /// Memory of its GPU.
        device_bytes: u64,
        /// How a broken connection is replaced.
        resume: ResumeTerms,
    },
    /// Frames follow.
    Session {
        /// How a broken connection is replaced.
        resume: ResumeTerms,
    },
    /// The session goes on: the rest of its stream follows.
    Resumed {
        /// Bytes of the session's stream that have come.
        received: u64,
    },
    /// A description, in JSON.
    Described {
        /// As the control API has it.
        vgpu: serde_json::Value,
    },
    /// Events, oldest first.
    Events {
        /// As the control API has them.
        events: Vec<Event>,
    },
    /// The answer to a ping.
    Pong,
    /// The answer to `Status`.
    Status {
        /// Version of Mica there.
        version: String,
        /// What the client is called there.
        client: String,
        /// Names of the GPUs there.
        gpus: Vec<String>,
    },
}

/// Sends a request or an answer.
///
/// # Errors
/// The stream is broken.
pub fn send(carrier: &dyn Carrier, message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
    bytes.extend(text);
    carrier.send(&bytes)
}

/// Receives a request or an answer of at most `most` bytes.
///
/// # Errors
/// The stream is broken, or the message is too long or cannot be read.
pub fn receive<T: DeserializeOwned>(carrier: &dyn Carrier, most: usize) -> Result<T, RemoteError> {
    let mut length = [0; 4];
    fill(carrier, &mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > most {
        return Err(RemoteError::Protocol(format!(
            "a message of {length} bytes, more than {most}"
        )));
    }
    let mut text = vec![0; length];
    fill(carrier, &mut text)?;
    parse(&text)
}

/// Reads a message from foreign bytes.
///
/// # Errors
/// It is none.
pub fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, RemoteError> {
    serde_json::from_slice(text)
        .map_err(|error| RemoteError::Protocol(format!("a message that makes no sense: {error}")))
}

fn fill(carrier: &dyn Carrier, buffer: &mut [u8]) -> Result<(), RemoteError> {
    let mut filled = 0;
    while filled < buffer.len() {
        let got = carrier.receive(&mut buffer[filled..]);
        filled += match got.map_err(crate::tls::lost)? {
            0 => {
                return Err(RemoteError::Network {
                    what: "the other side closed the connection".into(),
                    source: io::ErrorKind::UnexpectedEof.into(),
                });
            }
            got => got,
        };
    }
    Ok(())
}
