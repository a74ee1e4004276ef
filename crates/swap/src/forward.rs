//! Passes calls on to the device behind.

/// Defines methods that pass their arguments on; those marked `door` wait until memory is here first.
macro_rules! forward {
    () => {};
    (door fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty; $($rest:tt)*) => {
        fn $name(&self, $($argument: $type),*) -> $answer {
            let _here = self.door.pass(&self.over)?;
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
