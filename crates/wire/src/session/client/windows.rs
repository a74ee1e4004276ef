//! Windows on device memory: copies that the program does itself.
//!
//! Where the worker has a file with windows, an allocation that is copied to or from is mapped here
//! once, and later copies are one `memcpy` of the calling thread, as soon as the stream's earlier work
//! is known to be done; its later work waits for the copy ([`super::turns`]). The worker gives pages to what will be touched before it is touched, so that
//! device memory is charged to it and not to the program.
//!
//! The worker can close all windows at any time. A thread that copies says so, looks whether they are
//! still open, and copies a slice; so the worker knows when all have let go, and a copy that finds
//! them closed goes through the ring instead. Windows from before a closing are void.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::turns::Turn;
use super::window::Window;
use super::{DeviceBox, HostBox, SessionClient};
use crate::session::calls::{MemoryWindow, StreamClear, StreamSynchronize};
use crate::session::transport::ClientTransport;
use crate::session::types::CopyPlace;
use crate::session::{SessionError, types};

/// Copies below this do not open a window; where one is open it serves copies of any size.
const LEAST_BYTES: u64 = 64 << 10;
/// Waits for a stream before a copy goes through the ring, where it waits in line.
const TURN_ATTEMPTS: u32 = 3;
/// Allocations without a window that are remembered.
const MOST_REFUSED: usize = 4096;

/// The windows of a session.
#[derive(Debug, Default)]
pub(super) struct Windows(RwLock<Open>);

#[derive(Debug, Default)]
struct Open {
    /// The worker's word when they were opened.
    epoch: u32,
    by_address: BTreeMap<u64, Arc<Window>>,
    /// Allocations that cannot be shown: first address and end.
    refused: BTreeMap<u64, u64>,
}

impl Windows {
    fn read(&self) -> RwLockReadGuard<'_, Open> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Open> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The allocation at an address is about to be freed.
    #[cold]
    pub(super) fn forget(&self, address: u64) {
        let mut open = self.write();
        open.refused.remove(&address);
        let gone = open.by_address.remove(&address);
        drop(open);
        drop(gone);
    }

    /// All device memory of a context is about to be freed.
    pub(super) fn forget_all(&self) {
        *self.write() = Open::default();
    }

    /// The window around some bytes, whether or not they have their pages; `Err(true)` if it is worth
    /// asking for one.
    fn find(&self, epoch: u32, address: u64, bytes: u64) -> Result<Arc<Window>, bool> {
        let open = self.read();
        if open.epoch != epoch {
            return Err(true);
        }
        let end = address.checked_add(bytes).ok_or(false)?;
        if let Some((_, window)) = open.by_address.range(..=address).next_back()
            && end <= window.address + window.bytes
        {
            return Ok(Arc::clone(window));
        }
        let refused = open.refused.range(..=address).next_back();
        Err(refused.is_none_or(|(_, end)| *end <= address))
    }
}

impl<T: ClientTransport> SessionClient<T> {
    /// Whether the work of everything sent so far is done, as far as is known without asking.
    ///
    /// # Errors
    /// If the worker is gone.
    pub fn is_quiet(&self) -> Result<bool, SessionError> {
        self.transport.is_quiet()
    }

    /// Copies a box between this process's memory and device memory on this thread, where the device
    /// memory is mapped here or can be, and the stream's earlier work is done. `wait` waits for that.
    /// `false` if nothing was done.
    ///
    /// # Safety
    /// `host` is valid for reads, or for writes if `into_host`, during the call.
    pub unsafe fn copy_here(
        &self,
        stream: u64,
        host: &HostBox,
        device: &DeviceBox,
        into_host: bool,
        wait: bool,
    ) -> Result<bool, SessionError> {
        // Device memory of a real GPU is not shown to the program.
        if self.snapshot.has_driver {
            return Ok(false);
        }
        let (width, height, depth) = host.extent;
        let CopyPlace::Device(address) = device.place else {
            return Ok(false);
        };
        let span = |pitch: (u64, u64)| {
            let slices = depth.checked_sub(1)?.checked_mul(pitch.1)?;
            let rows = height.checked_sub(1)?.checked_mul(pitch.0)?;
            slices.checked_add(rows)?.checked_add(width)
        };
        let Some((bytes, _)) = span(device.pitch).zip(span(host.pitch)) else {
            return Ok(false);
        };
        let Some(window) = self.window(address, bytes)? else {
            return Ok(false);
        };
        let Some(area) = self.transport.area() else {
            return Ok(false);
        };
        let Some(_turn) = self.turn(stream, wait)? else {
            return Ok(false);
        };
        // SAFETY: the caller vouches for `host`; the window holds the rows (asked for above).
        let copied = unsafe { window.copy(area.control(), host, address, device.pitch, into_host) };
        self.transport.check_copied()?;
        Ok(copied)
    }

    /// A turn on a stream that has nothing to do; `None` if it has and that is not to be waited for, or
    /// other threads keep it busy.
    pub(super) fn turn(
        &self,
        stream: u64,
        wait: bool,
    ) -> Result<Option<Turn<'_, T>>, SessionError> {
        for waited in 0..=TURN_ATTEMPTS {
            self.transport.begin_turn(stream)?;
            let turn = Turn(&self.transport, stream);
            // Work that came since the wait, or that the default stream has, may come before the copy.
            if self.is_quiet()? || waited > 0 && self.call(&StreamClear { stream })?.value {
                return Ok(Some(turn));
            }
            // Waiting with the turn would keep others from what this may be waiting for.
            drop(turn);
            if !wait || waited == TURN_ATTEMPTS {
                break;
            }
            self.call(&StreamSynchronize { stream })?;
        }
        Ok(None)
    }

    /// Bytes that this program has copied itself, to and from the device.
    pub fn window_bytes(&self) -> (u64, u64) {
        self.transport.area().map_or((0, 0), |area| {
            let copies = &area.control().copies;
            (
                copies.bytes_in.load(Relaxed),
                copies.bytes_out.load(Relaxed),
            )
        })
    }

    /// Copies pageable bytes to the device; returns when they are there.
    pub fn write_now(&self, stream: u64, address: u64, bytes: &[u8]) -> Result<(), SessionError> {
        let (host, device) = HostBox::line(bytes.as_ptr().cast_mut(), bytes.len(), address);
        // SAFETY: `bytes` is borrowed, and only read.
        if unsafe { self.copy_here(stream, &host, &device, false, true)? } {
            return Ok(());
        }
        self.write(stream, address, bytes)?;
        self.synchronize(stream)
    }

    /// A window that holds these bytes, with their pages; `None` if there is none to be had.
    fn window(&self, address: u64, bytes: u64) -> Result<Option<Arc<Window>>, SessionError> {
        let (Some(file), Some(area)) = (self.transport.window_file(), self.transport.area()) else {
            return Ok(None);
        };
        let epoch = area.control().worker.windows.load(Acquire);
        if epoch & 1 != 0 || bytes == 0 {
            return Ok(None);
        }
        let known = match self.windows.find(epoch, address, bytes) {
            Ok(window) if window.is_ready(address, bytes) => return Ok(Some(window)),
            Ok(window) => Some(window),
            Err(worth) if !worth || bytes < LEAST_BYTES => return Ok(None),
            Err(_) => None,
        };
        let found = match self.call(&MemoryWindow { address, bytes }) {
            Ok(found) => found,
            // The copy itself says what is wrong, if anything is.
            Err(SessionError::Refused { .. }) => return Ok(None),
            Err(other) => return Err(other),
        };
        let window = match known {
            Some(window) => Some(window),
            None => self.remember(file, &found, epoch),
        };
        if let Some(window) = &window {
            window.note_ready(address, bytes);
        }
        Ok(window)
    }

    fn remember(
        &self,
        file: BorrowedFd<'_>,
        found: &types::Window,
        epoch: u32,
    ) -> Option<Arc<Window>> {
        let window = match found.offset {
            u64::MAX => None,
            _ => Window::map(file, found, epoch).map(Arc::new),
        };
        let mut open = self.windows.write();
        if open.epoch != epoch {
            // Those from before the closing show nothing that is used any more.
            *open = Open::default();
            open.epoch = epoch;
        }
        match &window {
            Some(window) => {
                open.by_address.insert(found.address, Arc::clone(window));
            }
            None => {
                if open.refused.len() >= MOST_REFUSED {
                    open.refused.clear();
                }
                let end = found.address.saturating_add(found.bytes);
                open.refused.insert(found.address, end);
            }
        }
        window
    }
}
