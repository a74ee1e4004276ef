//! The program's end of a session.
//!
//! [`RingTransport`] carries records through shared memory; [`SessionClient`] makes typed calls over
//! any carrier. No thread runs here: whoever waits for the worker also notices its death. A process
//! that forks must not use the session in the child.

mod data;
mod heap;
mod ivshmem_port;
mod records;
mod ring;
mod turns;
mod unwaited;
mod window;
mod windows;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

pub use data::{DeviceBox, HostBox, Piece, pieces};
pub use heap::{HostPiece, IvshmemHeap};
pub use ivshmem_port::IvshmemPort;
pub use records::{AnswerPart, ProgressWords, RecordPort};
pub use ring::{RingTransport, WayBack};
use unwaited::Unwaited;
pub use window::{WindowCopy, observe_window_copies};
use windows::Windows;

use super::calls::*;
use super::host_memory::SharedHostMemory;
use super::memfd::back;
use super::transport::ClientTransport;
use super::types::{DeviceSnapshot, GraphNode, GraphOptions, LateError, LoadedModule};
use super::{CHUNK_BYTES, SessionError};
use crate::codec::{Field, Reader};

/// Images and graphs up to this size travel inside records.
const INLINE_BLOB_BYTES: usize = 32 << 10;

/// Typed calls to a worker. Every method may be used from any thread.
#[derive(Debug)]
pub struct SessionClient<T: ClientTransport = RingTransport> {
    transport: T,
    snapshot: DeviceSnapshot,
    next_tag: AtomicU64,
    cursor: AtomicU64,
    windows: Windows,
    unwaited: Unwaited,
}

impl SessionClient<RingTransport> {
    /// Opens a session on a socket that leads to a worker.
    ///
    /// # Errors
    /// If the worker refuses, speaks another version or is gone.
    pub fn connect(socket: std::os::fd::OwnedFd, program: &str) -> Result<Self, SessionError> {
        Self::over(RingTransport::connect(socket)?, program)
    }
}

impl<T: ClientTransport> SessionClient<T> {
    /// Opens a session over a carrier.
    pub fn over(transport: T, program: &str) -> Result<Self, SessionError> {
        let attach = Attach {
            pid: std::process::id(),
        };
        let program = program.as_bytes();
        let program = &program[..program.len().min(256)];
        let snapshot = call_over(&transport, &attach, program)?;
        if snapshot.has_driver {
            transport.expect_gpu_work();
        }
        Ok(Self {
            transport,
            snapshot,
            next_tag: AtomicU64::new(1),
            cursor: AtomicU64::new(0),
            windows: Windows::default(),
            unwaited: Unwaited::default(),
        })
    }

    /// The device as it was when the session began.
    pub fn snapshot(&self) -> &DeviceSnapshot {
        &self.snapshot
    }

    /// The carrier.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// Makes a synchronous call.
    ///
    /// # Errors
    /// [`SessionError::Refused`] with the worker's code and sentence, or why there was no answer.
    pub fn call<R: Answered>(&self, request: &R) -> Result<R::Answer, SessionError> {
        self.call_with(request, &[])
    }

    /// Makes a synchronous call with bytes after its fields.
    ///
    /// # Errors
    /// As [`SessionClient::call`].
    pub fn call_with<R: Answered>(
        &self,
        request: &R,
        tail: &[u8],
    ) -> Result<R::Answer, SessionError> {
        self.before(request);
        let freed = self.freed_by(request);
        let answer = call_over(&self.transport, request, tail);
        self.unwaited.sent();
        let answer = answer?;
        self.forget(freed);
        if let Some((stream, order)) = request.made(&answer) {
            self.transport.note_order(stream, Some(order));
        }
        Ok(answer)
    }

    /// Makes a synchronous call that leaves no work behind.
    fn ask<R: Answered>(&self, request: &R) -> Result<R::Answer, SessionError> {
        self.before(request);
        let freed = self.freed_by(request);
        let answer = call_over(&self.transport, request, &[])?;
        self.forget(freed);
        Ok(answer)
    }

    /// Makes a posted call: returns when it is in the ring.
    #[inline]
    pub fn post<R: Posted>(&self, request: &R, tail: &[u8]) -> Result<(), SessionError> {
        self.before(request);
        let posted = self.post_upload(request, tail);
        self.unwaited.sent();
        posted
    }

    /// As [`SessionClient::post`], for a call that only copies to the device.
    #[inline]
    fn post_upload<R: Posted>(&self, request: &R, tail: &[u8]) -> Result<(), SessionError> {
        let body = request.encode();
        self.transport
            .post(R::NUMBER, request.stream(), body.as_slice(), tail)
    }

    /// Whether a copy to the device that is to be complete on return may return: all else has been waited for, and the
    /// device has a driver's order of copies.
    pub fn has_only_uploads(&self) -> bool {
        self.snapshot.has_driver && self.unwaited.is_none()
    }

    /// Forgets what a call ends, before it is made: another thread may be given the same handle or address after it.
    #[inline]
    fn before<R: Request>(&self, request: &R) {
        self.unwaited.note(request.effect());
        match request.effect() {
            Effect::None | Effect::MakesContext | Effect::MakesStream => {}
            Effect::EndsContext(_) => self.windows.forget_all(),
            Effect::EndsStream(stream) => self.transport.note_order(stream, None),
            Effect::FreesMemory(address) => self.windows.forget(address),
        }
    }

    /// The files of host memory that a call frees. They are needed until the call was carried out, which may be by another
    /// worker.
    #[inline]
    fn freed_by<R: Request>(&self, request: &R) -> Freed {
        match request.effect() {
            Effect::FreesMemory(address) => match self.transport.file_number(address) {
                0 => Freed::Nothing,
                number => Freed::File(address, number),
            },
            Effect::EndsContext(context) => Freed::FilesOf(context),
            _ => Freed::Nothing,
        }
    }

    #[inline]
    fn forget(&self, freed: Freed) {
        match freed {
            Freed::Nothing => {}
            Freed::File(address, number) => self.transport.forget_file(address, number),
            Freed::FilesOf(context) => self.transport.forget_files_of(context),
        }
    }

    /// Makes a call that waits for work; asks nobody if all work is known to be done.
    pub fn wait<R: Answered<Answer = Done>>(&self, request: &R) -> Result<(), SessionError> {
        let mark = self.unwaited.mark();
        if !self.transport.is_quiet()? {
            self.before(request);
            call_over(&self.transport, request, &[])?;
        }
        self.unwaited.waited(R::NUMBER, mark);
        Ok(())
    }

    /// Waits for a stream's work.
    pub fn synchronize(&self, stream: u64) -> Result<(), SessionError> {
        self.wait(&StreamSynchronize { stream })
    }

    /// Launches a kernel with its packed parameter block.
    #[inline]
    pub fn launch(&self, launch: &Launch, params: &[u8]) -> Result<(), SessionError> {
        self.post(launch, params)
    }

    /// Whether an error of a posted call waits to be taken. Costs one load.
    #[inline]
    pub fn late_pending(&self) -> bool {
        self.transport.late_pending()
    }

    /// Takes the oldest late error of a context (0: of any); `None` if there is none.
    pub fn take_late(&self, context: u64) -> Result<Option<LateError>, SessionError> {
        let late = self.call(&TakeLate { context })?;
        Ok((late.code != 0).then_some(late))
    }

    /// What kernels have printed since the last time, in order: 0 and bytes for standard output, 1 for
    /// standard error. Take it after each synchronization, as the driver would print it then.
    pub fn take_output(&self) -> Result<Vec<(u8, Vec<u8>)>, SessionError> {
        if !self.transport.output_pending() {
            return Ok(Vec::new());
        }
        Ok(self.call(&TakeOutput {})?.pieces)
    }

    /// Uploads an image and loads it.
    pub fn module_load(
        &self,
        context: u64,
        image: &[u8],
        memcheck: bool,
    ) -> Result<LoadedModule, SessionError> {
        let blob = self.upload_blob(image)?;
        self.call(&ModuleLoad {
            context,
            blob,
            memcheck,
        })
    }

    /// Uploads a graph and makes it ready.
    pub fn graph_instantiate(
        &self,
        context: u64,
        nodes: &Vec<GraphNode>,
        options: GraphOptions,
    ) -> Result<u64, SessionError> {
        let mut bytes = Vec::new();
        nodes.put(&mut bytes);
        let request = GraphInstantiate {
            context,
            blob: self.upload_blob(&bytes)?,
            template: options.template,
            node_priorities: options.node_priorities,
        };
        Ok(self.call(&request)?.value)
    }

    /// Replaces a graph's nodes; `template` has the handles of the conditional ones, 0 for none.
    pub fn graph_update(
        &self,
        graph: u64,
        nodes: &Vec<GraphNode>,
        template: u64,
    ) -> Result<(), SessionError> {
        let mut bytes = Vec::new();
        nodes.put(&mut bytes);
        let blob = self.upload_blob(&bytes)?;
        let request = GraphUpdate {
            graph,
            blob,
            template,
        };
        self.call(&request).map(drop)
    }

    /// Sends bytes ahead of the call that uses them; the number names them in that call.
    pub fn upload_blob(&self, bytes: &[u8]) -> Result<u64, SessionError> {
        let blob = self.next_tag.fetch_add(1, Relaxed);
        if bytes.is_empty() {
            self.post(&BlobPart { blob }, &[])?;
        }
        if self.transport.area().is_none() || bytes.len() <= INLINE_BLOB_BYTES {
            for part in bytes.chunks(INLINE_BLOB_BYTES) {
                self.post(&BlobPart { blob }, part)?;
            }
            return Ok(blob);
        }
        for part in bytes.chunks(CHUNK_BYTES) {
            let chunk = self.fill_chunk(part)?;
            let bytes = part.len() as u32;
            self.post(&BlobChunk { blob, chunk, bytes }, &[])?;
        }
        Ok(blob)
    }

    /// Host memory that the device reads and writes in place. `charge` counts it against the memory
    /// limit, as managed memory is.
    pub fn host_alloc(
        &self,
        context: u64,
        bytes: u64,
        charge: bool,
    ) -> Result<SharedHostMemory, SessionError> {
        let piece = self.host_piece(bytes)?;
        // With a driver, device addresses are the worker's own: it maps the file where this process has it.
        let here = match self.snapshot.has_driver {
            true => Some(piece.map(0)?),
            false => None,
        };
        let wanted = here.as_ref().map_or(0, |mapped| mapped.as_ptr() as u64);
        let device = self.host_register_piece(context, &piece, charge, wanted)?;
        if let Some(mapped) = here
            && device == wanted
        {
            return Ok(SharedHostMemory::unified(mapped, piece));
        }
        SharedHostMemory::map(piece, device).inspect_err(|_| {
            let address = device;
            let _ = self.call(&HostUnregister { context, address });
        })
    }

    /// Memory that both sides can map, for [`SessionClient::host_register_piece`].
    ///
    /// # Errors
    /// The system, or the session's ivshmem file, has no more.
    pub fn host_piece(&self, bytes: u64) -> Result<HostPiece, SessionError> {
        HostPiece::new(self.transport.heap(), bytes)
    }

    /// Registers memory that both sides can map, which this process has at `wanted` (0 for anywhere); answers its device
    /// address. The piece must be kept until it is unregistered.
    ///
    /// # Errors
    /// The worker refuses, or the session has ended.
    pub fn host_register_piece(
        &self,
        context: u64,
        piece: &HostPiece,
        charge: bool,
        wanted: u64,
    ) -> Result<u64, SessionError> {
        let (offset, bytes) = (piece.offset(), piece.bytes());
        if !piece.is_in_ivshmem() {
            return self.host_register_at(context, piece.file(), (offset, bytes), charge, wanted);
        }
        let request = HostRegister {
            context,
            tag: HostRegister::IN_IVSHMEM,
            bytes,
            offset,
            charge,
            wanted,
            offered: false,
        };
        Ok(self.call(&request)?.value)
    }

    /// Registers a sealed memfd of this process; answers its device address.
    pub fn host_register(
        &self,
        context: u64,
        fd: &impl std::os::fd::AsFd,
        offset: u64,
        bytes: u64,
        charge: bool,
    ) -> Result<u64, SessionError> {
        self.host_register_at(context, fd, (offset, bytes), charge, 0)
    }

    /// As [`SessionClient::host_register`], of memory that this process has at `wanted`: a device with a driver
    /// uses the same address if the worker has it free.
    pub fn host_register_at(
        &self,
        context: u64,
        fd: &impl std::os::fd::AsFd,
        (offset, bytes): (u64, u64),
        charge: bool,
        wanted: u64,
    ) -> Result<u64, SessionError> {
        // A driver pins all pages at once: they are to be this process's.
        if !charge || self.snapshot.has_driver {
            back(fd, offset, bytes);
        }
        let file = match self.snapshot.can_be_saved && self.transport.can_offer() {
            true => fd.as_fd().try_clone_to_owned().ok(),
            false => None,
        };
        loop {
            let returns = self.transport.returns();
            let tag = self.next_tag.fetch_add(1, Relaxed);
            self.transport.send_descriptor(tag, fd.as_fd())?;
            let request = HostRegister {
                context,
                tag,
                bytes,
                offset,
                charge,
                wanted,
                offered: file.is_some(),
            };
            match self.call(&request) {
                // The descriptor went to a worker that is gone.
                Err(SessionError::Refused { .. }) if self.transport.returns() != returns => {}
                answer => {
                    let address = answer?.value;
                    file.into_iter()
                        .for_each(|file| self.transport.offer_file(context, address, file));
                    return Ok(address);
                }
            }
        }
    }

    /// Frees host memory once the device is done with it.
    pub fn host_free(&self, context: u64, memory: SharedHostMemory) -> Result<(), SessionError> {
        let address = memory.device();
        self.call(&HostUnregister { context, address }).map(drop)
    }

    /// The next host callback that is due. Run the function, then post [`CallbackDone`].
    pub fn next_notice(&self, timeout: Duration) -> Result<Option<u64>, SessionError> {
        self.transport.next_notice(timeout)
    }

    /// Says that the host function of the notice taken last has returned. For the one thread that takes notices.
    ///
    /// # Errors
    /// The session has ended.
    pub fn callback_done(&self, callback: u64) -> Result<(), SessionError> {
        let Some(area) = self.transport.area() else {
            return self.post(&CallbackDone { callback }, &[]);
        };
        let word = &area.control().program.notices_done;
        word.fetch_add(1, SeqCst);
        area.wake_peer(word, i32::MAX as u32);
        Ok(())
    }
}

/// Kept files of host memory that a call frees.
enum Freed {
    Nothing,
    /// The one at an address, by its number: another file may be kept for the address by then.
    File(u64, u64),
    /// Those of a context.
    FilesOf(u64),
}

fn call_over<T: ClientTransport, R: Answered>(
    transport: &T,
    request: &R,
    tail: &[u8],
) -> Result<R::Answer, SessionError> {
    let body = request.encode();
    let (code, bytes) = transport.call(R::NUMBER, request.stream(), body.as_slice(), tail)?;
    if code != 0 {
        return Err(SessionError::Refused {
            code,
            message: String::from_utf8_lossy(&bytes).into_owned(),
        });
    }
    let call = R::NAME;
    let mut reader = Reader::new(&bytes);
    let answer =
        R::Answer::take(&mut reader).map_err(|source| SessionError::Answer { call, source })?;
    reader
        .finish()
        .map_err(|source| SessionError::Answer { call, source })?;
    Ok(answer)
}
