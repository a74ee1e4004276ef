//! Copies and fills, in all directions.
//!
//! Each end of a copy is device memory, an array, or pageable memory of the program; pinned memory
//! is device memory here, since both sides map it, so such copies need no staging. Pageable data is
//! copied through staging while the call lasts.

use std::ffi::c_void;
use std::sync::atomic::Ordering::Acquire;

use mica_cuda_abi::Handle;
use mica_wire::session::client::{DeviceBox, HostBox};
use mica_wire::session::{Copy, CopyBox, CopyPlace, Fill};

use super::arrays::Array;
use super::capture;
use super::context::Context;
use super::graph_ops::Op;
use super::state::State;
use super::streams::{Stream, resolve};
use super::support::{Answer, bad_handle, driver, get, invalid, stream_entries};

/// Where an end of a copy is.
#[derive(Clone, Copy)]
pub(super) enum Place {
    Device(u64),
    Pageable(u64),
    Array(&'static Array),
}

/// One end of a copy.
#[derive(Clone, Copy)]
pub(super) struct End {
    pub(super) place: Place,
    /// Bytes between rows and between slices.
    pub(super) pitch: (u64, u64),
    /// Offset in bytes, rows and slices; only for arrays, elsewhere it is in the address.
    pub(super) offset: [u64; 3],
}

/// A box of bytes to copy.
#[derive(Clone, Copy)]
pub(super) struct CopyOp {
    pub(super) src: End,
    pub(super) dst: End,
    /// Bytes in a row, rows, slices.
    pub(super) extent: (u64, u64, u64),
}

impl End {
    fn linear(place: Place, bytes: u64) -> Self {
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
fn host_place(state: &State, pointer: u64) -> Place {
    match state.memory.find_host(pointer) {
        Some(found) => Place::Device(pointer - found.host + found.device),
        None => Place::Pageable(pointer),
    }
}

/// A pointer that is meant for the device.
fn device_place(state: &State, pointer: u64) -> Answer<Place> {
    if state.memory.find_device(pointer).is_some() {
        return Ok(Place::Device(pointer));
    }
    match state.memory.find_host(pointer) {
        Some(found) => Ok(Place::Device(pointer - found.host + found.device)),
        None => invalid(),
    }
}

/// A pointer that speaks for itself.
fn unified_place(state: &State, pointer: u64) -> Answer<Place> {
    if pointer == 0 {
        return invalid();
    }
    Ok(device_place(state, pointer).unwrap_or(Place::Pageable(pointer)))
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
    /// The wire's form, if no end is pageable.
    pub(super) fn wire(&self) -> Option<CopyBox> {
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

/// Copies between two boxes of the program's own memory.
pub(super) fn copy_on_host(op: &CopyOp) {
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
pub(super) fn run(
    (state, context, stream): (&'static State, &'static Context, &'static Stream),
    op: CopyOp,
    wait: bool,
) -> Answer {
    let (width, height, depth) = op.extent;
    if width == 0 || height == 0 || depth == 0 {
        return Ok(());
    }
    check_end(state, &op.src, op.extent)?;
    check_end(state, &op.dst, op.extent)?;
    if stream.capturing.load(Acquire) {
        if wait {
            return capture::refuse(stream);
        }
        return capture::record(stream, Op::Copy(op));
    }
    capture::forbid_legacy(stream)?;
    let client = &state.client;
    let wire = stream.wire();
    if let Some(area) = op.wire() {
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
            let written = match (op.dst.place, height * depth) {
                (Place::Device(address), 1) => {
                    // SAFETY: the program says that so many bytes are there.
                    let bytes = unsafe { std::slice::from_raw_parts(host.pointer, width as usize) };
                    client.write(wire, address, bytes)
                }
                _ => {
                    let Some(device) = op.dst.device_box() else {
                        return invalid();
                    };
                    // SAFETY: as above, row by row.
                    unsafe { client.write_box(wire, &host, &device) }
                }
            };
            context.checked(written)?;
            context.check(state)
        }
        (None, Some(host)) => {
            let taken = match (op.src.place, height * depth) {
                (Place::Device(address), 1) => {
                    // SAFETY: the program says that there is room for so many bytes.
                    let bytes =
                        unsafe { std::slice::from_raw_parts_mut(host.pointer, width as usize) };
                    client.read(wire, address, bytes)
                }
                _ => {
                    let Some(device) = op.src.device_box() else {
                        return invalid();
                    };
                    // SAFETY: as above, row by row.
                    unsafe { client.read_box(wire, &host, &device) }
                }
            };
            state.print_output();
            context.checked(taken)?;
            context.check(state)
        }
        (None, None) => invalid(),
    }
}

type Target = (&'static State, &'static Context, &'static Stream);

fn linear(target: Target, dst: Place, src: Place, bytes: u64, wait: bool) -> Answer {
    let op = CopyOp {
        src: End::linear(src, bytes),
        dst: End::linear(dst, bytes),
        extent: (bytes, 1, 1),
    };
    run(target, op, wait)
}

fn to_device(target: Target, dst: u64, src: u64, bytes: usize, wait: bool) -> Answer {
    if bytes == 0 {
        return Ok(());
    }
    if src == 0 {
        return invalid();
    }
    let dst = device_place(target.0, dst)?;
    linear(target, dst, host_place(target.0, src), bytes as u64, wait)
}

fn to_host(target: Target, dst: u64, src: u64, bytes: usize, wait: bool) -> Answer {
    if bytes == 0 {
        return Ok(());
    }
    if dst == 0 {
        return invalid();
    }
    let src = device_place(target.0, src)?;
    linear(target, host_place(target.0, dst), src, bytes as u64, wait)
}

fn on_device(target: Target, dst: u64, src: u64, bytes: usize, wait: bool) -> Answer {
    if bytes == 0 {
        return Ok(());
    }
    let (dst, src) = (device_place(target.0, dst)?, device_place(target.0, src)?);
    linear(target, dst, src, bytes as u64, wait)
}

fn unified(target: Target, dst: u64, src: u64, bytes: usize, wait: bool) -> Answer {
    if bytes == 0 {
        return Ok(());
    }
    let (dst, src) = (unified_place(target.0, dst)?, unified_place(target.0, src)?);
    linear(target, dst, src, bytes as u64, wait)
}

unsafe fn with_array(
    target: Target,
    array: Handle,
    offset: usize,
    bytes: usize,
    build: impl FnOnce(End) -> Answer<CopyOp>,
    wait: bool,
) -> Answer {
    // SAFETY: the program's handle.
    let Some(array) = (unsafe { Array::find(array) }) else {
        return bad_handle();
    };
    // One-dimensional copies run on from row to row.
    let row = array.row_bytes();
    let (y, x) = (offset as u64 / row, offset as u64 % row);
    if x + bytes as u64 > row {
        return super::support::not_supported(
            "a one-dimensional copy over several rows of an array",
        );
    }
    let end = End {
        place: Place::Array(array),
        pitch: (0, 0),
        offset: [x, y, 0],
    };
    run(target, build(end)?, wait)
}

driver! {
    fn copy_htod<const PT>(dst: u64, src: *const c_void, bytes: usize) {
        to_device(resolve::<PT>(std::ptr::null_mut())?, dst, src as u64, bytes, true)
    }
    fn copy_htod_async<const PT>(dst: u64, src: *const c_void, bytes: usize, stream: Handle) {
        to_device(resolve::<PT>(stream)?, dst, src as u64, bytes, false)
    }
    fn copy_dtoh<const PT>(dst: *mut c_void, src: u64, bytes: usize) {
        to_host(resolve::<PT>(std::ptr::null_mut())?, dst as u64, src, bytes, true)
    }
    fn copy_dtoh_async<const PT>(dst: *mut c_void, src: u64, bytes: usize, stream: Handle) {
        to_host(resolve::<PT>(stream)?, dst as u64, src, bytes, false)
    }
    fn copy_dtod<const PT>(dst: u64, src: u64, bytes: usize) {
        on_device(resolve::<PT>(std::ptr::null_mut())?, dst, src, bytes, true)
    }
    fn copy_dtod_async<const PT>(dst: u64, src: u64, bytes: usize, stream: Handle) {
        on_device(resolve::<PT>(stream)?, dst, src, bytes, false)
    }
    fn copy_unified<const PT>(dst: u64, src: u64, bytes: usize) {
        unified(resolve::<PT>(std::ptr::null_mut())?, dst, src, bytes, true)
    }
    fn copy_unified_async<const PT>(dst: u64, src: u64, bytes: usize, stream: Handle) {
        unified(resolve::<PT>(stream)?, dst, src, bytes, false)
    }
    fn copy_peer<const PT>(dst: u64, _dst_context: Handle, src: u64, _src_context: Handle, bytes: usize) {
        on_device(resolve::<PT>(std::ptr::null_mut())?, dst, src, bytes, true)
    }
    fn copy_peer_async<const PT>(dst: u64, _dst_context: Handle, src: u64, _src_context: Handle, bytes: usize, stream: Handle) {
        on_device(resolve::<PT>(stream)?, dst, src, bytes, false)
    }
    fn copy_2d<const PT>(copy: *const Memcpy2d) {
        let target = resolve::<PT>(std::ptr::null_mut())?;
        run(target, get(copy)?.op(target.0)?, true)
    }
    fn copy_2d_async<const PT>(copy: *const Memcpy2d, stream: Handle) {
        let target = resolve::<PT>(stream)?;
        run(target, get(copy)?.op(target.0)?, false)
    }
    fn copy_3d<const PT>(copy: *const Memcpy3d) {
        let target = resolve::<PT>(std::ptr::null_mut())?;
        run(target, get(copy)?.op(target.0)?, true)
    }
    fn copy_3d_async<const PT>(copy: *const Memcpy3d, stream: Handle) {
        let target = resolve::<PT>(stream)?;
        run(target, get(copy)?.op(target.0)?, false)
    }
    fn copy_htoa<const PT>(dst: Handle, offset: usize, src: *const c_void, bytes: usize) {
        let target = resolve::<PT>(std::ptr::null_mut())?;
        let src = End::linear(host_place(target.0, src as u64), bytes as u64);
        with_array(target, dst, offset, bytes, |dst| Ok(CopyOp { src, dst, extent: (bytes as u64, 1, 1) }), true)
    }
    fn copy_htoa_async<const PT>(dst: Handle, offset: usize, src: *const c_void, bytes: usize, stream: Handle) {
        let target = resolve::<PT>(stream)?;
        let src = End::linear(host_place(target.0, src as u64), bytes as u64);
        with_array(target, dst, offset, bytes, |dst| Ok(CopyOp { src, dst, extent: (bytes as u64, 1, 1) }), false)
    }
    fn copy_atoh<const PT>(dst: *mut c_void, src: Handle, offset: usize, bytes: usize) {
        let target = resolve::<PT>(std::ptr::null_mut())?;
        let dst = End::linear(host_place(target.0, dst as u64), bytes as u64);
        with_array(target, src, offset, bytes, |src| Ok(CopyOp { src, dst, extent: (bytes as u64, 1, 1) }), true)
    }
    fn copy_atoh_async<const PT>(dst: *mut c_void, src: Handle, offset: usize, bytes: usize, stream: Handle) {
        let target = resolve::<PT>(stream)?;
        let dst = End::linear(host_place(target.0, dst as u64), bytes as u64);
        with_array(target, src, offset, bytes, |src| Ok(CopyOp { src, dst, extent: (bytes as u64, 1, 1) }), false)
    }
    fn copy_dtoa<const PT>(dst: Handle, offset: usize, src: u64, bytes: usize) {
        let target = resolve::<PT>(std::ptr::null_mut())?;
        let src = End::linear(device_place(target.0, src)?, bytes as u64);
        with_array(target, dst, offset, bytes, |dst| Ok(CopyOp { src, dst, extent: (bytes as u64, 1, 1) }), true)
    }
    fn copy_atod<const PT>(dst: u64, src: Handle, offset: usize, bytes: usize) {
        let target = resolve::<PT>(std::ptr::null_mut())?;
        let dst = End::linear(device_place(target.0, dst)?, bytes as u64);
        with_array(target, src, offset, bytes, |src| Ok(CopyOp { src, dst, extent: (bytes as u64, 1, 1) }), true)
    }
    fn set_8<const PT>(dst: u64, value: u8, count: usize) {
        fill(resolve::<PT>(std::ptr::null_mut())?, dst, 0, value.into(), 1, count, 1)
    }
    fn set_16<const PT>(dst: u64, value: u16, count: usize) {
        fill(resolve::<PT>(std::ptr::null_mut())?, dst, 0, value.into(), 2, count, 1)
    }
    fn set_32<const PT>(dst: u64, value: u32, count: usize) {
        fill(resolve::<PT>(std::ptr::null_mut())?, dst, 0, value, 4, count, 1)
    }
    fn set_8_async<const PT>(dst: u64, value: u8, count: usize, stream: Handle) {
        fill(resolve::<PT>(stream)?, dst, 0, value.into(), 1, count, 1)
    }
    fn set_16_async<const PT>(dst: u64, value: u16, count: usize, stream: Handle) {
        fill(resolve::<PT>(stream)?, dst, 0, value.into(), 2, count, 1)
    }
    fn set_32_async<const PT>(dst: u64, value: u32, count: usize, stream: Handle) {
        fill(resolve::<PT>(stream)?, dst, 0, value, 4, count, 1)
    }
    fn set_2d_8<const PT>(dst: u64, pitch: usize, value: u8, width: usize, height: usize) {
        fill(resolve::<PT>(std::ptr::null_mut())?, dst, pitch, value.into(), 1, width, height)
    }
    fn set_2d_16<const PT>(dst: u64, pitch: usize, value: u16, width: usize, height: usize) {
        fill(resolve::<PT>(std::ptr::null_mut())?, dst, pitch, value.into(), 2, width, height)
    }
    fn set_2d_32<const PT>(dst: u64, pitch: usize, value: u32, width: usize, height: usize) {
        fill(resolve::<PT>(std::ptr::null_mut())?, dst, pitch, value, 4, width, height)
    }
    fn set_2d_8_async<const PT>(dst: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Handle) {
        fill(resolve::<PT>(stream)?, dst, pitch, value.into(), 1, width, height)
    }
    fn set_2d_16_async<const PT>(dst: u64, pitch: usize, value: u16, width: usize, height: usize, stream: Handle) {
        fill(resolve::<PT>(stream)?, dst, pitch, value.into(), 2, width, height)
    }
    fn set_2d_32_async<const PT>(dst: u64, pitch: usize, value: u32, width: usize, height: usize, stream: Handle) {
        fill(resolve::<PT>(stream)?, dst, pitch, value, 4, width, height)
    }
}

/// Checks a fill and gives it the wire's form, without a stream.
pub(super) fn fill_op(
    state: &State,
    dst: u64,
    pitch: u64,
    value: u32,
    element_bytes: u32,
    width: u64,
    height: u64,
) -> Answer<Fill> {
    if !matches!(element_bytes, 1 | 2 | 4) || !dst.is_multiple_of(element_bytes.into()) {
        return invalid();
    }
    let Place::Device(address) = device_place(state, dst)? else {
        return invalid();
    };
    let row = width.checked_mul(element_bytes.into());
    let bytes = row.and_then(|row| {
        height
            .saturating_sub(1)
            .checked_mul(pitch)?
            .checked_add(row)
    });
    match bytes {
        Some(bytes) if state.memory.covers(address, bytes) => {}
        _ => return invalid(),
    }
    if height > 1 && row.is_some_and(|row| pitch < row) {
        return invalid();
    }
    Ok(Fill {
        stream: 0,
        address,
        pitch: if height > 1 { pitch } else { row.unwrap_or(0) },
        value,
        element_bytes,
        width,
        height,
    })
}

fn fill(
    (state, context, stream): Target,
    dst: u64,
    pitch: usize,
    value: u32,
    element_bytes: u32,
    width: usize,
    height: usize,
) -> Answer {
    if width == 0 || height == 0 {
        return Ok(());
    }
    let mut request = fill_op(
        state,
        dst,
        pitch as u64,
        value,
        element_bytes,
        width as u64,
        height as u64,
    )?;
    if stream.capturing.load(Acquire) {
        return capture::record(stream, Op::Fill(request));
    }
    capture::forbid_legacy(stream)?;
    request.stream = stream.wire();
    context.checked(state.client.post(&request, &[]))
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Memcpy2d {
    src_x: usize,
    src_y: usize,
    src_kind: u32,
    src_host: u64,
    src_device: u64,
    src_array: Handle,
    src_pitch: usize,
    dst_x: usize,
    dst_y: usize,
    dst_kind: u32,
    dst_host: u64,
    dst_device: u64,
    dst_array: Handle,
    dst_pitch: usize,
    width: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`, and `CUDA_MEMCPY3D_PEER`, which has contexts where this has reserved words.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Memcpy3d {
    src: Side3d,
    dst: Side3d,
    width: usize,
    height: usize,
    depth: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Side3d {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: u32,
    host: u64,
    device: u64,
    array: Handle,
    reserved: Handle,
    pitch: usize,
    height: usize,
}

const _: () = {
    assert!(size_of::<Memcpy2d>() == 128);
    assert!(size_of::<Memcpy3d>() == 200);
};

impl Side3d {
    /// This end of a copy.
    unsafe fn end(&self, state: &State, (width, height, depth): (u64, u64, u64)) -> Answer<End> {
        const HOST: u32 = 1;
        const DEVICE: u32 = 2;
        const ARRAY: u32 = 3;
        const UNIFIED: u32 = 4;
        if self.level != 0 {
            return invalid();
        }
        let offset = [self.x as u64, self.y as u64, self.z as u64];
        if self.kind == ARRAY {
            // SAFETY: the program's handle.
            let Some(array) = (unsafe { Array::find(self.array) }) else {
                return bad_handle();
            };
            return Ok(End {
                place: Place::Array(array),
                pitch: (0, 0),
                offset,
            });
        }
        let row = match self.pitch as u64 {
            0 if height * depth <= 1 || width == 0 => width,
            0 => width + self.x as u64,
            pitch => pitch,
        };
        if row < width + self.x as u64 && height * depth > 1 {
            return invalid();
        }
        let rows = match self.height as u64 {
            0 => height + self.y as u64,
            rows => rows,
        };
        let slice = row.saturating_mul(rows);
        let inner = offset[2]
            .wrapping_mul(slice)
            .wrapping_add(offset[1].wrapping_mul(row))
            .wrapping_add(offset[0]);
        let place = match self.kind {
            HOST if self.host == 0 => return invalid(),
            HOST => host_place(state, self.host.wrapping_add(inner)),
            DEVICE => device_place(state, self.device.wrapping_add(inner))?,
            UNIFIED => unified_place(state, self.device.wrapping_add(inner))?,
            _ => return invalid(),
        };
        Ok(End {
            place,
            pitch: (row, slice),
            offset: [0; 3],
        })
    }
}

impl Memcpy3d {
    /// The copy it describes.
    ///
    /// # Safety
    /// Its handles are the program's.
    pub(super) unsafe fn op(&self, state: &State) -> Answer<CopyOp> {
        let extent = (self.width as u64, self.height as u64, self.depth as u64);
        // SAFETY: our contract.
        let (src, dst) = unsafe { (self.src.end(state, extent)?, self.dst.end(state, extent)?) };
        Ok(CopyOp { src, dst, extent })
    }
}

impl Memcpy3d {
    /// The description of a copy, as queries want it.
    pub(super) fn of(op: &CopyOp) -> Self {
        let side = |end: &End| {
            let (kind, host, device, array) = match end.place {
                Place::Device(address) => (2, 0, address, std::ptr::null_mut()),
                Place::Pageable(address) => (1, address, 0, std::ptr::null_mut()),
                Place::Array(array) => (3, 0, 0, array.handle()),
            };
            let [x, y, z] = end.offset.map(|part| part as usize);
            let (row, slice) = end.pitch;
            Side3d {
                x,
                y,
                z,
                level: 0,
                kind,
                host,
                device,
                array,
                reserved: std::ptr::null_mut(),
                pitch: row as usize,
                height: slice.checked_div(row).unwrap_or(0) as usize,
            }
        };
        let (width, height, depth) = op.extent;
        Self {
            src: side(&op.src),
            dst: side(&op.dst),
            width: width as usize,
            height: height as usize,
            depth: depth as usize,
        }
    }
}

impl Memcpy2d {
    unsafe fn op(&self, state: &State) -> Answer<CopyOp> {
        let side = |x, y, kind, host, device, array, pitch| Side3d {
            x,
            y,
            z: 0,
            level: 0,
            kind,
            host,
            device,
            array,
            reserved: std::ptr::null_mut(),
            pitch,
            height: 0,
        };
        let copy = Memcpy3d {
            src: side(
                self.src_x,
                self.src_y,
                self.src_kind,
                self.src_host,
                self.src_device,
                self.src_array,
                self.src_pitch,
            ),
            dst: side(
                self.dst_x,
                self.dst_y,
                self.dst_kind,
                self.dst_host,
                self.dst_device,
                self.dst_array,
                self.dst_pitch,
            ),
            width: self.width,
            height: self.height,
            depth: 1,
        };
        // SAFETY: our caller's contract.
        unsafe { copy.op(state) }
    }
}

/// Copies one after the other: attributes of a batch are hints, or allow less order than this keeps.
///
/// # Safety
/// The lists hold `count` elements.
unsafe fn batch(
    target: Target,
    dst: *const u64,
    src: *const u64,
    bytes: *const usize,
    count: usize,
) -> Answer {
    if count == 0 || dst.is_null() || src.is_null() || bytes.is_null() {
        return invalid();
    }
    for index in 0..count {
        // SAFETY: our contract.
        let (dst, src, bytes) = unsafe {
            (
                dst.add(index).read(),
                src.add(index).read(),
                bytes.add(index).read(),
            )
        };
        unified(target, dst, src, bytes, false)?;
    }
    Ok(())
}

driver! {
    fn copy_batch<const PT>(
        dst: *const u64, src: *const u64, bytes: *const usize, count: usize,
        _attributes: *const c_void, _indices: *const usize, _attribute_count: usize, failed: *mut usize, stream: Handle,
    ) {
        let done = batch(resolve::<PT>(stream)?, dst, src, bytes, count);
        if done.is_err() {
            super::support::put_opt(failed, usize::MAX);
        }
        done
    }

    fn copy_batch_v2<const PT>(
        dst: *const u64, src: *const u64, bytes: *const usize, count: usize,
        _attributes: *const c_void, _indices: *const usize, _attribute_count: usize, stream: Handle,
    ) {
        batch(resolve::<PT>(stream)?, dst, src, bytes, count)
    }
}

stream_entries! {
    cuMemcpy3DPeer, cuMemcpy3DPeer_ptds = copy_3d;
    cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz = copy_3d_async;
    cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz = copy_batch;
    cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz = copy_batch_v2;
    cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds = copy_htod;
    cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz = copy_htod_async;
    cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds = copy_dtoh;
    cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz = copy_dtoh_async;
    cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds = copy_dtod;
    cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz = copy_dtod_async;
    cuMemcpy, cuMemcpy_ptds = copy_unified;
    cuMemcpyAsync, cuMemcpyAsync_ptsz = copy_unified_async;
    cuMemcpyPeer, cuMemcpyPeer_ptds = copy_peer;
    cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz = copy_peer_async;
    cuMemcpy2D_v2, cuMemcpy2D_v2_ptds = copy_2d;
    cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds = copy_2d;
    cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz = copy_2d_async;
    cuMemcpy3D_v2, cuMemcpy3D_v2_ptds = copy_3d;
    cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz = copy_3d_async;
    cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds = copy_htoa;
    cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz = copy_htoa_async;
    cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds = copy_atoh;
    cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz = copy_atoh_async;
    cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds = copy_dtoa;
    cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds = copy_atod;
    cuMemsetD8_v2, cuMemsetD8_v2_ptds = set_8;
    cuMemsetD16_v2, cuMemsetD16_v2_ptds = set_16;
    cuMemsetD32_v2, cuMemsetD32_v2_ptds = set_32;
    cuMemsetD8Async, cuMemsetD8Async_ptsz = set_8_async;
    cuMemsetD16Async, cuMemsetD16Async_ptsz = set_16_async;
    cuMemsetD32Async, cuMemsetD32Async_ptsz = set_32_async;
    cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds = set_2d_8;
    cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds = set_2d_16;
    cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds = set_2d_32;
    cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz = set_2d_8_async;
    cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz = set_2d_16_async;
    cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz = set_2d_32_async;
}
