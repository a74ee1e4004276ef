//! Copies between the program's memory and the device, and how long the program's memory is needed.

use std::sync::{Arc, Mutex, mpsc};

use mica_gpu::{Copy3d, DevicePtr, HostSpan, Place};

use super::{Embedded, lock};
use crate::backend::{DeviceSide, PendingBytes};
use crate::{Error, Result};

/// A run of bytes.
pub(super) fn line(address: u64, bytes: usize) -> DeviceSide {
    let bytes = bytes as u64;
    DeviceSide {
        place: Place::Device(DevicePtr(address)),
        pitch: (bytes, bytes),
        extent: (bytes, 1, 1),
    }
}

impl Embedded {
    /// As [`Backend::write`](crate::backend::Backend::write).
    pub(super) fn write_bytes(&self, stream: u64, address: u64, bytes: &[u8]) -> Result<()> {
        // Behind other work the bytes are kept for as long as it takes; otherwise they go at once.
        if !self.session.stream_query(stream)? {
            let address = DevicePtr(address);
            return Ok(self.session.write_shared(stream, address, &bytes.into())?);
        }
        self.copy_in(stream, &line(address, bytes.len()), bytes)
    }

    /// Copies rows and slices to the device; returns when the device has read them.
    pub(super) fn copy_in(&self, stream: u64, to: &DeviceSide, bytes: &[u8]) -> Result<()> {
        // SAFETY: the device only reads a copy's source, and `settle` returns after the copy.
        let span = unsafe { HostSpan::new(bytes.as_ptr().cast_mut(), bytes.len() as u64) };
        self.session
            .copy(stream, &to.copy(Place::Host(span), true))?;
        self.settle(stream)
    }

    /// Copies rows and slices from the device; returns when they are there.
    pub(super) fn copy_out(&self, stream: u64, from: &DeviceSide, bytes: &mut [u8]) -> Result<()> {
        self.session.stream_synchronize(stream)?;
        // SAFETY: `settle` returns after the copy, and `bytes` is borrowed until then.
        let span = unsafe { HostSpan::new(bytes.as_mut_ptr(), bytes.len() as u64) };
        self.session
            .copy(stream, &from.copy(Place::Host(span), false))?;
        self.settle(stream)
    }

    /// Starts a read.
    pub(super) fn start_read(&self, stream: u64, address: u64, bytes: u64) -> Result<PendingBytes> {
        let too_large = || Error::Argument(format!("{bytes} bytes do not fit this machine"));
        let size = usize::try_from(bytes).map_err(|_| too_large())?;
        let mut buffer = vec![0; size];
        // SAFETY: the bytes stay where they are until the callback below has run, or for ever.
        let span = unsafe { HostSpan::new(buffer.as_mut_ptr(), bytes) };
        let src = Place::Device(DevicePtr(address));
        let copy = Copy3d::linear(Place::Host(span), src, bytes);
        self.session.copy(stream, &copy)?;
        let held = Arc::new(Mutex::new(Some(buffer)));
        let (sender, receiver) = mpsc::channel();
        let taken = Arc::clone(&held);
        let deliver = move || {
            if let Some(buffer) = lock(&taken).take() {
                let _ = sender.send(Ok(buffer));
            }
        };
        if let Err(error) = self.session.stream_callback(stream, Box::new(deliver)) {
            // Whether the copy is under way is not known now: its target must never go.
            std::mem::forget(held);
            return Err(error.into());
        }
        Ok(receiver)
    }

    /// Returns when a copy that uses borrowed host memory is over, one way or the other.
    fn settle(&self, stream: u64) -> Result<()> {
        // The device copies at once on an idle stream.
        if matches!(self.session.stream_query(stream), Ok(true)) {
            return Ok(());
        }
        let (sender, over) = mpsc::channel::<()>();
        let queued = self
            .session
            .stream_callback(stream, Box::new(move || drop(sender)));
        match queued {
            // The sender goes when the stream has passed the copy, or has dropped what it held.
            Ok(()) => {
                let _ = over.recv();
            }
            // A faulted context takes no callbacks; its end waits for the copy under way.
            Err(error) => {
                let _ = self.session.context_destroy(self.context());
                return Err(error.into());
            }
        }
        // A fault drops copies; the query tells of it.
        self.session.stream_query(stream)?;
        Ok(())
    }
}
