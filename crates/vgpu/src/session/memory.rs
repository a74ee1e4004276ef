//! Linear memory, copies, fills, host memory.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use mica_cuda_abi::CuResult;
use mica_gpu::{Copy3d, DevicePtr, Fill2d, HostSpan, MemoryWindow, Place};

use super::extents::{checked_copy, copy_bytes, fill_bytes};
use super::{Session, lock};
use crate::ranges::{Owner, Range};
use crate::{Result, VgpuError};

/// How host memory is registered.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostUse {
    /// It counts against the memory limit.
    pub charge: bool,
    /// Its program can bring the file again, should another worker go on with the session.
    pub is_offered: bool,
    /// The address that it had on the device which this one continues.
    pub wanted: Option<DevicePtr>,
}

impl Session {
    /// Allocates device memory.
    pub fn memory_alloc(&self, context: u64, bytes: u64) -> Result<DevicePtr> {
        self.check()?;
        if bytes == 0 {
            return Err(VgpuError::Argument("an allocation of 0 bytes".into()));
        }
        let owner = self.context_id(context)?;
        let share = self.object_share()?;
        // What the device takes, which is more where it deals in pages.
        let taken = self.gpu.allocation_bytes(bytes).unwrap_or(u64::MAX);
        let charge = self.vgpu.charge(taken, self)?;
        let mut made = self.gpu.memory_alloc(owner, bytes);
        if taken == 0
            && made
                .as_ref()
                .is_err_and(|e| e.code == CuResult::OutOfMemory)
        {
            // The device charges for such pieces itself, and never waits. Room for the pages they may need is
            // waited for here.
            let most = bytes.saturating_add(self.gpu.piece_bytes());
            drop(self.vgpu.charge(most, self)?);
            made = self.gpu.memory_alloc(owner, bytes);
        }
        let address = self.watch(context, made)?;
        let mut tables = self.write();
        if tables.contexts.get(context).is_err() {
            // The context went while we allocated, and took the memory with it.
            return Err(VgpuError::Closed);
        }
        let freeing = false;
        let range = Range {
            bytes,
            context,
            owner: Owner::Allocation { charge, freeing },
            share,
        };
        tables.ranges.0.insert(address.0, range);
        Ok(address)
    }

    /// Waits for the context's work, as `cuMemFree` does, and frees.
    pub fn memory_free(&self, context: u64, address: DevicePtr) -> Result<()> {
        self.check()?;
        let refused = VgpuError::Range {
            address: address.0,
            bytes: 0,
        };
        let owner = self.context_id(context)?;
        {
            let tables = self.read();
            match tables.ranges.0.get(&address.0) {
                Some(range)
                    if range.context == context
                        && matches!(range.owner, Owner::Allocation { freeing: false, .. }) => {}
                _ => return Err(refused),
            }
        }
        let waited = self.gpu.context_synchronize(owner);
        // Two threads may have come so far with the same address; one of them finds it gone.
        let gone = self.write().ranges.0.remove(&address.0).ok_or(refused)?;
        let freed = self.gpu.memory_free(owner, address);
        drop(gone);
        self.watch(context, waited)?;
        self.watch(context, freed)
    }

    /// Allocates for use in stream order.
    pub fn memory_alloc_async(&self, stream: u64, bytes: u64) -> Result<DevicePtr> {
        let (_, context) = self.stream_id(stream)?;
        self.memory_alloc(context, bytes)
    }

    /// Frees once the stream has got so far.
    pub fn memory_free_async(&self, stream: u64, address: DevicePtr) -> Result<()> {
        self.check()?;
        self.make_room(stream, 0)?;
        let mut tables = self.write();
        let (id, context) = {
            let stream = tables.streams.get(stream)?;
            (stream.id, stream.context)
        };
        match tables.ranges.0.get_mut(&address.0) {
            Some(Range {
                context: owner,
                owner: Owner::Allocation { freeing, .. },
                ..
            }) if *owner == context && !*freeing => *freeing = true,
            _ => {
                let bytes = 0;
                let address = address.0;
                return Err(VgpuError::Range { address, bytes });
            }
        }
        self.frees_pending.fetch_add(1, AcqRel);
        drop(tables);
        let freed = Arc::clone(&self.freed);
        let callback = Box::new(move || lock(&freed).push(address.0));
        let queued = self.gpu.stream_release(id, 0, callback);
        if queued.is_err() {
            // A dead stream runs nothing any more, so there is nothing to wait for.
            lock(&self.freed).push(address.0);
        }
        self.watch(context, queued)
    }

    /// Frees what streams have let go of; unless it may wait, not while the tables are in use.
    pub(crate) fn collect_freed(&self, may_wait: bool) {
        let mut addresses = std::mem::take(&mut *lock(&self.freed));
        while let Some(address) = addresses.pop() {
            let (gone, owner) = {
                let mut tables = match may_wait {
                    true => self.write(),
                    false => match self.tables.try_write() {
                        Ok(tables) => tables,
                        Err(_) => {
                            addresses.push(address);
                            lock(&self.freed).append(&mut addresses);
                            return;
                        }
                    },
                };
                let Some(range) = tables.ranges.0.get(&address) else {
                    continue;
                };
                if !matches!(range.owner, Owner::Allocation { freeing: true, .. }) {
                    continue;
                }
                let Ok(owner) = tables.contexts.get(range.context).map(|c| c.id) else {
                    continue;
                };
                (tables.ranges.0.remove(&address), owner)
            };
            if let Err(error) = self.gpu.memory_free(owner, DevicePtr(address)) {
                tracing::warn!(%error, address, "memory let go by a stream was not freed");
            }
            self.frees_pending.fetch_sub(1, AcqRel);
            drop(gone);
        }
    }

    /// Waits for frees that streams have yet to reach; whether there were any.
    pub(crate) fn wait_pending_frees(&self) -> bool {
        if self.frees_pending.load(Acquire) == 0 {
            return false;
        }
        let contexts: Vec<_> = self.read().contexts.iter().map(|(_, c)| c.id).collect();
        for context in contexts {
            let _ = self.gpu.context_synchronize(context);
        }
        let before = self.frees_pending.load(Acquire);
        self.collect_freed(true);
        self.frees_pending.load(Acquire) < before
    }

    /// The allocation or mapping that holds an address.
    pub fn memory_range(&self, address: DevicePtr) -> Result<(DevicePtr, u64)> {
        self.check()?;
        let tables = self.read();
        let found = tables.ranges.find(address.0);
        let (start, range) = found.ok_or(VgpuError::Range {
            address: address.0,
            bytes: 0,
        })?;
        Ok((DevicePtr(start), range.bytes))
    }

    /// Shows an allocation to the holder of the device's window file; `None` with its range if that
    /// cannot be.
    pub fn memory_window(
        &self,
        address: DevicePtr,
        bytes: u64,
    ) -> Result<std::result::Result<MemoryWindow, (DevicePtr, u64)>> {
        self.check()?;
        let (range, owner) = {
            let tables = self.read();
            tables.ranges.check(address.0, bytes)?;
            let refused = VgpuError::Range {
                address: address.0,
                bytes,
            };
            let (start, found) = tables.ranges.find(address.0).ok_or(refused)?;
            let owner = match found.owner {
                Owner::Allocation { .. } => Some(tables.contexts.get(found.context)?.id),
                _ => None,
            };
            ((DevicePtr(start), found.bytes), owner)
        };
        let window = match owner {
            // It waits for kernels to hold still, so no lock is held.
            Some(owner) => self.gpu.memory_window(owner, address, bytes)?,
            None => None,
        };
        Ok(window.ok_or(range))
    }

    /// Copies in stream order. Arrays are named by their session handles.
    pub fn copy(&self, stream: u64, copy: &Copy3d) -> Result<()> {
        self.check()?;
        self.make_room(stream, 0)?;
        let tables = self.read();
        let stream = tables.streams.get(stream)?;
        let Some(device) = checked_copy(&tables, copy)? else {
            // However many rows of no bytes there are: the device is not asked to count them.
            return self.watch(stream.context, self.gpu.stream_query(stream.id).map(drop));
        };
        self.watch(stream.context, self.gpu.copy(stream.id, &device))?;
        let counters = self.vgpu.counters();
        match (copy.src, copy.dst) {
            (Place::Host(_), Place::Host(_)) => return Ok(()),
            (Place::Host(_), _) => &counters.bytes_from_host,
            (_, Place::Host(_)) => &counters.bytes_to_host,
            _ => &counters.bytes_on_device,
        }
        .fetch_add(copy_bytes(copy), Relaxed);
        Ok(())
    }

    /// Fills in stream order.
    pub fn fill(&self, stream: u64, fill: &Fill2d) -> Result<()> {
        self.check()?;
        let bytes = fill_bytes(fill)?;
        self.make_room(stream, 0)?;
        let tables = self.read();
        let stream = tables.streams.get(stream)?;
        if bytes == 0 {
            return self.watch(stream.context, self.gpu.stream_query(stream.id).map(drop));
        }
        tables.ranges.check(fill.dst.0, bytes)?;
        self.watch(stream.context, self.gpu.fill(stream.id, fill))
    }

    /// Pins host memory of this process for copies.
    ///
    /// # Safety
    /// The span stays mapped as long as the session lives.
    #[expect(unsafe_code, reason = "the device reads and writes the span later")]
    pub unsafe fn pin(&self, context: u64, span: HostSpan) -> Result<()> {
        self.check()?;
        let context = self.context_id(context)?;
        // SAFETY: our contract.
        unsafe { self.gpu.pin(context, span)? };
        Ok(())
    }

    /// Makes host memory of this process visible to kernels.
    ///
    /// The keeper is dropped when the memory has been unregistered: let it hold the mapping.
    ///
    /// # Safety
    /// The span stays mapped, for reading and writing, until `keeper` is dropped.
    #[expect(unsafe_code, reason = "the device reads and writes the span later")]
    pub unsafe fn host_register(
        &self,
        context: u64,
        span: HostSpan,
        fd: Option<(BorrowedFd<'_>, u64)>,
        charge: bool,
        keeper: Box<dyn Any + Send + Sync>,
    ) -> Result<DevicePtr> {
        let how = HostUse {
            charge,
            ..HostUse::default()
        };
        // SAFETY: our contract.
        unsafe { self.host_register_as(context, span, fd, how, keeper) }
    }

    /// As [`Session::host_register`], with all that can be said of it.
    ///
    /// # Safety
    /// As [`Session::host_register`].
    #[expect(unsafe_code, reason = "the device reads and writes the span later")]
    pub unsafe fn host_register_as(
        &self,
        context: u64,
        span: HostSpan,
        fd: Option<(BorrowedFd<'_>, u64)>,
        how: HostUse,
        keeper: Box<dyn Any + Send + Sync>,
    ) -> Result<DevicePtr> {
        self.check()?;
        let owner = self.context_id(context)?;
        let share = self.object_share()?;
        let registered = self.registered.take(span.len(), "registered host memory")?;
        let charge = match how.charge {
            true => Some(self.vgpu.charge(span.len(), self)?),
            false => None,
        };
        let offset = fd.as_ref().map_or(0, |(_, offset)| *offset);
        let fd = fd.map(|(fd, _)| fd);
        // SAFETY: the keeper holds the span mapped, and goes only after `host_unregister` or after
        // the end of the context.
        let address = match (how.wanted, fd) {
            (Some(at), Some(fd)) => {
                // SAFETY: as above.
                let made = unsafe { self.gpu.host_register_at(owner, span, fd, offset, at) };
                made.map(|()| at)
            }
            // SAFETY: as above.
            (_, fd) => unsafe { self.gpu.host_register(owner, span, fd, offset) },
        };
        let address = self.watch(context, address)?;
        let mut tables = self.write();
        if tables.contexts.get(context).is_err() {
            return Err(VgpuError::Closed);
        }
        let range = Range {
            bytes: span.len(),
            context,
            owner: Owner::Host {
                offset,
                is_offered: how.is_offered,
                keeper,
                charge,
                registered,
            },
            share,
        };
        tables.ranges.0.insert(address.0, range);
        Ok(address)
    }

    /// Waits for the context's work and ends [`Session::host_register`].
    pub fn host_unregister(&self, context: u64, address: DevicePtr) -> Result<()> {
        self.check()?;
        let owner = self.context_id(context)?;
        let refused = VgpuError::Range {
            address: address.0,
            bytes: 0,
        };
        let is_host =
            |range: &Range| range.context == context && matches!(range.owner, Owner::Host { .. });
        if !self.read().ranges.0.get(&address.0).is_some_and(is_host) {
            return Err(refused);
        }
        let waited = self.gpu.context_synchronize(owner);
        let gone = self.write().ranges.0.remove(&address.0).ok_or(refused)?;
        let ended = self.gpu.host_unregister(owner, address);
        if ended.is_err() {
            // The device may still reach it, so the mapping stays until the context goes.
            self.write().ranges.0.insert(address.0, gone);
        } else {
            drop(gone);
        }
        self.watch(context, waited)?;
        self.watch(context, ended)
    }

    /// Writes bytes that nobody will change until the stream has got so far.
    #[expect(unsafe_code, reason = "a host span is made from shared bytes")]
    pub fn write_shared(&self, stream: u64, address: DevicePtr, bytes: &Arc<[u8]>) -> Result<()> {
        self.make_room(stream, bytes.len() as u64)?;
        let keep = Arc::clone(bytes);
        // SAFETY: the device only reads a copy's source; `keep` holds the bytes until the stream
        // has passed the copy.
        let span = unsafe { HostSpan::new(bytes.as_ptr().cast_mut(), bytes.len() as u64) };
        let copy = Copy3d::linear(Place::Device(address), Place::Host(span), span.len());
        self.copy(stream, &copy)?;
        if self.gpu.reads_pageable_at_once() {
            return Ok(());
        }
        // A device that copies at once on an idle stream needs no release later.
        if self.stream_query(stream)? {
            return Ok(());
        }
        let release = Box::new(move || drop(keep));
        match self.stream_release(stream, bytes.len() as u64, release) {
            Ok(()) => Ok(()),
            Err(error) => {
                // Without a release the copy's end must be waited for before the bytes go.
                self.stream_synchronize(stream)?;
                Err(error)
            }
        }
    }
}
