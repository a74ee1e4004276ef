//! The interpreter's kernels as native code: one thread after another, and in groups.

mod common;

mod one_lane {
    fn device() -> Device {
        crate::common::compiled(PTX, 1)
    }

    include!("../../ptx-interp/tests/kernels/body.rs");
}

mod four_lanes {
    fn device() -> Device {
        crate::common::compiled(PTX, 4)
    }

    include!("../../ptx-interp/tests/kernels/body.rs");
}

mod sixteen_lanes {
    fn device() -> Device {
        crate::common::compiled(PTX, 16)
    }

    include!("../../ptx-interp/tests/kernels/body.rs");
}
