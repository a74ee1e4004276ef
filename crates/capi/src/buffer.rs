//! Memory of a virtual GPU.

use std::ffi::c_void;
use std::sync::Arc;

use mica::DeviceBuffer;

use crate::handles::{get, insert, mica_buffer, mica_stream, mica_vgpu, remove};
use crate::pointers::{Out, bytes_mut, slice};
use crate::status::{Failure, Result, call, mica_status};
use crate::stream::stream_of;
use crate::vgpu::{Vgpu, same};

/// What a buffer handle stands for.
pub(crate) struct Buffer {
    vgpu: Arc<Vgpu>,
    memory: DeviceBuffer<u8>,
}

impl Buffer {
    /// The address of a range that lies in the buffer.
    fn range(&self, name: &str, offset: u64, bytes: usize) -> Result<u64> {
        let size = self.memory.size_bytes();
        match offset.checked_add(bytes as u64).filter(|end| *end <= size) {
            Some(_) => Ok(self.memory.address() + offset),
            None => Err(Failure::Argument(format!(
                "{bytes} bytes at {offset} are not in {name}, which has {size}"
            ))),
        }
    }
}

/// Allocates memory, all zero. It counts against the limit of the virtual GPU.
///
/// # Safety
/// `buffer` is null or leads to room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_buffer_alloc(
    vgpu: *mut mica_vgpu,
    bytes: usize,
    buffer: *mut *mut mica_buffer,
) -> mica_status {
    call(|| {
        let vgpu = get("vgpu", vgpu)?;
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new("buffer", buffer) }?;
        if bytes == 0 {
            return Err(Failure::Argument("bytes is 0".into()));
        }
        let memory = vgpu.vgpu.alloc(bytes)?;
        out.set(insert(Buffer { vgpu, memory }));
        Ok(())
    })
}

/// Frees memory. Kernels that still use it may fault, as after `cudaFree`.
#[unsafe(no_mangle)]
pub extern "C" fn mica_buffer_free(buffer: *mut mica_buffer) -> mica_status {
    call(|| remove("buffer", buffer))
}

/// The address that kernels use.
///
/// # Safety
/// `address` is null or leads to room for the number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_buffer_address(
    buffer: *mut mica_buffer,
    address: *mut u64,
) -> mica_status {
    call(|| {
        let buffer = get("buffer", buffer)?;
        // SAFETY: the caller's promise.
        unsafe { Out::new("address", address) }?.set(buffer.memory.address());
        Ok(())
    })
}

/// Copies bytes into a buffer in the order of a stream (null: the default one). `data` may be changed on return.
///
/// # Safety
/// `data` is null or leads to so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_buffer_write(
    buffer: *mut mica_buffer,
    offset: u64,
    data: *const c_void,
    bytes: usize,
    stream: *mut mica_stream,
) -> mica_status {
    call(|| {
        let buffer = get("buffer", buffer)?;
        let stream = stream_of(&buffer.vgpu, stream)?;
        let address = buffer.range("buffer", offset, bytes)?;
        // SAFETY: the caller's promise.
        let data = unsafe { slice("data", data.cast::<u8>(), bytes) }?;
        match data.is_empty() {
            true => Ok(()),
            false => Ok(buffer.vgpu.vgpu.write_bytes(&stream, address, data)?),
        }
    })
}

/// Copies bytes out of a buffer, after earlier work of a stream (null: the default one). Returns when they are there.
///
/// # Safety
/// `data` is null or leads to room for so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_buffer_read(
    buffer: *mut mica_buffer,
    offset: u64,
    data: *mut c_void,
    bytes: usize,
    stream: *mut mica_stream,
) -> mica_status {
    call(|| {
        let buffer = get("buffer", buffer)?;
        let stream = stream_of(&buffer.vgpu, stream)?;
        let address = buffer.range("buffer", offset, bytes)?;
        // SAFETY: the caller's promise.
        let data = unsafe { bytes_mut("data", data.cast(), bytes) }?;
        match data.is_empty() {
            true => Ok(()),
            false => Ok(buffer.vgpu.vgpu.read_bytes(&stream, address, data)?),
        }
    })
}

/// Copies bytes from one buffer to another of the same virtual GPU, in the order of a stream (null: the default one).
#[unsafe(no_mangle)]
pub extern "C" fn mica_buffer_copy(
    to: *mut mica_buffer,
    to_offset: u64,
    from: *mut mica_buffer,
    from_offset: u64,
    bytes: usize,
    stream: *mut mica_stream,
) -> mica_status {
    call(|| {
        let (to, from) = (get("to", to)?, get("from", from)?);
        same("from", &to.vgpu, &from.vgpu)?;
        let stream = stream_of(&to.vgpu, stream)?;
        let target = to.range("to", to_offset, bytes)?;
        let source = from.range("from", from_offset, bytes)?;
        let bytes = bytes as u64;
        match bytes {
            0 => Ok(()),
            _ => Ok(to.vgpu.vgpu.copy_bytes(&stream, target, source, bytes)?),
        }
    })
}

/// Sets every byte of a buffer, in the order of a stream (null: the default one).
#[unsafe(no_mangle)]
pub extern "C" fn mica_buffer_fill(
    buffer: *mut mica_buffer,
    value: u8,
    stream: *mut mica_stream,
) -> mica_status {
    call(|| {
        let buffer = get("buffer", buffer)?;
        let stream = stream_of(&buffer.vgpu, stream)?;
        Ok(stream.fill_bytes(&buffer.memory, value)?)
    })
}
