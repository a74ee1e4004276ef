//! Calls about memory and copies.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use mica_cuda_abi::CuResult;
use mica_gpu::{Copy3d, DevicePtr, GpuError, HostSpan, Place};
use mica_snapshot::SavedHost;
use mica_vgpu::{GraphOp, HostUse, VgpuError};
use mica_wire::session as wire;
use mica_wire::session::server::SessionPort;
use mica_wire::session::{
    Data, Done, MappedBytes, Number, backed_bytes, check_foreign, chunk_state,
};
use rustix::io::Errno;

use super::pinned::{BUFFER_BYTES, ReadBuffer};
use super::{Dispatcher, Failure, IntoNode, done, handlers, lock, number};
use crate::{convert, program_addresses};

/// Most bytes of one `Read`.
const READ_BYTES: u32 = 1 << 20;

/// Gives a chunk back when the stream has passed the copy that uses it, or will never.
pub(super) struct ChunkGuard {
    port: Arc<SessionPort>,
    chunk: u32,
    state: u32,
}

impl Drop for ChunkGuard {
    fn drop(&mut self) {
        self.port.chunk_done(self.chunk, self.state);
    }
}

handlers! { dispatcher, session, tail;
    MemoryAlloc(call) => number(session.memory_alloc(call.context, call.bytes)?.0);
    MemoryFree(call) => {
        let free = || session.memory_free(call.context, DevicePtr(call.address));
        done(dispatcher.freeing(call.context, call.address, free)?)
    };
    MemoryRange(call) => {
        let (address, bytes) = session.memory_range(DevicePtr(call.address))?;
        Ok(wire::AddressRange { address: address.0, bytes })
    };
    MemoryAllocAsync(call) => number(session.memory_alloc_async(call.stream, call.bytes)?.0);
    MemoryFreeAsync(call) => {
        let context = session.context_of_stream(call.stream).unwrap_or(0);
        let free = || session.memory_free_async(call.stream, DevicePtr(call.address));
        done(dispatcher.freeing(context, call.address, free)?)
    };
    Copy(call) => dispatcher.staged_copy(call.stream, &call.area);
    Fill(call) => done(session.fill(call.stream, &convert::fill(&call))?);
    Write(call) => done(session.write_shared(call.stream, DevicePtr(call.address), &tail.into())?);
    Read(call) => dispatcher.read(&call);
    HostRegister(call) => dispatcher.host_register(&call, None);
    HostUnregister(call) => done(session.host_unregister(call.context, DevicePtr(call.address))?);
    MemoryWindow(call) => {
        let found = session.memory_window(DevicePtr(call.address), call.bytes)?;
        let (address, bytes, offset) = match found {
            Ok(window) => (window.base.0, window.bytes, window.offset),
            Err((base, bytes)) => (base.0, bytes, u64::MAX),
        };
        Ok(wire::Window { address, bytes, offset })
    };
}

impl IntoNode for wire::Copy {
    fn into_node(self, dispatcher: &Dispatcher, _: &[u8]) -> Result<GraphOp, Failure> {
        let area = dispatcher.port.area();
        let staged = convert::copy(area, &self.area).map_err(Failure::Violation)?;
        if staged.reads.is_some() || staged.writes.is_some() {
            let what = "a graph cannot use staging chunks: they are there for one copy";
            return Err(VgpuError::Argument(what.into()).into());
        }
        Ok(GraphOp::Copy(staged.copy))
    }
}

impl IntoNode for wire::Fill {
    fn into_node(self, _: &Dispatcher, _: &[u8]) -> Result<GraphOp, Failure> {
        Ok(GraphOp::Fill(convert::fill(&self)))
    }
}

impl IntoNode for wire::Write {
    fn into_node(self, _: &Dispatcher, tail: &[u8]) -> Result<GraphOp, Failure> {
        Ok(GraphOp::Write(DevicePtr(self.address), tail.into()))
    }
}

impl Dispatcher {
    fn staged_copy(&self, stream: u64, area: &wire::CopyBox) -> Result<Done, Failure> {
        let staged = convert::copy(self.port.area(), area).map_err(Failure::Violation)?;
        if staged.reads.is_some() || staged.writes.is_some() {
            self.pin_now();
        }
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
        let has_driver = self.session.gpu().has_driver();
        let reads = match (reads, &writes) {
            (Some(chunk), None) if has_driver => {
                return done(self.uploads.add(&self.session, stream, chunk)?);
            }
            (reads, _) => reads,
        };
        let finish = move || {
            if let Some(written) = &mut writes {
                written.state = chunk_state::FULL;
            }
            drop((reads, writes));
        };
        if has_driver {
            // The program waits for the bytes.
            let finish = Box::new(finish);
            return done(self.session.stream_release_soon(stream, finish)?);
        }
        // A device that copies at once on an idle stream needs no release later.
        if self.session.stream_query(stream)? {
            finish();
            return done(());
        }
        // Not a callback: one of the program's may be waiting for this copy.
        let finish = Box::new(finish);
        done(self.session.stream_release(stream, 0, finish)?)
    }

    fn read(&self, c: &wire::Read) -> Result<Data, Failure> {
        if c.bytes > READ_BYTES {
            return Err(VgpuError::Argument(format!(
                "a read of {} bytes, more than {READ_BYTES}",
                c.bytes
            ))
            .into());
        }
        if self.session.gpu().has_driver()
            && c.bytes as usize <= BUFFER_BYTES
            && let Some(buffer) = self.read_buffers().and_then(|buffers| buffers.take())
        {
            return self.read_pinned(c, buffer);
        }
        let share = self.session.budget().take(c.bytes.into(), "a read")?;
        let mut bytes = vec![0; c.bytes as usize];
        // SAFETY: `bytes` lives until the stream has passed the copy, or as long as the session if that is unknown.
        let span = unsafe { HostSpan::new(bytes.as_mut_ptr(), c.bytes.into()) };
        let src = Place::Device(DevicePtr(c.address));
        let copy = Copy3d::linear(Place::Host(span), src, c.bytes.into());
        self.session.copy(c.stream, &copy)?;
        if let Err(error) = self.session.stream_synchronize(c.stream) {
            // The device may still write to it, until its context is gone.
            lock(&self.abandoned).push((bytes, share));
            return Err(error.into());
        }
        Ok(Data { bytes })
    }

    /// A small read through a buffer of pinned memory.
    fn read_pinned(&self, c: &wire::Read, buffer: ReadBuffer<'_>) -> Result<Data, Failure> {
        self.pin_now();
        // SAFETY: the buffer is this reader's until the stream has passed the copy, or for good.
        let span = unsafe { HostSpan::new(buffer.pointer(), c.bytes.into()) };
        let src = Place::Device(DevicePtr(c.address));
        let copy = Copy3d::linear(Place::Host(span), src, c.bytes.into());
        self.session.copy(c.stream, &copy)?;
        if let Err(error) = self.session.stream_synchronize(c.stream) {
            buffer.abandon();
            return Err(error.into());
        }
        let bytes = buffer.bytes(c.bytes as usize).to_vec();
        Ok(Data { bytes })
    }

    /// Maps memory of the program, at the program's own address where the device uses this process's. It has its
    /// pages already, but for managed memory of a device without a driver.
    fn host_register(
        &self,
        c: &wire::HostRegister,
        wanted: Option<DevicePtr>,
    ) -> Result<Number, Failure> {
        let refused = |what: String| Failure::Refused(VgpuError::Argument(what));
        let failed = |error: Errno| match error {
            Errno::NOMEM => {
                let what = format!("no room for {} bytes of host memory", c.bytes);
                VgpuError::from(GpuError::new(CuResult::OutOfMemory, what)).into()
            }
            error => refused(format!("host memory cannot be shared: {error}")),
        };
        let own;
        let fd = match c.tag {
            wire::HostRegister::IN_IVSHMEM => self.ivshmem_with(c).map_err(failed)?,
            tag => {
                let taken = self.port.take_descriptor(tag);
                own = taken.map_err(|error| refused(error.to_string()))?;
                check_foreign(&own, c.offset, c.bytes).map_err(failed)?;
                own.as_fd()
            }
        };
        let (pointer, keeper): (*mut u8, Box<dyn Any + Send + Sync>) =
            match program_addresses::map(fd, c.offset, c.bytes, c.wanted) {
                Some(placed) => (placed.as_ptr(), Box::new(placed)),
                None => {
                    let mapped =
                        MappedBytes::map(fd, c.offset, c.bytes as usize, 0).map_err(failed)?;
                    (mapped.as_ptr(), Box::new(mapped))
                }
            };
        let is_pinned = !c.charge || self.session.gpu().has_driver();
        if is_pinned && !has_pages(fd, c) {
            // Pages that are not there would be this process's when a kernel touches them.
            let what = format!("{} bytes of host memory that have no pages", c.bytes);
            return Err(VgpuError::from(GpuError::new(CuResult::OutOfMemory, what)).into());
        }
        // SAFETY: the keeper below holds the mapping until the device has let go of it.
        let span = unsafe { HostSpan::new(pointer, c.bytes) };
        // SAFETY: as above; the file is sealed, or the ivshmem file of a session whose end it is if the file is cut short.
        let address = unsafe {
            let fd = Some((fd, c.offset));
            let how = HostUse {
                charge: c.charge,
                is_offered: c.offered,
                wanted,
            };
            (self.session).host_register_as(c.context, span, fd, how, keeper)
        };
        number(address?.0)
    }

    /// Registers host memory again that a saved session had: its program has brought the files.
    ///
    /// # Errors
    /// A sentence about what is missing.
    pub(crate) fn restore_host(&self, saved: &[SavedHost]) -> Result<(), String> {
        for host in saved {
            let call = wire::HostRegister {
                context: host.context,
                tag: host.address,
                bytes: host.bytes,
                offset: host.offset,
                charge: host.charged,
                wanted: host.address,
                offered: true,
            };
            let registered = self.host_register(&call, Some(DevicePtr(host.address)));
            registered.map_err(|failure| match failure {
                Failure::Refused(error) => error.sentence(),
                Failure::Violation(violation) => violation.to_string(),
            })?;
        }
        // Of host memory that went with its context.
        self.port.forget_descriptors();
        Ok(())
    }

    /// The file of the session's ivshmem file, if the memory is in its heap.
    fn ivshmem_with(&self, c: &wire::HostRegister) -> Result<BorrowedFd<'_>, Errno> {
        match self.port.ivshmem() {
            Some((fd, layout)) if layout.is_in_heap(c.offset, c.bytes) => Ok(fd),
            _ => Err(Errno::INVAL),
        }
    }
}

/// Whether host memory has its pages: those of a file of its own, or of its part of an ivshmem file.
fn has_pages(fd: BorrowedFd<'_>, c: &wire::HostRegister) -> bool {
    if c.tag != wire::HostRegister::IN_IVSHMEM {
        return backed_bytes(fd) >= c.bytes;
    }
    let hole = rustix::fs::seek(fd, rustix::fs::SeekFrom::Hole(c.offset));
    hole.is_ok_and(|hole| hole >= c.offset + c.bytes)
}
