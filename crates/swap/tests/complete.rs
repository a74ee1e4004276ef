//! A method of the device that is not passed on would answer with its default, and nobody would notice.

use std::collections::BTreeSet;

fn methods(text: &str) -> BTreeSet<&str> {
    let after = text.split("fn ").skip(1);
    after
        .map(|rest| rest.split('(').next().unwrap_or_default())
        .collect()
}

#[test]
fn every_method_of_a_device_is_passed_on() {
    let device = include_str!("../../gpu/src/lib.rs");
    let (_, device) = device.split_once("pub trait Gpu").unwrap();
    let own = include_str!("../src/gpu.rs");
    let (_, own) = own.split_once("impl Gpu for SwapGpu").unwrap();
    // Windows are closed for memory that can leave, and the last three are asked of the device behind alone.
    let not_passed = [
        "take_window_file",
        "memory_window",
        "place_windows",
        "frame_save",
        "frame_load",
        "frame_copied",
    ];
    let missing: Vec<&str> = methods(device).difference(&methods(own)).copied().collect();
    let missing: Vec<&str> = missing
        .into_iter()
        .filter(|name| !not_passed.contains(name))
        .collect();
    assert_eq!(missing, [""; 0]);
}
