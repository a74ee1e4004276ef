//! Stopping a compilation whose launch was cancelled.
//!
//! Passes call [`tick`] for each instruction or block, and [`poll`] before a long step. Where the launch's
//! [`Interrupt`] says yes, `poll` unwinds to [`scope`]: no pass needs a result of its own for it, nothing that was
//! half done is kept, and [`crate::slot::Slot`] stays empty. Cranelift's own passes cannot be stopped.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use mica_kernel::Interrupt;

/// Instructions or blocks between two questions: a few microseconds to a few hundred.
const TICKS: u32 = 1024;

type Check = dyn Fn() -> bool;

thread_local! {
    static CHECK: Cell<Option<*const Check>> = const { Cell::new(None) };
    static COUNT: Cell<u32> = const { Cell::new(0) };
}

/// What [`poll`] unwinds with, and what [`scope`] gives then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cancelled;

/// Puts back what the thread asked before.
struct Restore(Option<*const Check>);

impl Drop for Restore {
    fn drop(&mut self) {
        CHECK.set(self.0);
    }
}

/// Runs `work`, which [`poll`] ends once `interrupt` says so.
pub(crate) fn scope<T>(interrupt: Interrupt<'_>, work: impl FnOnce() -> T) -> Result<T, Cancelled> {
    // SAFETY: only the lifetime changes. The pointer is read by `is_raised` alone, on this thread, and `restore`
    // takes it away before this function ends, while `interrupt` still borrows the function behind it.
    let check = (interrupt.check())
        .map(|check| unsafe { std::mem::transmute::<&dyn Fn() -> bool, *const Check>(check) });
    let restore = Restore(CHECK.replace(check));
    // What `work` was making is dropped by the unwinding; slots only take what is whole.
    let result = catch_unwind(AssertUnwindSafe(work));
    drop(restore);
    result.map_err(|payload| match payload.is::<Cancelled>() {
        true => Cancelled,
        false => resume_unwind(payload),
    })
}

/// Whether the launch that this thread compiles for was cancelled.
pub(crate) fn is_raised() -> bool {
    // SAFETY: `scope` keeps the function behind it borrowed while it is set.
    CHECK.get().is_some_and(|check| unsafe { (*check)() })
}

/// Unwinds to [`scope`] if the launch was cancelled.
pub(crate) fn poll() {
    if is_raised() {
        // No panic of ours: the hook has nothing to print.
        resume_unwind(Box::new(Cancelled));
    }
}

/// Counts an instruction or a block of a pass, and polls every [`TICKS`] of them.
pub(crate) fn tick() {
    let count = COUNT.get() + 1;
    COUNT.set(count % TICKS);
    if count == TICKS {
        poll();
    }
}

/// Lets an unwinding of [`poll`] go on; gives back any other.
pub(crate) fn pass_on(payload: Box<dyn Any + Send>) -> Box<dyn Any + Send> {
    match payload.is::<Cancelled>() {
        true => resume_unwind(payload),
        false => payload,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_ends_where_its_check_says_so_and_leaves_nothing_behind() {
        let asked = Cell::new(0);
        let check = || {
            asked.set(asked.get() + 1);
            asked.get() == 3
        };
        let steps = Cell::new(0);
        let ended = scope(Interrupt::new(&check), || {
            for _ in 0..10 * TICKS {
                steps.set(steps.get() + 1);
                tick();
            }
        });
        assert_eq!(ended, Err(Cancelled));
        assert!(steps.get() <= 3 * TICKS, "{}", steps.get());
        assert!(!is_raised());
        poll();
    }

    #[test]
    fn an_inner_scope_without_a_check_is_not_stopped() {
        let outer = scope(Interrupt::new(&|| true), || {
            let inner = scope(Interrupt::default(), || {
                poll();
                7
            });
            assert_eq!(inner, Ok(7));
            assert!(is_raised());
        });
        assert_eq!(outer, Ok(()));
    }
}
