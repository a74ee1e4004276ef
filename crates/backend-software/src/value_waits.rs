//! Streams that wait for a word in memory.
//!
//! Nobody tells the device when a word changes: a kernel, a copy, or the program itself may write it. So one thread looks
//! at the words of all such streams, at first without a pause to speak of, later less often.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use mica_cuda_abi::CuResult;
use mica_gpu::{GpuError, Result, StreamId, ValueWait};

use crate::context::Context;
use crate::core::{Core, OpKind, State};
use crate::device::SoftwareGpu;
use crate::error::invalid_value;
use crate::memory::DeviceMemory;
use crate::threads::wait_for;
use crate::transfer::guarded;
use crate::worker::wait;

/// Pauses between two looks: a stream that waits for the program is mostly let go soon or late.
const SHORTEST: Duration = Duration::from_micros(10);
const LONGEST: Duration = Duration::from_micros(500);

/// A stream whose first operation waits for a word.
#[derive(Clone, Copy)]
pub(crate) struct WaitingStream {
    stream: u64,
    wait: ValueWait,
}

impl SoftwareGpu {
    /// Lets a stream wait for a word, which must be in live memory now.
    pub(crate) fn queue_value_wait(&self, stream: StreamId, wait: &ValueWait) -> Result<()> {
        let (at, bytes) = (wait.address.0, wait.bytes());
        if !self.core.memory.is_live(at, bytes, false) {
            let what = format!("a wait for {bytes} bytes at {at:#x}, which are in no allocation");
            return Err(invalid_value(what));
        }
        let mut state = self.core.state();
        state.healthy_stream(stream.0)?;
        let op = OpKind::WaitValue(*wait);
        self.core.submit(&mut state, stream.0, op);
        Ok(())
    }
}

impl Core {
    /// Has a stream's word looked at from now on; the stream is active until the wait is over.
    pub(crate) fn start_value_wait(
        self: &Arc<Self>,
        state: &mut State,
        context: &Context,
        stream: u64,
        wait: ValueWait,
    ) {
        if !state.threads.looks_at_values {
            let core = Arc::clone(self);
            let started = self.spawn(state, "mica-waits", move || core.look_at_values());
            state.threads.looks_at_values = started;
        }
        if !state.threads.looks_at_values {
            let what = "no thread can be started that looks at what a stream waits for";
            context.set_fault(GpuError::new(CuResult::OperatingSystem, what));
            return self.complete(state, stream);
        }
        state.value_waits.push(WaitingStream { stream, wait });
        self.values.notify_one();
    }

    fn look_at_values(self: &Arc<Self>) {
        let mut state = self.state();
        let mut pause = SHORTEST;
        while !self.shutdown.load(Ordering::SeqCst) {
            if state.value_waits.is_empty() {
                state = wait(&self.values, state);
                pause = SHORTEST;
                continue;
            }
            let waiting = state.value_waits.clone();
            let contexts: Vec<Option<Arc<Context>>> = (waiting.iter())
                .map(|one| Some(Arc::clone(&state.streams.get(&one.stream)?.context)))
                .collect();
            drop(state);
            let mut over = Vec::new();
            for (one, context) in waiting.iter().zip(&contexts) {
                if (context.as_ref()).is_none_or(|context| self.is_wait_over(context, &one.wait)) {
                    over.push(one.stream);
                }
            }
            state = self.state();
            state.value_waits.retain(|one| !over.contains(&one.stream));
            for stream in &over {
                self.complete(&mut state, *stream);
            }
            pause = match over.is_empty() {
                true => (pause * 2).min(LONGEST),
                false => SHORTEST,
            };
            if !state.value_waits.is_empty() {
                state = wait_for(&self.values, state, pause);
            }
        }
    }

    /// Whether a wait has ended, or its context has.
    fn is_wait_over(self: &Arc<Self>, context: &Arc<Context>, wait: &ValueWait) -> bool {
        // Counted as one that touches the context's memory, whose pages may only move when nobody does.
        self.enter(context);
        let read = match context.is_over() || context.is_suspended() {
            true => None,
            false => Some(read(&self.memory, wait)),
        };
        self.leave(context);
        match read {
            None => context.is_over(),
            Some(Ok(word)) => wait.is_met(word),
            Some(Err(error)) => {
                tracing::error!(context = context.id, %error, "a wait for a word failed");
                self.raise(context, error);
                true
            }
        }
    }
}

/// The word, as long as it is in live memory.
fn read(memory: &DeviceMemory, wait: &ValueWait) -> Result<u64> {
    let (at, is_wide) = (wait.address.0, wait.is_wide);
    // SAFETY: an aligned load with nothing to drop; `guarded` checks the range.
    unsafe {
        guarded(memory, &[(at, wait.bytes(), false)], || match is_wide {
            true => (*(at as *const AtomicU64)).load(Ordering::Acquire),
            false => (*(at as *const AtomicU32)).load(Ordering::Acquire).into(),
        })
    }
}
