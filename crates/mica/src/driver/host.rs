//! Callbacks of streams, and copies to the host that nobody waits for.

use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use super::functions::{Raw, check};
use super::{Driven, Functions};
use crate::Result;
use crate::backend::{Backend, PendingBytes};

/// Pinned host memory whose copies are over. Callbacks may not call the driver, so a later call frees it.
pub(super) type Spent = Vec<usize>;

/// Called with the driver's code of the stream.
type Told = Box<dyn FnOnce(c_uint) + Send>;

unsafe extern "C" fn tell(_: Raw, code: c_uint, told: *mut c_void) {
    // SAFETY: the driver calls once, with the pointer that `call_back` made from a box.
    let told = unsafe { Box::from_raw(told.cast::<Told>()) };
    // A panic must not unwind into the driver.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| told(code)));
}

fn lock(spent: &Mutex<Spent>) -> MutexGuard<'_, Spent> {
    spent.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driven {
    pub(super) fn call_back(&self, stream: u64, told: Told) -> Result<()> {
        let told = Box::into_raw(Box::new(told));
        // SAFETY: `tell` takes the box back; the driver calls it also when the context has failed.
        let called = self.call("cuStreamAddCallback", |f| unsafe {
            (f.stream_callback)(stream as Raw, tell, told.cast(), 0)
        });
        if called.is_err() {
            // SAFETY: the driver has refused the callback, so the box is still ours.
            drop(unsafe { Box::from_raw(told) });
        }
        called
    }

    pub(super) fn free_spent(&self) {
        for memory in std::mem::take(&mut *lock(&self.spent)) {
            let free = |f: &Functions| {
                // SAFETY: allocated by `read_to_host`, and the stream has passed the copy into it.
                unsafe { (f.host_free)(memory as *mut c_void) }
            };
            let _ = self.call("cuMemFreeHost", free);
        }
    }

    pub(super) fn read_to_host(
        &self,
        stream: u64,
        address: u64,
        bytes: u64,
    ) -> Result<PendingBytes> {
        self.free_spent();
        let (mut memory, len) = (std::ptr::null_mut::<c_void>(), bytes as usize);
        // SAFETY: writes one address.
        self.call("cuMemAllocHost", |f| unsafe {
            (f.host_alloc)(&mut memory, len)
        })?;
        let place = memory as usize;
        // SAFETY: the memory has the length, and is freed after the stream has passed the copy.
        let copied = self.call("cuMemcpyDtoHAsync", |f| unsafe {
            (f.copy_to_host)(memory, address, len, stream as Raw)
        });
        let (sender, receiver) = mpsc::channel();
        let spent = Arc::clone(&self.spent);
        let deliver = move |code| {
            let result = check("a copy to the host", code).map(|()| {
                // SAFETY: pinned memory of this length; the stream has passed the copy into it.
                let bytes = unsafe { std::slice::from_raw_parts(place as *const u8, len) };
                bytes.to_vec()
            });
            let _ = sender.send(result);
            lock(&spent).push(place);
        };
        if let Err(error) = copied.and_then(|()| self.call_back(stream, Box::new(deliver))) {
            // The copy may be under way: its target goes after the stream.
            if self.stream_synchronize(stream).is_ok() {
                lock(&self.spent).push(place);
            }
            return Err(error);
        }
        Ok(receiver)
    }
}
