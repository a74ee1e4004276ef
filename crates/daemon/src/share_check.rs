//! Whether a virtual GPU got its share, judged by the seconds in which it had to share.
//!
//! A share is a part of what the GPU had to give. On a busy host the software GPU has less than all processors: 30 % of
//! the 60 % that were left is a kept promise. So a second is judged by the ratio of what a tenant had to what all tenants
//! had together.

use mica_control::api::{Percent, Verdict};

/// A GPU that is busy for this part of the time has none left to give away.
const FULL_PERCENT: f32 = 90.0;
/// Below this a tenant did not use the GPU in a second.
const IDLE_PERCENT: f32 = 1.0;
/// Part of the others' time that a tenant with work all the time waits at the gate, at least.
const WAITED: f32 = 0.8;
/// Seconds that are needed for a verdict.
const ENOUGH_SECONDS: usize = 5;
/// Points that a cap may be exceeded by, and that a share may fall short by.
const CAP_POINTS: f32 = 3.0;
const SHARE_POINTS: f32 = 5.0;

/// One second of a tenant among others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Second {
    /// Percent of the GPU's time that it had.
    pub(crate) own_percent: f32,
    /// What the others on its GPU had together.
    pub(crate) others_percent: f32,
    /// Part of the second that it waited at the gate, in percent, summed over threads.
    pub(crate) waited_percent: f32,
}

impl Second {
    fn available_percent(&self) -> f32 {
        self.own_percent + self.others_percent
    }

    /// Its part of the GPU time that all tenants had.
    fn ratio_percent(&self) -> f32 {
        100.0 * self.own_percent / self.available_percent()
    }

    /// Whether it and others wanted more than there was.
    fn is_contended(&self) -> bool {
        let used = self.own_percent >= IDLE_PERCENT && self.others_percent >= IDLE_PERCENT;
        let waited = || self.waited_percent >= WAITED * (100.0 - self.ratio_percent());
        used && (self.available_percent() >= FULL_PERCENT || waited())
    }
}

/// What the seconds show.
#[derive(Debug, PartialEq)]
pub(crate) struct Finding {
    pub(crate) verdict: Verdict,
    /// Percent of the GPU over all seconds.
    pub(crate) mean_percent: f32,
    pub(crate) contended: Option<Contended>,
}

/// The seconds in which the tenant had to share.
#[derive(Debug, PartialEq)]
pub(crate) struct Contended {
    pub(crate) seconds: usize,
    /// Its part of the GPU time that was available.
    pub(crate) ratio_percent: f32,
    /// What was available.
    pub(crate) available_percent: f32,
}

/// Judges a share by what was measured.
pub(crate) fn judge(asked: Percent, cap: bool, seconds: &[Second]) -> Finding {
    let asked = asked.as_f64() as f32;
    let mean_percent = mean(seconds.iter().map(|second| second.own_percent));
    let shared: Vec<&Second> = seconds.iter().filter(|s| s.is_contended()).collect();
    let contended = (!shared.is_empty()).then(|| Contended {
        seconds: shared.len(),
        ratio_percent: mean(shared.iter().map(|second| second.ratio_percent())),
        available_percent: mean(shared.iter().map(|second| second.available_percent())),
    });
    let fell_short = |found: &Contended| {
        found.seconds >= ENOUGH_SECONDS && found.ratio_percent < asked - SHARE_POINTS
    };
    let verdict = if cap && mean_percent > asked + CAP_POINTS {
        Verdict::Failed
    } else if contended.as_ref().is_some_and(fell_short) {
        // Not a failure by itself: it may not have had enough work.
        Verdict::Warning
    } else {
        Verdict::Ok
    };
    Finding {
        verdict,
        mean_percent,
        contended,
    }
}

fn mean(values: impl ExactSizeIterator<Item = f32>) -> f32 {
    let count = values.len().max(1) as f32;
    values.sum::<f32>() / count
}

impl Contended {
    /// In a sentence.
    pub(crate) fn words(&self) -> String {
        let Self {
            seconds,
            ratio_percent,
            available_percent,
        } = self;
        format!(
            "{ratio_percent:.1} % of the {available_percent:.0} % that all had together in the {seconds} s in which \
             others wanted the GPU too"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(own: f32, others: f32, waited: f32) -> Vec<Second> {
        let second = Second {
            own_percent: own,
            others_percent: others,
            waited_percent: waited,
        };
        vec![second; 10]
    }

    #[test]
    fn a_share_of_what_a_busy_host_left_is_kept() {
        // Half of the processors are somebody else's: 30 % of the rest, and a wait while the others have their turn.
        let found = judge(30.into(), false, &seconds(15.0, 35.0, 68.0));
        assert_eq!(found.verdict, Verdict::Ok);
        let contended = found.contended.unwrap();
        assert_eq!(contended.ratio_percent.round(), 30.0);
        let words = contended.words();
        let begin = "30.0 % of the 50 % that all had together in the 10 s";
        assert!(words.starts_with(begin), "{words}");
    }

    #[test]
    fn too_little_of_what_was_available_is_a_warning_on_a_busy_host_too() {
        let found = judge(30.into(), false, &seconds(8.0, 42.0, 84.0));
        assert_eq!(found.verdict, Verdict::Warning);
        let found = judge(30.into(), false, &seconds(20.0, 80.0, 80.0));
        assert_eq!(found.verdict, Verdict::Warning);
    }

    #[test]
    fn who_did_not_wait_was_not_kept_from_anything() {
        let found = judge(30.into(), false, &seconds(5.0, 40.0, 10.0));
        assert_eq!((found.verdict, found.contended), (Verdict::Ok, None));
    }

    #[test]
    fn a_cap_that_is_exceeded_fails() {
        let alone = judge(30.into(), true, &seconds(40.0, 0.0, 0.0));
        assert_eq!(alone.verdict, Verdict::Failed);
        let held = judge(30.into(), true, &seconds(31.0, 0.0, 0.0));
        assert_eq!(held.verdict, Verdict::Ok);
    }
}
