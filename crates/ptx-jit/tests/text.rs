//! The interpreter's kernels written by hand, as native code: one thread after another, and in groups.

mod common;
#[path = "../../ptx-interp/tests/text/kernel.rs"]
mod text;

mod one_lane {
    fn device(text: &str) -> Device {
        crate::common::compiled(text, 1)
    }

    include!("../../ptx-interp/tests/text/body.rs");
}

mod four_lanes {
    fn device(text: &str) -> Device {
        crate::common::compiled(text, 4)
    }

    include!("../../ptx-interp/tests/text/body.rs");
}

mod sixteen_lanes {
    fn device(text: &str) -> Device {
        crate::common::compiled(text, 16)
    }

    include!("../../ptx-interp/tests/text/body.rs");
}
