//! Entry points of copies. The descriptions of boxes they take are in [`super::boxes`].

use std::ffi::c_void;

use mica_cuda_abi::{Handle, MemLocation};

use super::boxes::{Memcpy2d, Memcpy3d};
use super::{
    CopyOp, End, Place, Target, device_place, device_run, host_place, host_run, run, run_checked,
    unified_run,
};
use crate::isolated::memory::arrays::Array;
use crate::isolated::streams::resolve;
use crate::isolated::support::{Answer, bad_handle, driver, get, invalid, stream_entries};

/// Copies a run of bytes, which both places have.
fn linear(target: Target, dst: Place, src: Place, bytes: u64, wait: bool) -> Answer {
    let op = CopyOp {
        src: End::linear(src, bytes),
        dst: End::linear(dst, bytes),
        extent: (bytes, 1, 1),
    };
    run_checked(target, op, wait)
}

fn to_device(target: Target, dst: u64, src: u64, bytes: usize, wait: bool) -> Answer {
    if bytes == 0 {
        return Ok(());
    }
    if src == 0 {
        return invalid();
    }
    let (state, bytes) = (target.0, bytes as u64);
    let (dst, src) = (device_run(state, dst, bytes)?, host_run(state, src, bytes)?);
    linear(target, dst, src, bytes, wait)
}

fn to_host(target: Target, dst: u64, src: u64, bytes: usize, wait: bool) -> Answer {
    if bytes == 0 {
        return Ok(());
    }
    if dst == 0 {
        return invalid();
    }
    let (state, bytes) = (target.0, bytes as u64);
    let (dst, src) = (host_run(state, dst, bytes)?, device_run(state, src, bytes)?);
    linear(target, dst, src, bytes, wait)
}

fn on_device(target: Target, dst: u64, src: u64, bytes: usize, wait: bool) -> Answer {
    if bytes == 0 {
        return Ok(());
    }
    let (state, bytes) = (target.0, bytes as u64);
    let (dst, src) = (
        device_run(state, dst, bytes)?,
        device_run(state, src, bytes)?,
    );
    linear(target, dst, src, bytes, wait)
}

fn unified(target: Target, dst: u64, src: u64, bytes: usize, wait: bool) -> Answer {
    if bytes == 0 {
        return Ok(());
    }
    let (state, bytes) = (target.0, bytes as u64);
    let (dst, src) = (
        unified_run(state, dst, bytes)?,
        unified_run(state, src, bytes)?,
    );
    linear(target, dst, src, bytes, wait)
}

unsafe fn with_array(
    target: Target,
    array: Handle,
    offset: usize,
    bytes: usize,
    build: impl FnOnce(End) -> Answer<CopyOp>,
    wait: bool,
) -> Answer {
    // Nothing to copy: neither end is looked at.
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: the program's handle.
    let Some(array) = (unsafe { Array::find(array) }) else {
        return bad_handle();
    };
    // One-dimensional copies run on from row to row.
    let row = array.row_bytes();
    let (y, x) = (offset as u64 / row, offset as u64 % row);
    if x + bytes as u64 > row {
        return crate::isolated::support::not_supported(
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
        let build = |dst| {
            let src = End::linear(device_place(target.0, src)?, bytes as u64);
            Ok(CopyOp { src, dst, extent: (bytes as u64, 1, 1) })
        };
        with_array(target, dst, offset, bytes, build, true)
    }
    fn copy_atod<const PT>(dst: u64, src: Handle, offset: usize, bytes: usize) {
        let target = resolve::<PT>(std::ptr::null_mut())?;
        let build = |src| {
            let dst = End::linear(device_place(target.0, dst)?, bytes as u64);
            Ok(CopyOp { src, dst, extent: (bytes as u64, 1, 1) })
        };
        with_array(target, src, offset, bytes, build, true)
    }
}

/// `CUmemcpyAttributes`.
#[repr(C)]
#[derive(Clone, Copy)]
struct CopyAttributes {
    source_order: u32,
    _hints: [MemLocation; 2],
    _flags: u32,
}

impl CopyAttributes {
    /// Whether the source is read before the call returns. Else it is read in the order of the stream, which is as good where
    /// any order will do; hints of places change nothing.
    fn reads_source_at_once(self) -> Answer<bool> {
        match self.source_order {
            1 | 3 => Ok(false),
            2 => Ok(true),
            _ => invalid(),
        }
    }
}

/// Copies one after the other; all wait if one of the attributes wants its source read at once.
///
/// # Safety
/// The lists hold `count` and `attribute_count` elements.
unsafe fn batch(
    target: Target,
    (dst, src): (*const u64, *const u64),
    bytes: *const usize,
    count: usize,
    (attributes, attribute_count): (*const CopyAttributes, usize),
) -> Answer {
    if count == 0 || dst.is_null() || src.is_null() || bytes.is_null() {
        return invalid();
    }
    let mut waits = false;
    if !attributes.is_null() {
        for index in 0..attribute_count {
            // SAFETY: our contract.
            waits |= unsafe { attributes.add(index).read() }.reads_source_at_once()?;
        }
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
        unified(target, dst, src, bytes, waits)?;
    }
    Ok(())
}

driver! {
    fn copy_batch<const PT>(
        dst: *const u64, src: *const u64, bytes: *const usize, count: usize,
        attributes: *const CopyAttributes, _indices: *const usize, attribute_count: usize, failed: *mut usize, stream: Handle,
    ) {
        let done = batch(resolve::<PT>(stream)?, (dst, src), bytes, count, (attributes, attribute_count));
        if done.is_err() {
            crate::isolated::support::put_opt(failed, usize::MAX);
        }
        done
    }

    fn copy_batch_v2<const PT>(
        dst: *const u64, src: *const u64, bytes: *const usize, count: usize,
        attributes: *const CopyAttributes, _indices: *const usize, attribute_count: usize, stream: Handle,
    ) {
        batch(resolve::<PT>(stream)?, (dst, src), bytes, count, (attributes, attribute_count))
    }

    fn copy_with_attributes<const PT>(dst: u64, src: u64, bytes: usize, attributes: *const CopyAttributes, stream: Handle) {
        let target = resolve::<PT>(stream)?;
        unified(target, dst, src, bytes, get(attributes)?.reads_source_at_once()?)
    }
}

stream_entries! {
    cuMemcpy3DPeer, cuMemcpy3DPeer_ptds = copy_3d;
    cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz = copy_3d_async;
    cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz = copy_batch;
    cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz = copy_batch_v2;
    cuMemcpyWithAttributesAsync, cuMemcpyWithAttributesAsync_ptsz = copy_with_attributes;
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
}
