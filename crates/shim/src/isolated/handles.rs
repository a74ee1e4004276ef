//! What the program's handles point at.
//!
//! A handle is the address of an object whose first word names its kind. Objects are never given
//! back to the allocator, so a handle that was destroyed is recognized and not followed; streams and
//! events, of which programs make many, are used again.

use std::ops::Deref;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use mica_cuda_abi::Handle;

use crate::isolated::support::lock;

/// A kind of object.
pub(crate) trait Kind: 'static {
    /// First word of its live objects.
    const MAGIC: u64;
}

/// An object behind a handle.
#[repr(C, align(16))]
pub(crate) struct Object<T> {
    magic: AtomicU64,
    value: T,
}

impl<T: Kind> Object<T> {
    /// A new object that lives as long as the process.
    pub(crate) fn leak(value: T) -> &'static Self {
        Box::leak(Box::new(Self {
            magic: AtomicU64::new(T::MAGIC),
            value,
        }))
    }

    /// The live object behind a handle.
    ///
    /// # Safety
    /// The handle is null, small, or an address that can be read.
    #[inline]
    pub(crate) unsafe fn find(handle: Handle) -> Option<&'static Self> {
        let address = handle as usize;
        if address < 4096 || !address.is_multiple_of(16) {
            return None;
        }
        // SAFETY: our contract; the word is an integer whatever it is.
        let magic = unsafe { &*handle.cast::<AtomicU64>() };
        if magic.load(Acquire) != T::MAGIC {
            return None;
        }
        // SAFETY: the first word says that it is one of ours, and those are never freed.
        Some(unsafe { &*handle.cast::<Self>() })
    }

    /// Its handle.
    #[inline]
    pub(crate) fn handle(&'static self) -> Handle {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Ends its life: the handle is not found any more.
    pub(crate) fn retire(&self) {
        self.magic.store(0, Release);
    }
}

impl<T> Deref for Object<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

/// Objects that are used again after their end.
pub(crate) struct Pool<T: 'static> {
    free: Mutex<Vec<&'static Object<T>>>,
}

impl<T: Kind> Pool<T> {
    pub(crate) const fn new() -> Self {
        Self {
            free: Mutex::new(Vec::new()),
        }
    }

    /// An object that `set` has filled in.
    pub(crate) fn take(
        &self,
        make: impl FnOnce() -> T,
        set: impl FnOnce(&T),
    ) -> &'static Object<T> {
        let used = lock(&self.free).pop();
        let object = used.unwrap_or_else(|| {
            let object = Object::leak(make());
            object.retire();
            object
        });
        set(object);
        object.magic.store(T::MAGIC, Release);
        object
    }

    /// Ends an object; says whether it was alive.
    pub(crate) fn give(&self, object: &'static Object<T>) -> bool {
        let alive = object
            .magic
            .compare_exchange(T::MAGIC, 0, Release, Acquire)
            .is_ok();
        if alive {
            lock(&self.free).push(object);
        }
        alive
    }
}
