//! Names of users.

use std::ffi::{CStr, CString};

/// The name of a user, or the number where it has none.
pub fn user_name(uid: u32) -> String {
    look_up(uid).unwrap_or_else(|| uid.to_string())
}

fn look_up(uid: u32) -> Option<String> {
    // SAFETY: `passwd` is numbers and pointers that may be null.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // Longer entries than this are of no user with a name to show.
    let mut text = vec![0; 16 << 10];
    // SAFETY: writes within the buffer of the given length, and to two values of this frame.
    let failed = unsafe {
        libc::getpwuid_r(
            uid,
            &raw mut entry,
            text.as_mut_ptr(),
            text.len(),
            &raw mut found,
        )
    };
    if failed != 0 || found.is_null() || entry.pw_name.is_null() {
        return None;
    }
    // SAFETY: an entry that was found has a name that ends with a zero, in the buffer, which lives on.
    let name = unsafe { CStr::from_ptr(entry.pw_name) };
    name.to_str().ok().map(str::to_owned)
}

/// The number of a user, by name or by the number itself; `None` if there is no such user.
pub fn user_number(name: &str) -> Option<u32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    let name = CString::new(name).ok()?;
    // SAFETY: `passwd` is numbers and pointers that may be null.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    let mut text = vec![0; 16 << 10];
    // SAFETY: a text that ends with a zero; writes within the buffer of the given length, and to two values of this frame.
    let failed = unsafe {
        libc::getpwnam_r(
            name.as_ptr(),
            &raw mut entry,
            text.as_mut_ptr(),
            text.len(),
            &raw mut found,
        )
    };
    (failed == 0 && !found.is_null()).then_some(entry.pw_uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_a_name_and_nobody_else_needs_one() {
        assert_eq!(user_name(0), "root");
        assert_eq!(user_name(4_000_000_123), "4000000123");
    }

    #[test]
    fn users_are_found_by_name_and_number() {
        assert_eq!(user_number("root"), Some(0));
        assert_eq!(user_number("1234"), Some(1234));
        assert_eq!(user_number("no such user"), None);
    }
}
