//! Fixed-size messages between a client and the daemon.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Protocol version; a mismatch is refused with both numbers.
pub const PROTOCOL_VERSION: u32 = 1;
/// Bytes in every message.
pub const MESSAGE_BYTES: usize = 256;
/// Bytes of text a message can carry.
pub const TEXT_BYTES: usize = 192;

/// What a message says.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Client: I am here. `a` = [`Role`], `b` = protocol version, `c` = claimed granted bytes when
    /// resuming, `d` = client id given by the earlier daemon when resuming, `token` set; with the
    /// page's descriptor attached when resuming after a restart.
    Hello = 1,
    /// Client: I need `a` bytes more credit (at least) than the `b` I have; answered by [`Kind::Credit`]. With `c` = 1
    /// at once: what does not fit now is refused without waiting, and nobody is told, for it will be asked again or is
    /// not needed.
    NeedCredit = 2,
    /// Client: what are the limit and use of my virtual GPU; answered by [`Kind::Memory`].
    AskMemory = 3,
    /// Client: a sentence for the event log in `text`; `a` = severity (0 info, 1 warning, 2 error).
    Note = 4,
    /// Client (monitor): describe the virtual GPU; answered by [`Kind::Stats`] in JSON pieces.
    AskStats = 5,
    /// Worker: `a` = layers of its confinement that are in force, one bit each; `b` = the bit of one that is not, with
    /// the reason in `text`, or 0.
    Confined = 6,
    /// Daemon: accepted. `a` = limit bytes, `b` = device total bytes, `c` = client id, `d` = GPU
    /// index; `text` = name of the virtual GPU; descriptors: page, doorbell. For
    /// [`Role::Program`]: one descriptor, the session socket to the worker.
    Welcome = 16,
    /// Daemon: `a` = bytes granted now (already added to the page), 0 with `text` when refused.
    Credit = 17,
    /// Daemon: `a` = limit, `b` = used by the virtual GPU, `c` = device total, `d` = device free.
    Memory = 18,
    /// Daemon: refused; `a` = [`Refusal`], `text` says why.
    Refused = 19,
    /// Daemon to worker: serve a new session on the first attached descriptor. `a` = session id,
    /// `b` = pid, `c` = uid of the program, whose pidfd is the second descriptor where there is one.
    Session = 20,
    /// Daemon: a piece of JSON in `text`; `a` = bytes in this piece, `b` = bytes still to come.
    Stats = 21,
    /// Daemon to worker: end, freeing everything.
    Shutdown = 22,
    /// Daemon to worker: cancel running and queued kernels.
    Cancel = 23,
    /// Worker: keep the attached file under the name in `token` for other workers of the virtual GPU. `a` = bytes of
    /// what it stands for, `b` = what that is. Answered by the same.
    ShareFile = 24,
    /// Worker: give me the file that is kept under the name in `token`. Answered by [`Kind::ShareFile`] with it.
    OpenFile = 25,
    /// Worker: keep the file under the name in `token` no more. Not answered.
    DropFile = 26,
}

impl Kind {
    /// The kind with this number.
    pub fn from_number(number: u32) -> Option<Kind> {
        use Kind::*;
        [
            Hello, NeedCredit, AskMemory, Note, AskStats, Confined, Welcome, Credit, Memory,
            Refused, Session, Stats, Shutdown, Cancel, ShareFile, OpenFile, DropFile,
        ]
        .into_iter()
        .find(|k| *k as u32 == number)
    }
}

/// Who says hello.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A program with the driver in its own process.
    Direct = 1,
    /// A worker that owns the device for one virtual GPU.
    Worker = 2,
    /// A program that wants a session with its virtual GPU's worker.
    Program = 3,
    /// A tool that only looks.
    Monitor = 4,
}

/// Why the daemon refused.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Protocol versions differ.
    Version = 1,
    /// No virtual GPU has this token.
    Token = 2,
    /// The peer may not use this virtual GPU.
    Permission = 3,
    /// A limit cannot be enforced here.
    Enforcement = 4,
    /// The virtual GPU is lost or being removed.
    State = 5,
    /// The message made no sense.
    Protocol = 6,
    /// Too many connections.
    Busy = 7,
}

/// In [`Message::b`] of a [`Kind::Note`]: the text begins with an entry point that Mica does not know.
pub const NOTE_UNKNOWN_SYMBOL: u64 = 1;
/// What a [`Kind::Note`] is about, in `b`: a kernel of the program faulted.
pub const NOTE_KERNEL_FAULT: u64 = 2;
/// A module of the program was refused.
pub const NOTE_MODULE_REFUSED: u64 = 3;
/// A worker cannot serve.
pub const NOTE_WORKER_FAILED: u64 = 4;

/// One message.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Message {
    /// A [`Kind`] by number.
    pub kind: u32,
    /// Chosen by the asker, repeated in the answer; 0 for what nobody asked.
    pub id: u32,
    /// Meaning depends on the kind.
    pub a: u64,
    /// Meaning depends on the kind.
    pub b: u64,
    /// Meaning depends on the kind.
    pub c: u64,
    /// Meaning depends on the kind.
    pub d: u64,
    /// Capability to join a virtual GPU, in `Hello`.
    pub token: [u8; 16],
    /// Text, zero padded UTF-8.
    pub text: [u8; TEXT_BYTES],
    /// Zero.
    pub reserved: [u8; 8],
}

const _: () = assert!(size_of::<Message>() == MESSAGE_BYTES);

impl Message {
    /// A message with all fields zero but its kind.
    pub fn new(kind: Kind) -> Self {
        let mut message = Self {
            kind: 0,
            id: 0,
            a: 0,
            b: 0,
            c: 0,
            d: 0,
            token: [0; 16],
            text: [0; TEXT_BYTES],
            reserved: [0; 8],
        };
        message.kind = kind as u32;
        message
    }

    /// The same with text, cut at a character boundary if it is too long.
    pub fn with_text(mut self, text: &str) -> Self {
        let mut end = text.len().min(TEXT_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.text = [0; TEXT_BYTES];
        self.text[..end].copy_from_slice(&text.as_bytes()[..end]);
        self
    }

    /// What it says, if the number is known.
    pub fn kind(&self) -> Option<Kind> {
        Kind::from_number(self.kind)
    }

    /// The text up to its first zero, invalid UTF-8 replaced.
    pub fn text(&self) -> String {
        let end = self.text.iter().position(|b| *b == 0).unwrap_or(TEXT_BYTES);
        String::from_utf8_lossy(&self.text[..end]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_at_a_character_boundary() {
        let text = "é".repeat(200);
        let message = Message::new(Kind::Note).with_text(&text);
        assert_eq!(message.text(), "é".repeat(TEXT_BYTES / 2));
    }

    #[test]
    fn every_kind_survives_its_number() {
        for number in 0..64 {
            if let Some(kind) = Kind::from_number(number) {
                assert_eq!(kind as u32, number);
            }
        }
        assert_eq!(Kind::from_number(9999), None);
    }
}
