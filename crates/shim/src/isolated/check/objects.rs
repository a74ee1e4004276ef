//! Streams, events, modules and the like that a program makes and does not destroy, for `mica run --leaks`.
//!
//! Owns the list of what lives. It is kept only where somebody asked for it: all others pay for one look at a flag.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock};

use super::{faulted_already, is_wanted, when, write};
use crate::isolated::support::lock;

/// The word in the list of tools that asks for objects.
const WORD: &str = "objects";

/// What a program makes besides memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ObjectKind {
    Stream,
    Event,
    Module,
    Array,
    Texture,
    Graph,
    GraphExec,
    Pool,
}

impl ObjectKind {
    fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Event => "event",
            Self::Module => "module",
            Self::Array => "array",
            Self::Texture => "texture or surface",
            Self::Graph => "graph",
            Self::GraphExec => "executable graph",
            Self::Pool => "memory pool",
        }
    }

    /// What has to be done with it that was not.
    fn end(self) -> &'static str {
        match self {
            Self::Module => "unloaded",
            _ => "destroyed",
        }
    }
}

struct Live {
    bytes: u64,
    /// Life of the context that it belongs to; 0: of none.
    epoch: u64,
    made_ms: u64,
}

static LIVE: Mutex<BTreeMap<(ObjectKind, u64), Live>> = Mutex::new(BTreeMap::new());

fn are_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| is_wanted(WORD))
}

/// The program has made an object of a life of a context, or of no context with epoch 0.
pub(crate) fn made(kind: ObjectKind, handle: u64, bytes: u64, epoch: u64) {
    if !are_wanted() {
        return;
    }
    let made_ms = when();
    let list = super::frames_json(&super::frames());
    let what = kind.name();
    write(
        format!(
            "{{\"record\":\"allocation\",\"address\":{handle},\"bytes\":{bytes},\"what\":\"{what}\",\"frames\":{list}}}\n"
        )
        .as_bytes(),
    );
    let live = Live {
        bytes,
        epoch,
        made_ms,
    };
    lock(&LIVE).insert((kind, handle), live);
}

/// The program has destroyed an object.
pub(crate) fn gone(kind: ObjectKind, handle: u64) {
    if are_wanted() {
        lock(&LIVE).remove(&(kind, handle));
    }
}

/// A life of a context is over, and its objects with it; `tell` is set if the process ends, where nobody else ended them.
pub(crate) fn context_over(epoch: u64, tell: bool) {
    if !are_wanted() {
        return;
    }
    let over: Vec<_> = lock(&LIVE)
        .extract_if(.., |_, live| live.epoch == epoch)
        .collect();
    if tell {
        tell_all(&over);
    }
}

/// Tells what the program has not destroyed. For the end of the process.
pub(crate) fn tell_left() {
    if are_wanted() {
        let left: Vec<_> = std::mem::take(&mut *lock(&LIVE)).into_iter().collect();
        tell_all(&left);
    }
}

fn tell_all(left: &[((ObjectKind, u64), Live)]) {
    if faulted_already() {
        return;
    }
    for ((kind, handle), live) in left {
        write(record(*kind, *handle, live).as_bytes());
    }
}

fn record(kind: ObjectKind, handle: u64, live: &Live) -> String {
    let (what, end) = (kind.name(), kind.end());
    let (bytes, made_ms) = (live.bytes, live.made_ms);
    format!(
        "{{\"record\":\"finding\",\"tool\":\"leakcheck\",\"kind\":\"object\",\"severity\":\"error\",\
         \"message\":\"a {what} was never {end}\",\"parties\":[],\"count\":1,\
         \"allocation\":{{\"address\":{handle},\"bytes\":{bytes},\"state\":\"live\",\
         \"distance\":0,\"what\":\"{what}\",\"made_ms\":{made_ms}}}}}\n"
    )
}
