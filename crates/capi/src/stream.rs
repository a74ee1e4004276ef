//! Streams: work in order.

use std::sync::Arc;

use crate::handles::{get, insert, mica_stream, mica_vgpu, optional, remove};
use crate::pointers::Out;
use crate::status::{Result, call, mica_status};
use crate::vgpu::{Vgpu, same};

/// What a stream handle stands for.
pub(crate) struct Stream {
    vgpu: Arc<Vgpu>,
    stream: mica::Stream,
}

/// The stream behind a handle, or the default one for null.
pub(crate) fn stream_of(vgpu: &Arc<Vgpu>, handle: *const mica_stream) -> Result<mica::Stream> {
    match optional("stream", handle)? {
        None => Ok(vgpu.vgpu.default_stream()),
        Some(stream) => {
            same("stream", vgpu, &stream.vgpu)?;
            Ok(stream.stream.clone())
        }
    }
}

/// Makes a stream that is ordered against the default one. Functions that take a stream use the default one for null.
///
/// # Safety
/// `stream` is null or leads to room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_stream_create(
    vgpu: *mut mica_vgpu,
    stream: *mut *mut mica_stream,
) -> mica_status {
    call(|| {
        let vgpu = get("vgpu", vgpu)?;
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new("stream", stream) }?;
        let stream = vgpu.vgpu.stream()?;
        out.set(insert(Stream { vgpu, stream }));
        Ok(())
    })
}

/// Waits for all work of the stream, and reports what went wrong in it.
#[unsafe(no_mangle)]
pub extern "C" fn mica_stream_synchronize(stream: *mut mica_stream) -> mica_status {
    call(|| Ok(get("stream", stream)?.stream.synchronize()?))
}

/// Frees the stream; its work is finished first.
#[unsafe(no_mangle)]
pub extern "C" fn mica_stream_free(stream: *mut mica_stream) -> mica_status {
    call(|| remove("stream", stream))
}
