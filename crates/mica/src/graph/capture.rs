//! Capture: calls on streams become nodes of a graph instead of running.
//!
//! ```text
//!   Stream::capture ─► the stream is a part of a capture: each call is a node after the stream's last ones
//!        event recorded there ─► another stream waits for it ─► that stream is a part too
//!   end ─► all parts joined by the first stream? ─► Graph
//! ```

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mica_vgpu::GraphOp;

use super::{Graph, Kept, Nodes};
use crate::stream::Stream;
use crate::vgpu::Vgpu;
use crate::{Error, Result};

/// A place in a capture: the nodes that the next one comes after.
#[derive(Clone)]
struct Place {
    capture: u64,
    after: Vec<u32>,
}

#[derive(Default)]
struct State {
    next: u64,
    captures: HashMap<u64, Nodes>,
    /// By the handles of streams and events.
    streams: HashMap<u64, Place>,
    events: HashMap<u64, Place>,
}

/// The captures of one virtual GPU. Who never captures pays one load a call.
#[derive(Default)]
pub(crate) struct Captures {
    active: AtomicUsize,
    state: Mutex<State>,
}

/// Ends a capture, however its function ends.
struct Ending<'c> {
    captures: &'c Captures,
    capture: u64,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut state = self.captures.lock();
        state.captures.remove(&self.capture);
        state
            .streams
            .retain(|_, place| place.capture != self.capture);
        state
            .events
            .retain(|_, place| place.capture != self.capture);
        self.captures.active.fetch_sub(1, Ordering::Release);
    }
}

impl Captures {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_idle(&self) -> bool {
        self.active.load(Ordering::Acquire) == 0
    }

    /// Whether a stream is being captured.
    pub(crate) fn has(&self, stream: u64) -> bool {
        !self.is_idle() && self.lock().streams.contains_key(&stream)
    }

    /// Makes a node of a call, if its stream is being captured; whether it is.
    pub(crate) fn record(
        &self,
        stream: u64,
        node: impl FnOnce() -> Result<(GraphOp, Kept)>,
    ) -> Result<bool> {
        if !self.has(stream) {
            return Ok(false);
        }
        let (op, kept) = node()?;
        let mut state = self.lock();
        let State {
            captures, streams, ..
        } = &mut *state;
        let Some(place) = streams.get_mut(&stream) else {
            return Ok(false);
        };
        if let Some(nodes) = captures.get_mut(&place.capture) {
            let after = std::mem::take(&mut place.after);
            place.after = vec![nodes.push(after, op, kept)];
        }
        Ok(true)
    }

    /// Refuses what cannot be a node, on a stream that is being captured.
    pub(crate) fn refuse(&self, stream: u64, what: &str) -> Result<()> {
        if !self.has(stream) {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "{what} cannot be a part of a graph, and the stream is being captured"
        )))
    }

    /// Notes where a stream is for an event, if it is being captured; whether it is.
    pub(crate) fn mark(&self, event: u64, stream: u64) -> bool {
        if self.is_idle() {
            return false;
        }
        let mut state = self.lock();
        match state.streams.get(&stream).cloned() {
            Some(place) => state.events.insert(event, place),
            // It stands for work outside of captures again.
            None => {
                state.events.remove(&event);
                return false;
            }
        };
        true
    }

    /// Has a stream come after an event, if that was recorded in a capture; whether it was.
    pub(crate) fn join(&self, stream: u64, event: u64, is_default: bool) -> Result<bool> {
        if self.is_idle() {
            return Ok(false);
        }
        let mut state = self.lock();
        let refused = |what: &str| Err(Error::Argument(what.into()));
        let marked = state.events.get(&event).cloned();
        match (marked, state.streams.get_mut(&stream)) {
            (None, None) => Ok(false),
            (None, Some(_)) => {
                refused("a captured stream cannot wait for an event from outside of its capture")
            }
            (Some(mark), Some(place)) if mark.capture == place.capture => {
                let new = mark.after.iter().filter(|node| !place.after.contains(node));
                let new: Vec<u32> = new.copied().collect();
                place.after.extend(new);
                Ok(true)
            }
            (Some(_), Some(_)) => refused("two captures cannot wait for each other"),
            (Some(_), None) if is_default => {
                refused("the default stream cannot be captured, so it cannot wait for a capture")
            }
            (Some(mark), None) => {
                state.streams.insert(stream, mark);
                Ok(true)
            }
        }
    }

    /// An event is gone; another may be given its handle.
    pub(crate) fn forget_event(&self, event: u64) {
        if !self.is_idle() {
            self.lock().events.remove(&event);
        }
    }

    fn begin(&self, stream: u64) -> Result<Ending<'_>> {
        let mut state = self.lock();
        if state.streams.contains_key(&stream) {
            let message = "the stream is being captured already";
            return Err(Error::Argument(message.into()));
        }
        state.next += 1;
        let capture = state.next;
        let after = Vec::new();
        state.captures.insert(capture, Nodes::default());
        state.streams.insert(stream, Place { capture, after });
        self.active.fetch_add(1, Ordering::Release);
        Ok(Ending {
            captures: self,
            capture,
        })
    }

    /// The nodes of a capture, if its first stream comes after all of them.
    fn finish(&self, capture: u64, stream: u64) -> Result<Nodes> {
        let mut state = self.lock();
        let nodes = state.captures.remove(&capture).unwrap_or_default();
        let place = state.streams.get(&stream);
        let end = place.map_or(&[][..], |place| &place.after);
        let left = nodes.last().into_iter().filter(|node| !end.contains(node));
        match left.count() {
            0 => Ok(nodes),
            count => Err(Error::Argument(format!(
                "{count} nodes of other streams are not joined: let the captured stream wait for an event after them"
            ))),
        }
    }
}

/// Records what a function does on a stream.
pub(crate) fn capture<T>(
    vgpu: &Vgpu,
    stream: &Stream,
    work: impl FnOnce() -> Result<T>,
) -> Result<Graph> {
    if stream.is_default() {
        let message = "the default stream cannot be captured: use Vgpu::stream";
        return Err(Error::Argument(message.into()));
    }
    let captures = &vgpu.captures;
    let ending = captures.begin(stream.handle())?;
    work()?;
    let nodes = captures.finish(ending.capture, stream.handle())?;
    Ok(Graph::with(vgpu, nodes))
}
