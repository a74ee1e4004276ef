//! A share as listings show it.

use mica_control::api::VgpuInfo;

/// A share, and what it is worth: `30 %`, `30 % cap`, `70 % not reserved`.
pub fn share_words(vgpu: &VgpuInfo) -> String {
    let share = vgpu.share_percent;
    match (vgpu.share_reserved, vgpu.cap) {
        // It changes with every virtual GPU that comes or goes: hundredths say nothing.
        (false, _) => format!("{:.0} % not reserved", share.as_f64()),
        (true, true) => format!("{share} % cap"),
        (true, false) => format!("{share} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_that_nobody_asked_for_is_marked() {
        let mut vgpu = VgpuInfo {
            share_percent: 66.into(),
            ..VgpuInfo::default()
        };
        assert_eq!(share_words(&vgpu), "66 % not reserved");
        vgpu.share_reserved = true;
        assert_eq!(share_words(&vgpu), "66 %");
        vgpu.cap = true;
        assert_eq!(share_words(&vgpu), "66 % cap");
    }
}
