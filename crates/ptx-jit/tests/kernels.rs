//! The interpreter's kernels as native code: one thread after another, and in groups.

mod common;

mod one_lane {
    const LANES: u32 = 1;
    include!("kernels/body.rs");
}

mod four_lanes {
    const LANES: u32 = 4;
    include!("kernels/body.rs");
}

mod sixteen_lanes {
    const LANES: u32 = 16;
    include!("kernels/body.rs");
}
