//! Reads and writes what C programs point to.
//!
//! Null pointers, lengths that no memory has and texts that are not UTF-8 are refused. Whether a pointer leads to as
//! much memory as the program says cannot be known.

use std::ffi::{CStr, c_char};

use crate::status::{Failure, Result};

fn null(argument: &str) -> Failure {
    Failure::Argument(format!("{argument} is null"))
}

/// Refuses null pointers, pointers that are not aligned and lengths past the address space.
fn check<T>(argument: &str, pointer: *const T, count: usize) -> Result<()> {
    if pointer.is_null() {
        return Err(null(argument));
    }
    if !pointer.is_aligned() {
        let align = align_of::<T>();
        return Err(Failure::Argument(format!(
            "{argument} is not aligned to {align} bytes"
        )));
    }
    match count.checked_mul(size_of::<T>()) {
        Some(bytes) if bytes <= isize::MAX as usize => Ok(()),
        _ => Err(Failure::Argument(format!(
            "{argument} cannot have {count} elements"
        ))),
    }
}

/// The `count` values at a pointer, which may be null if there are none.
///
/// # Safety
/// A pointer that is not null leads to `count` values that nobody changes during `'a`.
pub(crate) unsafe fn slice<'a, T>(
    argument: &str,
    pointer: *const T,
    count: usize,
) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    check(argument, pointer, count)?;
    // SAFETY: the pointer is neither null nor unaligned and the length fits `isize`, checked above; the caller
    // promises the values and that they stay.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// The `count` bytes at a pointer, to be written.
///
/// # Safety
/// A pointer that is not null leads to `count` bytes that nobody else uses during `'a`.
pub(crate) unsafe fn bytes_mut<'a>(
    argument: &str,
    pointer: *mut u8,
    count: usize,
) -> Result<&'a mut [u8]> {
    if count == 0 {
        return Ok(&mut []);
    }
    check(argument, pointer, count)?;
    // SAFETY: the pointer is not null and the length fits `isize`, checked above; the caller promises the bytes for
    // this call alone. Any byte is a `u8`, whatever C has left there.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, count) })
}

/// A text.
///
/// # Safety
/// A pointer that is not null leads to a text with a NUL at its end that nobody changes during `'a`.
pub(crate) unsafe fn text<'a>(argument: &str, pointer: *const c_char) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(null(argument));
    }
    // SAFETY: the pointer is not null; the caller promises the NUL and that the text stays.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str()
        .map_err(|_| Failure::Argument(format!("{argument} is not UTF-8")))
}

/// A struct that begins with its own size, or the defaults for a null pointer.
///
/// # Safety
/// A pointer that is not null leads to a `usize`, and to a whole `T` where that number is the size of `T`.
pub(crate) unsafe fn options<T: Copy>(argument: &str, pointer: *const T, defaults: T) -> Result<T> {
    if pointer.is_null() {
        return Ok(defaults);
    }
    check(argument, pointer, 1)?;
    // SAFETY: the pointer is not null and as aligned as a `T`, which begins with a `usize`; the caller promises one.
    let size = unsafe { pointer.cast::<usize>().read() };
    if size != size_of::<T>() {
        return Err(Failure::Argument(format!(
            "struct_size of {argument} is {size}, this library's is {}",
            size_of::<T>()
        )));
    }
    // SAFETY: not null, aligned, and the size that the program states is the size of a `T`, all checked above.
    Ok(unsafe { pointer.read() })
}

/// Where a result goes.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Checks the pointer before the work is done.
    ///
    /// # Safety
    /// A pointer that is not null leads to memory for a `T` that nobody else uses until the result is there.
    pub(crate) unsafe fn new(argument: &str, pointer: *mut T) -> Result<Self> {
        check(argument, pointer, 1)?;
        Ok(Self(pointer))
    }

    /// Writes the result.
    pub(crate) fn set(self, value: T) {
        // SAFETY: `new` has checked that the pointer is neither null nor unaligned, and its caller has promised memory
        // for a `T`. What was there is a plain C value and needs no drop.
        unsafe { self.0.write(value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_pointers_are_refused() {
        let words = [0_u64; 2];
        let odd = words.as_ptr().wrapping_byte_add(1);
        // SAFETY: each is refused before it is followed.
        unsafe {
            assert!(slice::<u64>("a", std::ptr::null(), 1).is_err());
            assert!(slice::<u64>("a", odd, 1).is_err());
            assert!(slice("a", words.as_ptr(), usize::MAX).is_err());
            assert!(bytes_mut("a", std::ptr::null_mut(), 1).is_err());
            assert!(text("a", std::ptr::null()).is_err());
            assert!(Out::<u64>::new("a", std::ptr::null_mut()).is_err());
        }
    }

    #[test]
    fn nothing_may_be_at_null() {
        // SAFETY: no value is read.
        let none = unsafe { slice::<u64>("a", std::ptr::null(), 0) };
        assert!(none.is_ok_and(<[u64]>::is_empty));
    }
}
