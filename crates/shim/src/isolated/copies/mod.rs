//! Copies, in all directions. The entry points are in [`calls`].
//!
//! Each end of a copy is device memory, an array, or pageable memory of the program; pinned memory
//! is device memory here, since both sides map it, so such copies need no staging. Pageable data is
//! copied through staging while the call lasts.

pub(crate) mod boxes;
pub(crate) mod calls;
pub(crate) mod fills;

use std::sync::atomic::Ordering::Acquire;

use mica_wire::session::client::{DeviceBox, HostBox, SessionClient};
use mica_wire::session::{Copy, CopyBox, CopyPlace, SessionError};

use crate::isolated::capture;
use crate::isolated::context::Context;
use crate::isolated::graphs::operations::Op;
use crate::isolated::memory::arrays::Array;
use crate::isolated::modules::managed_variables;
use crate::isolated::state::State;
use crate::isolated::streams::Stream;
use crate::isolated::support::{Answer, invalid};

/// Where an end of a copy is.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    Device(u64),
    Pageable(u64),
    Array(&'static Array),
}

/// One end of a copy.
#[derive(Clone, Copy)]
pub(crate) struct End {
    pub(crate) place: Place,
    /// Bytes between rows and between slices.
    pub(crate) pitch: (u64, u64),
    /// Offset in bytes, rows and slices; only for arrays, elsewhere it is in the address.
    pub(crate) offset: [u64; 3],
}

/// A box of bytes to copy.
#[derive(Clone, Copy)]
pub(crate) struct CopyOp {
    pub(crate) src: End,
    pub(crate) dst: End,
    /// Bytes in a row, rows, slices.
    pub(crate) extent: (u64, u64, u64),
}

impl End {
    /// A plain run of bytes.
    pub(crate) fn linear(place: Place, bytes: u64) -> Self {
        Self {
            place,
            pitch: (bytes, bytes),
            offset: [0; 3],
        }
    }

    fn device_box(&self) -> Option<DeviceBox> {
        let place = match self.place {
            Place::Device(address) => CopyPlace::Device(address),
            Place::Array(array) => CopyPlace::Array(array.wire()),
            Place::Pageable(_) => return None,
        };
        Some(DeviceBox {
            place,
            pitch: self.pitch,
            offset: self.offset,
        })
    }

    fn host_box(&self, extent: (u64, u64, u64)) -> Option<HostBox> {
        match self.place {
            Place::Pageable(address) => Some(HostBox {
                pointer: address as *mut u8,
                pitch: self.pitch,
                extent,
            }),
            _ => None,
        }
    }
}

/// A pointer that is meant for the host: pinned memory is known by its device address.
pub(crate) fn host_place(state: &State, pointer: u64) -> Place {
    match state.memory.find_host(pointer) {
        Some(found) => Place::Device(pointer - found.host + found.device),
        None => Place::Pageable(pointer),
    }
}

/// A pointer that is meant for the device.
pub(crate) fn device_place(state: &State, pointer: u64) -> Answer<Place> {
    if state.memory.find_device(pointer).is_some() {
        return Ok(Place::Device(pointer));
    }
    match state.memory.find_host(pointer) {
        Some(found) => Ok(Place::Device(pointer - found.host + found.device)),
        None => invalid(),
    }
}

/// A pointer that speaks for itself.
pub(crate) fn unified_place(state: &State, pointer: u64) -> Answer<Place> {
    if pointer == 0 {
        return invalid();
    }
    Ok(device_place(state, pointer).unwrap_or(Place::Pageable(pointer)))
}

/// A run of bytes of an allocation that a pointer of either side leads into; `None` if it leads into none.
fn known_run(state: &State, pointer: u64, bytes: u64) -> Answer<Option<Place>> {
    let (address, found) = match state.memory.find_device(pointer) {
        Some(found) => (pointer, found),
        None => match state.memory.find_host(pointer) {
            Some(found) => (pointer - found.host + found.device, found),
            None => return Ok(None),
        },
    };
    match found.has_run(address, bytes) {
        true => Ok(Some(Place::Device(address))),
        false => invalid(),
    }
}

/// As [`host_place`], for a run of bytes that must lie in what holds its beginning.
fn host_run(state: &State, pointer: u64, bytes: u64) -> Answer<Place> {
    let Some(found) = state.memory.find_host(pointer) else {
        return Ok(Place::Pageable(pointer));
    };
    let address = pointer - found.host + found.device;
    match found.has_run(address, bytes) {
        true => Ok(Place::Device(address)),
        false => invalid(),
    }
}

/// As [`device_place`], for a run of bytes.
fn device_run(state: &State, pointer: u64, bytes: u64) -> Answer<Place> {
    match known_run(state, pointer, bytes)? {
        Some(place) => Ok(place),
        None => invalid(),
    }
}

/// As [`unified_place`], for a run of bytes.
fn unified_run(state: &State, pointer: u64, bytes: u64) -> Answer<Place> {
    if pointer == 0 {
        return invalid();
    }
    Ok(known_run(state, pointer, bytes)?.unwrap_or(Place::Pageable(pointer)))
}

fn check_end(state: &State, end: &End, (width, height, depth): (u64, u64, u64)) -> Answer {
    let Place::Device(address) = end.place else {
        return Ok(());
    };
    let last = (depth - 1)
        .checked_mul(end.pitch.1)
        .zip((height - 1).checked_mul(end.pitch.0))
        .and_then(|(slices, rows)| slices.checked_add(rows)?.checked_add(width));
    match last {
        Some(bytes) if state.memory.covers(address, bytes) => Ok(()),
        _ => invalid(),
    }
}

impl CopyOp {
    /// The device address of an end and the copy's bytes, if it is one row.
    fn one_row(&self, end: &End) -> Option<(u64, usize)> {
        let (width, height, depth) = self.extent;
        match (end.place, height * depth) {
            (Place::Device(address), 1) => Some((address, width as usize)),
            _ => None,
        }
    }

    /// The wire's form, if no end is pageable.
    pub(crate) fn wire(&self) -> Option<CopyBox> {
        let (src, dst) = (self.src.device_box()?, self.dst.device_box()?);
        Some(CopyBox {
            src: src.place,
            src_pitch: src.pitch,
            src_offset: src.offset,
            dst: dst.place,
            dst_pitch: dst.pitch,
            dst_offset: dst.offset,
            width_bytes: self.extent.0,
            height: self.extent.1,
            depth: self.extent.2,
        })
    }

    /// The same memory as this process sees it and as the device does, with the direction: for copies
    /// between them that this thread can do itself. Pinned memory is both.
    fn sides(&self, state: &State) -> Option<(HostBox, DeviceBox, bool)> {
        let pinned = |end: &End| match end.place {
            Place::Device(address) => {
                let found = state.memory.find_device(address)?;
                (found.is_host()).then(|| address - found.device + found.host)
            }
            _ => None,
        };
        let host = |end: &End| match pinned(end) {
            Some(pointer) => Some(HostBox {
                pointer: pointer as *mut u8,
                pitch: end.pitch,
                extent: self.extent,
            }),
            None => end.host_box(self.extent),
        };
        let device = |end: &End| match pinned(end) {
            Some(_) => None,
            None => end.device_box(),
        };
        if let (Some(from), Some(to)) = (host(&self.src), device(&self.dst)) {
            return Some((from, to, false));
        }
        let (from, to) = (device(&self.src)?, host(&self.dst)?);
        Some((to, from, true))
    }

    fn touches_host(&self, state: &State) -> bool {
        [&self.src, &self.dst].iter().any(|end| match end.place {
            Place::Device(address) => state
                .memory
                .find_device(address)
                .is_some_and(|found| found.is_host()),
            Place::Pageable(_) => true,
            Place::Array(_) => false,
        })
    }
}

/// Where a call's work goes.
pub(crate) type Target = (&'static State, &'static Context, &'static Stream);

/// Copies between two boxes of the program's own memory.
pub(crate) fn copy_on_host(op: &CopyOp) {
    let (Place::Pageable(from), Place::Pageable(to)) = (op.src.place, op.dst.place) else {
        return;
    };
    let (width, height, depth) = op.extent;
    for z in 0..depth {
        for y in 0..height {
            let from = from + z * op.src.pitch.1 + y * op.src.pitch.0;
            let to = to + z * op.dst.pitch.1 + y * op.dst.pitch.0;
            // SAFETY: the program says that both boxes are its memory.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, width as usize) };
        }
    }
}

/// Carries out a copy, or records it; `wait` makes it complete before the call returns where a real
/// driver would.
pub(crate) fn run(target: Target, op: CopyOp, wait: bool) -> Answer {
    let (width, height, depth) = op.extent;
    if width == 0 || height == 0 || depth == 0 {
        return Ok(());
    }
    check_end(target.0, &op.src, op.extent)?;
    check_end(target.0, &op.dst, op.extent)?;
    run_checked(target, op, wait)
}

/// As [`run`], for a copy whose ends are known to lie in their memory.
fn run_checked((state, context, stream): Target, op: CopyOp, wait: bool) -> Answer {
    if stream.capturing.load(Acquire) {
        if wait {
            return capture::refuse(stream);
        }
        return capture::record(stream, Op::Copy(op));
    }
    capture::forbid_legacy(stream)?;
    managed_variables::push(state, context, stream.wire())?;
    let client = &state.client;
    let wire = stream.wire();
    let area = op.wire();
    // What may be left to the device is, if the call need not wait.
    if (wait || area.is_none())
        && let Some((host, device, into_host)) = op.sides(state)
    {
        // SAFETY: the program says that the box is its memory.
        let copied = unsafe { client.copy_here(wire, &host, &device, into_host, wait) };
        if context.checked(copied)? {
            state.waited();
            return context.check(state);
        }
    }
    if let Some(area) = area {
        context.checked(client.post(&Copy { stream: wire, area }, &[]))?;
        return match wait && op.touches_host(state) {
            true => stream.synchronize(state),
            false => Ok(()),
        };
    }
    match (op.src.host_box(op.extent), op.dst.host_box(op.extent)) {
        (Some(_), Some(_)) => {
            stream.synchronize(state)?;
            copy_on_host(&op);
            Ok(())
        }
        (Some(host), None) => {
            context.checked(write_pageable(client, wire, &op, host)?)?;
            // A synchronous copy also waits for what the stream has been given before.
            match wait && !client.has_only_uploads() {
                true => stream.synchronize(state),
                false => context.check(state),
            }
        }
        (None, Some(host)) => {
            let taken = read_pageable(client, wire, &op, host)?;
            state.waited();
            context.checked(taken)?;
            context.check(state)
        }
        (None, None) => invalid(),
    }
}

/// Sends the bytes of a pageable box; what became of it.
fn write_pageable(
    client: &SessionClient,
    stream: u64,
    op: &CopyOp,
    host: HostBox,
) -> Answer<Result<(), SessionError>> {
    if let Some((address, width)) = op.one_row(&op.dst) {
        // SAFETY: the program says that so many bytes are there.
        let bytes = unsafe { std::slice::from_raw_parts(host.pointer, width) };
        return Ok(client.write(stream, address, bytes));
    }
    let Some(device) = op.dst.device_box() else {
        return invalid();
    };
    // SAFETY: as above, row by row.
    Ok(unsafe { client.write_box(stream, &host, &device) })
}

/// Fetches the bytes of a pageable box; what became of it.
fn read_pageable(
    client: &SessionClient,
    stream: u64,
    op: &CopyOp,
    host: HostBox,
) -> Answer<Result<(), SessionError>> {
    if let Some((address, width)) = op.one_row(&op.src) {
        // SAFETY: the program says that there is room for so many bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(host.pointer, width) };
        return Ok(client.read(stream, address, bytes));
    }
    let Some(device) = op.src.device_box() else {
        return invalid();
    };
    // SAFETY: as above, row by row.
    Ok(unsafe { client.read_box(stream, &host, &device) })
}
