//! Carries out one call: the wire's form in, the engine's answer out.

mod blobs;
mod memory;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mica_gpu::{DevicePtr, EventFlags, ModuleOptions, Share, StreamFlags};
use mica_vgpu::{Session, VgpuError};
use mica_wire::session as wire;
use mica_wire::session::server::SessionPort;
use mica_wire::session::{Call, Field, Violation, chunk_state};

use crate::OutputBuffer;
use crate::callbacks::Callbacks;
use crate::convert;

/// A call's end: an answer, a refusal, or a reason to end the session.
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

/// What a session's threads work on.
pub(crate) struct Desk {
    pub(crate) session: Arc<Session>,
    pub(crate) port: Arc<SessionPort>,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) output: Arc<OutputBuffer>,
    blobs: Mutex<blobs::Blobs>,
    /// Buffers of reads that failed: the device may write to them until the session's contexts are gone.
    abandoned: Mutex<Vec<(Vec<u8>, Share)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn encode(answer: &impl Field) -> Outcome {
    let mut bytes = Vec::new();
    answer.put(&mut bytes);
    Ok(bytes)
}

fn number(value: u64) -> Outcome {
    encode(&wire::Number { value })
}

fn done(_: ()) -> Outcome {
    Ok(Vec::new())
}

impl Desk {
    pub(crate) fn new(
        session: Arc<Session>,
        port: Arc<SessionPort>,
        output: Arc<OutputBuffer>,
    ) -> Self {
        Self {
            session,
            port,
            callbacks: Arc::default(),
            output,
            blobs: Mutex::default(),
            abandoned: Mutex::default(),
        }
    }

    /// The context whose late errors this call should tell of; 0 for none.
    pub(crate) fn context_of(&self, call: &Call) -> u64 {
        let stream = |stream| self.session.context_of_stream(stream).unwrap_or(0);
        let event = |event| self.session.context_of_event(event).unwrap_or(0);
        match call {
            Call::ContextSynchronize(c) => c.context,
            Call::ModuleLoad(c) => c.context,
            Call::MemoryAlloc(c) => c.context,
            Call::StreamCreate(c) => c.context,
            Call::EventCreate(c) => c.context,
            Call::GraphInstantiate(c) => c.context,
            Call::StreamSynchronize(c) => stream(c.stream),
            Call::StreamQuery(c) => stream(c.stream),
            Call::StreamClear(c) => stream(c.stream),
            Call::Read(c) => stream(c.stream),
            Call::MemoryAllocAsync(c) => stream(c.stream),
            Call::EventSynchronize(c) => event(c.event),
            Call::EventQuery(c) => event(c.event),
            Call::Launch(c) => stream(c.stream),
            Call::Copy(c) => stream(c.stream),
            Call::Fill(c) => stream(c.stream),
            Call::Write(c) => stream(c.stream),
            Call::GraphLaunch(c) => stream(c.stream),
            Call::EventRecord(c) => stream(c.stream),
            Call::StreamWaitEvent(c) => stream(c.stream),
            Call::StreamCallback(c) => stream(c.stream),
            Call::MemoryFreeAsync(c) => stream(c.stream),
            _ => 0,
        }
    }

    /// Carries out a call.
    pub(crate) fn perform(&self, call: Call, tail: &[u8]) -> Outcome {
        let s = &*self.session;
        match call {
            Call::Attach(c) => {
                let program = String::from_utf8_lossy(tail);
                tracing::info!(pid = c.pid, %program, "a program attached");
                let vgpu = s.vgpu();
                let limit = vgpu.memory().limit_bytes;
                encode(&convert::snapshot(vgpu.spec().name, limit, &**s.gpu()))
            }
            Call::MemoryInfo(_) => {
                let view = s.vgpu().memory();
                encode(&wire::MemoryState {
                    free_bytes: view.free_bytes(),
                    limit_bytes: view.limit_bytes,
                    used_bytes: view.used_bytes,
                })
            }
            Call::Counters(_) => encode(&convert::counters(&s.vgpu().statistics())),
            Call::TakeLate(c) => {
                let late = s.late().take(c.context);
                self.port.show_late(s.late().count());
                let (code, message) = late.map_or((0, String::new()), |(c, m)| (c as u32, m));
                encode(&wire::LateError { code, message })
            }
            Call::TakeOutput(_) => {
                let pieces = self.output.take();
                encode(&wire::KernelOutput { pieces })
            }
            Call::Ping(_) | Call::Continue(_) => done(()),

            Call::ContextCreate(_) => {
                let new = s.context_create()?;
                encode(&wire::NewContext {
                    context: new.context,
                    default_stream: new.default_stream,
                })
            }
            Call::ContextDestroy(c) => {
                let result = s.context_destroy(c.context);
                self.port.show_late(s.late().count());
                done(result?)
            }
            Call::ContextSynchronize(c) => done(s.context_synchronize(c.context)?),
            Call::ContextLimit(c) => number(s.context_limit(c.context, c.limit)?),
            Call::ContextSetLimit(c) => done(s.context_set_limit(c.context, c.limit, c.value)?),
            Call::Cancel(c) => {
                let stream = (c.stream != 0).then_some(c.stream);
                number(s.cancel(c.context, stream)?)
            }
            Call::ContextGpuTime(c) => number(s.context_gpu_time_ns(c.context)?),

            Call::StreamCreate(c) => {
                let flags = StreamFlags {
                    non_blocking: c.non_blocking,
                };
                number(s.stream_create(c.context, flags, c.priority)?)
            }
            Call::StreamDestroy(c) => done(s.stream_destroy(c.stream)?),
            Call::StreamSynchronize(c) => done(s.stream_synchronize(c.stream)?),
            Call::StreamQuery(c) => encode(&wire::Truth {
                value: s.stream_query(c.stream)?,
            }),
            Call::StreamClear(c) => encode(&wire::Truth {
                value: s.stream_is_clear(c.stream)?,
            }),
            Call::StreamWaitEvent(c) => done(s.stream_wait_event(c.stream, c.event)?),
            Call::StreamCallback(c) => {
                let callback = self.callbacks.make(&self.port, c.callback);
                done(s.stream_callback(c.stream, callback)?)
            }
            Call::CallbackDone(c) => {
                self.callbacks.done(c.callback);
                done(())
            }

            Call::EventCreate(c) => {
                let flags = EventFlags {
                    disable_timing: c.disable_timing,
                };
                number(s.event_create(c.context, flags)?)
            }
            Call::EventDestroy(c) => done(s.event_destroy(c.event)?),
            Call::EventRecord(c) => done(s.event_record(c.event, c.stream)?),
            Call::EventQuery(c) => encode(&wire::Truth {
                value: s.event_query(c.event)?,
            }),
            Call::EventSynchronize(c) => done(s.event_synchronize(c.event)?),
            Call::EventElapsed(c) => encode(&wire::Milliseconds {
                value: s.event_elapsed_ms(c.start, c.end)?,
            }),
            other => self.perform_more(other, tail),
        }
    }

    /// Modules, launches and graphs.
    fn perform_more(&self, call: Call, tail: &[u8]) -> Outcome {
        let s = &*self.session;
        match call {
            Call::BlobPart(c) => self.add_blob(c.blob, tail),
            Call::BlobChunk(c) => {
                let bytes = self.port.area().chunk_read(c.chunk, c.bytes);
                let bytes = bytes.ok_or(Failure::Violation(Violation::Chunk {
                    chunk: c.chunk,
                    offset: 0,
                    bytes: c.bytes.into(),
                }))?;
                self.port.chunk_done(c.chunk, chunk_state::FREE);
                self.add_blob(c.blob, &bytes)
            }
            Call::BlobDrop(c) => {
                let _ = self.take_blob(c.blob);
                done(())
            }
            Call::ModuleLoad(c) => {
                let image = self.take_blob(c.blob)?;
                let options = ModuleOptions {
                    memcheck: c.memcheck,
                };
                let loaded = s.module_load(c.context, &image.bytes, &options)?;
                encode(&convert::module(loaded))
            }
            Call::ModuleUnload(c) => done(s.module_unload(c.module)?),
            Call::Occupancy(c) => {
                let blocks = s.occupancy(c.module, c.kernel, c.block_threads, c.dynamic_shared)?;
                number(blocks.into())
            }
            Call::ModuleBind(c) => done(s.module_bind(c.module, c.global, DevicePtr(c.address))?),
            Call::Launch(c) => done(s.launch(
                c.stream,
                c.module,
                c.kernel,
                c.grid,
                c.block,
                c.dynamic_shared,
                c.cooperative,
                tail,
            )?),
            Call::GraphInstantiate(c) => {
                let nodes = self.graph_nodes(c.blob)?;
                number(s.graph_instantiate(c.context, nodes)?)
            }
            Call::GraphUpdate(c) => {
                let nodes = self.graph_nodes(c.blob)?;
                done(s.graph_update(c.graph, nodes)?)
            }
            Call::GraphLaunch(c) => done(s.graph_launch(c.graph, c.stream)?),
            Call::GraphDestroy(c) => done(s.graph_destroy(c.graph)?),
            other => self.perform_memory(other, tail),
        }
    }
}
