//! Carries out one call: the wire's form in, the engine's answer out.
//!
//! Every call of the table has a handler ([`Perform`]) in one of the files below; the match over all calls is made of the
//! table, so a call without a handler, or with an answer of another type than its row says, does not compile.

mod blobs;
mod contexts;
mod graphs;
mod mappings;
mod memory;
mod modules;
mod pinned;
mod program;
mod shared;
mod streams;
mod uploads;

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, OnceLock};

use mica_gpu::Share;
use mica_vgpu::{GraphOp, Session, VgpuError};
use mica_wire::for_each_call;
use mica_wire::session::server::SessionPort;
use mica_wire::session::{Call, Done, Field, Number, Owner, Request, Truth, Violation};

use crate::callbacks::Callbacks;
use crate::lock;
use crate::{OutputBuffer, SharedFiles};

/// Why a call has no answer: a refusal, or a reason to end the session.
#[derive(Debug)]
pub(crate) enum Failure {
    Refused(VgpuError),
    Violation(Violation),
}

impl<T: Into<VgpuError>> From<T> for Failure {
    fn from(error: T) -> Self {
        Self::Refused(error.into())
    }
}

/// What came of a call: the encoded answer.
pub(crate) type Outcome = Result<Vec<u8>, Failure>;

/// What comes of a call of one kind.
type Answer<R> = Result<<R as Request>::Answer, Failure>;

/// A call's handler.
trait Perform: Request {
    fn perform(self, dispatcher: &Dispatcher, tail: &[u8]) -> Answer<Self>;
}

/// Handler of a call that can be a node of a graph.
trait IntoNode: Request {
    fn into_node(self, dispatcher: &Dispatcher, tail: &[u8]) -> Result<GraphOp, Failure>;
}

/// Defines handlers: `Call(call) => answer;` with the names that stand for the dispatcher, its session and the tail.
macro_rules! handlers {
    ($dispatcher:ident, $session:ident, $tail:ident; $($name:ident($call:pat) => $answer:expr;)*) => {$(
        impl super::Perform for mica_wire::session::$name {
            #[allow(unused_variables, reason = "not every handler needs everything")]
            fn perform(self, $dispatcher: &super::Dispatcher, $tail: &[u8]) -> super::Answer<Self> {
                let $session = &*$dispatcher.session;
                let $call = self;
                $answer
            }
        }
    )*};
}
use handlers;

/// What the threads of a session share to carry out its calls.
pub(crate) struct Dispatcher {
    pub(crate) session: Arc<Session>,
    pub(crate) port: Arc<SessionPort>,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) output: Arc<OutputBuffer>,
    blobs: Mutex<blobs::Blobs>,
    read_buffers: OnceLock<Option<pinned::ReadBuffers>>,
    /// Buffers of reads that failed: the device may write to them until the session's contexts are gone.
    abandoned: Mutex<Vec<(Vec<u8>, Share)>>,
    /// Sentences about refusals that came from the program.
    refusals: AtomicU32,
    /// Who carries files to other workers of the virtual GPU, and sentences to the daemon.
    files: Option<Arc<dyn SharedFiles>>,
    shared: shared::Shared,
    /// Staging chunks that copies to the device read.
    uploads: uploads::Uploads,
    not_pinned: pinned::NotPinned,
}

fn number(value: u64) -> Result<Number, Failure> {
    Ok(Number { value })
}

fn truth(value: bool) -> Result<Truth, Failure> {
    Ok(Truth { value })
}

fn done(_: ()) -> Result<Done, Failure> {
    Ok(Done {})
}

fn encode(answer: impl Field) -> Vec<u8> {
    let mut bytes = Vec::new();
    answer.put(&mut bytes);
    bytes
}

impl Dispatcher {
    pub(crate) fn new(
        session: Arc<Session>,
        port: Arc<SessionPort>,
        output: Arc<OutputBuffer>,
        files: Option<Arc<dyn SharedFiles>>,
    ) -> Self {
        Self {
            session,
            port,
            callbacks: Arc::default(),
            output,
            blobs: Mutex::default(),
            read_buffers: OnceLock::new(),
            abandoned: Mutex::default(),
            refusals: AtomicU32::new(0),
            files,
            shared: shared::Shared::default(),
            uploads: uploads::Uploads::default(),
            not_pinned: pinned::NotPinned::default(),
        }
    }

    /// Gives the device what was kept back for more of its kind: the program has sent nothing else.
    #[inline]
    pub(crate) fn settle(&self) {
        self.session.gpu().settle();
        self.uploads.settle(&self.session);
    }

    /// Gives staging chunks back whose copies are done, for a thread that has nothing else to do.
    #[inline]
    pub(crate) fn look_at_uploads(&self) {
        if self.uploads.are_under_way() {
            self.session.gpu().look_at_releases();
        }
    }

    /// What of the session cannot be saved, besides what the engine knows.
    pub(crate) fn obstacle_to_saving(&self) -> Option<String> {
        let own = [
            (
                self.shared.is_used(),
                "memory or events that other processes may have (cuIpcGetMemHandle)",
            ),
            (
                self.callbacks.any(),
                "host functions that its streams wait for",
            ),
            (!lock(&self.abandoned).is_empty(), "copies that failed"),
        ];
        let found = own.into_iter().find(|(is, _)| *is);
        found.map(|(_, what)| format!("its program has {what}"))
    }

    /// The context with these late errors; 0 for none.
    pub(crate) fn context_of(&self, owner: Owner) -> u64 {
        match owner {
            Owner::Nobody => 0,
            Owner::Context(context) => context,
            Owner::Stream(stream) => self.session.context_of_stream(stream).unwrap_or(0),
            Owner::Event(event) => self.session.context_of_event(event).unwrap_or(0),
        }
    }
}

macro_rules! node {
    (Yes $dispatcher:ident $call:ident $tail:ident) => {
        IntoNode::into_node($call, $dispatcher, $tail)
    };
    (No $dispatcher:ident $call:ident $tail:ident) => {
        Err(not_a_node(&$call))
    };
}

macro_rules! dispatch {
    ($(($name:ident, $node:ident))*) => {
        impl Dispatcher {
            /// Carries out a call.
            pub(crate) fn perform(&self, call: Call, tail: &[u8]) -> Outcome {
                match call {
                    $(Call::$name(call) => Perform::perform(call, self, tail).map(encode),)*
                }
            }

            /// A call as a node of a graph.
            fn graph_op(&self, call: Call, tail: &[u8]) -> Result<GraphOp, Failure> {
                match call {
                    $(Call::$name(call) => node!($node self call tail),)*
                }
            }
        }
    };
}
for_each_call!(dispatch);

fn not_a_node<R: Request>(_: &R) -> Failure {
    let what = format!("{} cannot be a node of a graph", R::NAME);
    VgpuError::Argument(what).into()
}
