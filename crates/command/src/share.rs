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

/// Below this the host's other programs have so much of its processors that figures need a word.
const MOST_OF_THEM_PERCENT: f64 = 85.0;

/// Percent of the time of its turns in which the software GPU has processors, where that is notably less than all.
pub fn short_of_processors(vgpu: &VgpuInfo) -> Option<f64> {
    vgpu.processors_percent
        .filter(|percent| *percent < MOST_OF_THEM_PERCENT)
}

/// What is said below figures of virtual GPUs whose host gives its processors to other programs.
pub fn busy_host_words(percent: f64) -> String {
    format!(
        "this machine's processors are busy with other programs: the software GPU has them {percent:.0} % of the time, and a share is a part of that"
    )
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
