//! Calls about memory, copies, arrays and textures.

use std::os::fd::AsFd;
use std::sync::Arc;

use mica_cuda_abi::CuResult;
use mica_gpu::{Access, Copy3d, DevicePtr, GpuError, HostSpan, Place};
use mica_vgpu::VgpuError;
use mica_wire::session as wire;
use mica_wire::session::server::SessionPort;
use mica_wire::session::{Call, backed_bytes, chunk_state, map_foreign};
use rustix::io::Errno;

use super::{Desk, Failure, Outcome, done, encode, lock, number};
use crate::convert;

/// Most bytes of one `Read`.
const READ_BYTES: u32 = 1 << 20;

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
    /// Memory, arrays and textures.
    pub(super) fn perform_memory(&self, call: Call, tail: &[u8]) -> Outcome {
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
        // A device that copies at once on an idle stream needs no release later.
        if self.session.stream_query(stream)? {
            finish();
            return done(());
        }
        // Not a callback: one of the program's may be waiting for this copy.
        let finish = Box::new(finish);
        done(self.session.stream_release(stream, 0, finish)?)
    }

    fn read(&self, c: &wire::Read) -> Outcome {
        if c.bytes > READ_BYTES {
            return Err(VgpuError::Argument(format!(
                "a read of {} bytes, more than {READ_BYTES}",
                c.bytes
            ))
            .into());
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
        encode(&wire::Data { bytes })
    }

    /// Maps memory of the program. It has its pages already, but for managed memory, which is charged to the
    /// virtual GPU.
    fn host_register(&self, c: &wire::HostRegister) -> Outcome {
        let refused = |what: String| Failure::Refused(VgpuError::Argument(what));
        let fd = (self.port.take_descriptor(c.tag)).map_err(|error| refused(error.to_string()))?;
        let mapping = map_foreign(fd, c.offset, c.bytes).map_err(|error| match error {
            Errno::NOMEM => {
                let what = format!("no room for {} bytes of host memory", c.bytes);
                VgpuError::from(GpuError::new(CuResult::OutOfMemory, what)).into()
            }
            error => refused(format!("host memory cannot be shared: {error}")),
        })?;
        if !c.charge && backed_bytes(mapping.fd()) < c.bytes {
            // Pages that are not there would be this process's when a kernel touches them.
            let what = format!("{} bytes of host memory that have no pages", c.bytes);
            return Err(VgpuError::from(GpuError::new(CuResult::OutOfMemory, what)).into());
        }
        let (mapping, fd) = mapping.into_parts();
        // SAFETY: the keeper below holds the mapping until the device has let go of it.
        let span = unsafe { HostSpan::new(mapping.as_ptr(), c.bytes) };
        let keeper = Box::new(mapping);
        // SAFETY: as above; the file is sealed, so the mapping cannot lose its memory.
        let address = unsafe {
            let fd = Some((fd.as_fd(), c.offset));
            self.session
                .host_register(c.context, span, fd, c.charge, keeper)
        };
        number(address?.0)
    }
}
