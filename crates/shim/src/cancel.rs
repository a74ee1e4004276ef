//! Keeps `pthread_cancel` out of this library.
//!
//! The C library ends a cancelled thread inside functions that read and write files by unwinding it, which
//! would pass through code that holds locks and catches panics. Futexes and sockets are used by plain system
//! calls, where nobody is cancelled.

/// Runs something that uses the C library's files; a thread that is cancelled meanwhile goes on.
pub(crate) fn held_off<T>(run: impl FnOnce() -> T) -> T {
    const DISABLE: libc::c_int = 1;
    unsafe extern "C" {
        safe fn pthread_setcancelstate(state: libc::c_int, old: &mut libc::c_int) -> libc::c_int;
    }
    let (mut before, mut ignored) = (0, 0);
    let changed = pthread_setcancelstate(DISABLE, &mut before) == 0;
    let result = run();
    if changed {
        pthread_setcancelstate(before, &mut ignored);
    }
    result
}
