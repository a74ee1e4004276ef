//! Passes calls on to the device behind.

/// Defines methods that pass their arguments on; those marked `door` wait until memory is here first. Those marked `queue`
/// put something into a stream, and those marked `wait` wait for what is in it: both end only after the memory is back, so
/// both say that they want it.
macro_rules! forward {
    () => {};
    (door fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty; $($rest:tt)*) => {
        fn $name(&self, $($argument: $type),*) -> $answer {
            let _here = self.door.pass(&self.over)?;
            self.inner.$name($($argument),*)
        }
        forward! { $($rest)* }
    };
    (queue fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty; $($rest:tt)*) => {
        fn $name(&self, $($argument: $type),*) -> $answer {
            let queued = self.inner.$name($($argument),*);
            // What was queued before the door was closed is seen by whoever closed it.
            self.want_for_work();
            queued
        }
        forward! { $($rest)* }
    };
    (wait fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty; $($rest:tt)*) => {
        fn $name(&self, $($argument: $type),*) -> $answer {
            self.want_for_work();
            self.inner.$name($($argument),*)
        }
        forward! { $($rest)* }
    };
    (fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty; $($rest:tt)*) => {
        fn $name(&self, $($argument: $type),*) -> $answer {
            self.inner.$name($($argument),*)
        }
        forward! { $($rest)* }
    };
}
pub(crate) use forward;
