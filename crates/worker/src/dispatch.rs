//! Carries out one call: the wire's form in, the engine's answer out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mica_gpu::{
    Access, Copy3d, DevicePtr, EventFlags, HostSpan, ModuleOptions, Place, StreamFlags,
};
use mica_vgpu::{GraphNode, GraphOp, OwnedLaunch, Session, VgpuError};
use mica_wire::session as wire;
use mica_wire::session::server::SessionPort;
use mica_wire::session::{Call, Field, Reader, Violation, chunk_state, map_foreign};

use crate::OutputBuffer;
use crate::callbacks::Callbacks;
use crate::convert;

/// Most bytes of blobs that wait for their calls.
const BLOB_BYTES: usize = 2 << 30;
/// Most blobs that wait for their calls.
const BLOBS: usize = 4096;
/// Most bytes of one `Read`.
const READ_BYTES: u32 = 1 << 20;

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

type Outcome = Result<Vec<u8>, Failure>;

/// What a session's threads work on.
pub(crate) struct Desk {
    pub(crate) session: Arc<Session>,
    pub(crate) port: Arc<SessionPort>,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) output: Arc<OutputBuffer>,
    blobs: Mutex<Blobs>,
}

#[derive(Default)]
struct Blobs {
    bytes: usize,
    by_number: HashMap<u64, Vec<u8>>,
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

/// Gives a chunk back when the stream has passed the copy that uses it, or will never.
struct ChunkGuard {
    port: Arc<SessionPort>,
    chunk: u32,
    state: u32,
}

impl Drop for ChunkGuard {
    fn drop(&mut self) {
        self.port.chunk_done(self.chunk, self.state);
    }
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
                let loaded = s.module_load(c.context, &image, &options)?;
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

    /// Memory, arrays and textures.
    fn perform_memory(&self, call: Call, tail: &[u8]) -> Outcome {
        let s = &*self.session;
        match call {
            Call::MemoryAlloc(c) => number(s.memory_alloc(c.context, c.bytes)?.0),
            Call::MemoryFree(c) => done(s.memory_free(c.context, DevicePtr(c.address))?),
            Call::MemoryRange(c) => {
                let (address, bytes) = s.memory_range(DevicePtr(c.address))?;
                let address = address.0;
                encode(&wire::AddressRange { address, bytes })
            }
            Call::MemoryAllocAsync(c) => number(s.memory_alloc_async(c.stream, c.bytes)?.0),
            Call::MemoryFreeAsync(c) => done(s.memory_free_async(c.stream, DevicePtr(c.address))?),
            Call::Copy(c) => self.staged_copy(c.stream, &c.area),
            Call::Fill(c) => done(s.fill(c.stream, &convert::fill(&c))?),
            Call::Write(c) => done(s.write_shared(c.stream, DevicePtr(c.address), &tail.into())?),
            Call::Read(c) => self.read(&c),
            Call::HostRegister(c) => self.host_register(&c),
            Call::HostUnregister(c) => done(s.host_unregister(c.context, DevicePtr(c.address))?),

            Call::MemoryWindow(c) => {
                let found = s.memory_window(DevicePtr(c.address), c.bytes)?;
                let (address, bytes, offset) = match found {
                    Ok(window) => (window.base.0, window.bytes, window.offset),
                    Err((base, bytes)) => (base.0, bytes, u64::MAX),
                };
                encode(&wire::Window {
                    address,
                    bytes,
                    offset,
                })
            }

            Call::AddressReserve(c) => number(s.address_reserve(c.bytes, c.align)?.0),
            Call::AddressFree(c) => done(s.address_free(DevicePtr(c.address), c.bytes)?),
            Call::FrameCreate(c) => number(s.frame_create(c.bytes)?),
            Call::FrameRelease(c) => done(s.frame_release(c.frame)?),
            Call::FrameMap(c) => done(s.frame_map(DevicePtr(c.address), c.frame)?),
            Call::FrameUnmap(c) => done(s.frame_unmap(DevicePtr(c.address), c.bytes)?),
            Call::FrameAccess(c) => {
                let access = match c.access {
                    0 => Access::None,
                    1 => Access::Read,
                    3 => Access::ReadWrite,
                    other => {
                        return Err(
                            VgpuError::Argument(format!("{other} is no kind of access")).into()
                        );
                    }
                };
                done(s.frame_access(DevicePtr(c.address), c.bytes, access)?)
            }

            Call::ArrayCreate(c) => number(s.array_create(c.context, &convert::array(&c.shape))?),
            Call::ArrayDestroy(c) => done(s.array_destroy(c.array)?),
            Call::TextureCreate(c) => {
                number(s.texture_create(c.context, &convert::texture(&c.shape)?)?)
            }
            Call::SurfaceCreate(c) => number(s.surface_create(c.context, c.array)?),
            Call::TextureDestroy(c) => done(s.texture_destroy(c.context, c.handle)?),
            other => Err(VgpuError::Argument(format!("{} is not served", other.name())).into()),
        }
    }

    fn staged_copy(&self, stream: u64, area: &wire::CopyBox) -> Outcome {
        let staged = convert::copy(self.port.area(), area).map_err(Failure::Violation)?;
        let guard = |chunk: Option<u32>, state| {
            chunk.map(|chunk| ChunkGuard {
                port: Arc::clone(&self.port),
                chunk,
                state,
            })
        };
        // Until the stream says otherwise, what was to be written is not there.
        let reads = guard(staged.reads, chunk_state::FREE);
        let mut writes = guard(staged.writes, chunk_state::FAILED);
        self.session.copy(stream, &staged.copy)?;
        if reads.is_none() && writes.is_none() {
            return done(());
        }
        let finish = move || {
            if let Some(written) = &mut writes {
                written.state = chunk_state::FULL;
            }
            drop((reads, writes));
        };
        // A device that copies at once on an idle stream needs no callback, which costs a thread.
        if self.session.stream_query(stream)? {
            finish();
            return done(());
        }
        let finish = Box::new(finish);
        done(self.session.stream_callback(stream, finish)?)
    }

    fn read(&self, c: &wire::Read) -> Outcome {
        if c.bytes > READ_BYTES {
            return Err(VgpuError::Argument(format!(
                "a read of {} bytes, more than {READ_BYTES}",
                c.bytes
            ))
            .into());
        }
        let mut bytes = vec![0; c.bytes as usize];
        // SAFETY: `bytes` lives until the stream has passed the copy, or for ever if that is unknown.
        let span = unsafe { HostSpan::new(bytes.as_mut_ptr(), c.bytes.into()) };
        let src = Place::Device(DevicePtr(c.address));
        let copy = Copy3d::linear(Place::Host(span), src, c.bytes.into());
        self.session.copy(c.stream, &copy)?;
        if let Err(error) = self.session.stream_synchronize(c.stream) {
            // The device may still write to it; a dead context does so at most once.
            std::mem::forget(bytes);
            return Err(error.into());
        }
        encode(&wire::Data { bytes })
    }

    fn host_register(&self, c: &wire::HostRegister) -> Outcome {
        let refused = |what: String| Failure::Refused(VgpuError::Argument(what));
        let fd = (self.port.take_descriptor(c.tag)).map_err(|error| refused(error.to_string()))?;
        let mapping = map_foreign(fd, c.offset, c.bytes)
            .map_err(|error| refused(format!("host memory cannot be shared: {error}")))?;
        let mapping = Arc::new(mapping);
        // SAFETY: the keeper below holds the mapping until the device has let go of it.
        let span = unsafe { HostSpan::new(mapping.as_ptr(), c.bytes) };
        let keeper = Box::new(Arc::clone(&mapping));
        // SAFETY: as above; the file is sealed, so the mapping cannot lose its memory.
        let address = unsafe {
            let fd = Some((mapping.fd(), c.offset));
            self.session
                .host_register(c.context, span, fd, c.charge, keeper)
        };
        number(address?.0)
    }

    fn add_blob(&self, blob: u64, bytes: &[u8]) -> Outcome {
        let mut blobs = lock(&self.blobs);
        blobs.bytes += bytes.len();
        if blobs.bytes > BLOB_BYTES {
            return Err(Failure::Violation(Violation::Excess {
                what: "bytes sent ahead of their calls",
                limit: BLOB_BYTES as u64,
            }));
        }
        blobs
            .by_number
            .entry(blob)
            .or_default()
            .extend_from_slice(bytes);
        if blobs.by_number.len() > BLOBS {
            return Err(Failure::Violation(Violation::Excess {
                what: "blobs sent ahead of their calls",
                limit: BLOBS as u64,
            }));
        }
        done(())
    }

    fn take_blob(&self, blob: u64) -> Result<Vec<u8>, Failure> {
        let mut blobs = lock(&self.blobs);
        let bytes = blobs.by_number.remove(&blob);
        let bytes =
            bytes.ok_or_else(|| VgpuError::Argument(format!("blob {blob} was not sent")))?;
        blobs.bytes -= bytes.len();
        Ok(bytes)
    }

    fn graph_nodes(&self, blob: u64) -> Result<Vec<GraphNode>, Failure> {
        let bytes = self.take_blob(blob)?;
        let malformed = |source| Failure::Violation(Violation::Body { number: 51, source });
        let mut reader = Reader::new(&bytes);
        let nodes = Vec::<wire::GraphNode>::take(&mut reader).map_err(malformed)?;
        reader.finish().map_err(malformed)?;
        let node = |node: wire::GraphNode| -> Result<GraphNode, Failure> {
            let op = match node.call {
                0 => GraphOp::Nothing,
                number => {
                    let (call, tail) = Call::decode(number, &node.body).map_err(malformed)?;
                    self.graph_op(call, tail)?
                }
            };
            Ok(GraphNode {
                after: node.after,
                op,
            })
        };
        nodes.into_iter().map(node).collect()
    }

    fn graph_op(&self, call: Call, tail: &[u8]) -> Result<GraphOp, Failure> {
        Ok(match call {
            Call::Launch(c) => GraphOp::Launch(OwnedLaunch {
                module: c.module,
                kernel: c.kernel,
                grid: c.grid,
                block: c.block,
                dynamic_shared: c.dynamic_shared,
                cooperative: c.cooperative,
                params: tail.to_vec(),
            }),
            Call::Copy(c) => {
                let staged =
                    convert::copy(self.port.area(), &c.area).map_err(Failure::Violation)?;
                if staged.reads.is_some() || staged.writes.is_some() {
                    let what = "a graph cannot use staging chunks: they are there for one copy";
                    return Err(VgpuError::Argument(what.into()).into());
                }
                GraphOp::Copy(staged.copy)
            }
            Call::Fill(c) => GraphOp::Fill(convert::fill(&c)),
            Call::Write(c) => GraphOp::Write(DevicePtr(c.address), tail.into()),
            Call::EventRecord(c) => GraphOp::EventRecord(c.event),
            Call::StreamWaitEvent(c) => GraphOp::WaitEvent(c.event),
            Call::StreamCallback(c) => {
                let (callbacks, port) = (Arc::clone(&self.callbacks), Arc::clone(&self.port));
                GraphOp::Callback(Arc::new(move || callbacks.make(&port, c.callback)))
            }
            other => {
                let what = format!("{} cannot be a node of a graph", other.name());
                return Err(VgpuError::Argument(what).into());
            }
        })
    }
}
