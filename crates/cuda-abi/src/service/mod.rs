//! How each mode serves each entry point: what the support list says, and what tests hold the shim to.
//!
//! Lists name a symbol without its per-thread variants, which are served alike. What is in no list of
//! isolated mode is refused; what is in no list of direct mode is the real driver's own affair. Which calls pass the
//! gate is said in `work`.

mod direct;
mod isolated;

use crate::EntryPoint;
use crate::entry::legacy_symbol;
use crate::work::GATED;
use direct::{CHARGED, OBSERVED, SHOWN};
use isolated::{LOCAL, POSTED, SYNCHRONOUS};

/// How isolated mode serves an entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolated {
    /// Answered in the program's process, without the worker.
    Local,
    /// Put into the worker's ring without waiting; an error comes late.
    Posted,
    /// Waits for the worker, at least the first time.
    Synchronous,
    /// `CUDA_ERROR_NOT_SUPPORTED`, with its name in the log.
    Refused,
}

/// What direct mode does before the real driver is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    /// Takes from the memory limit, or gives back to it.
    Charged,
    /// Waits until it is the virtual GPU's turn.
    Gated,
    /// Noted: joins, waits, captures, look-ups of entry points.
    Observed,
    /// Answers what the virtual GPU has.
    Shown,
    /// Nothing.
    Forwarded,
}

impl EntryPoint {
    /// How isolated mode serves it.
    pub fn isolated(&self) -> Isolated {
        let name = self.legacy_symbol();
        let lists = [
            (LOCAL, Isolated::Local),
            (POSTED, Isolated::Posted),
            (SYNCHRONOUS, Isolated::Synchronous),
        ];
        find(&lists, name).unwrap_or(Isolated::Refused)
    }

    /// What direct mode does with it.
    pub fn direct(&self) -> Direct {
        let name = self.legacy_symbol();
        let lists = [
            (CHARGED, Direct::Charged),
            (GATED, Direct::Gated),
            (OBSERVED, Direct::Observed),
            (SHOWN, Direct::Shown),
        ];
        find(&lists, name).unwrap_or(Direct::Forwarded)
    }

    /// The symbol of its variant for the legacy default stream.
    pub(crate) fn legacy_symbol(&self) -> &'static str {
        legacy_symbol(self.symbol)
    }
}

fn find<T: Copy>(lists: &[(&[&str], T)], name: &str) -> Option<T> {
    let holds = |list: &[&str]| list.binary_search(&name).is_ok();
    lists
        .iter()
        .find(|(list, _)| holds(list))
        .map(|(_, service)| *service)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ENTRY_POINTS, find_symbol};

    #[test]
    fn every_list_is_sorted_and_names_what_exists_once() {
        for modes in [
            &[LOCAL, POSTED, SYNCHRONOUS][..],
            &[CHARGED, GATED, OBSERVED, SHOWN],
        ] {
            let mut all: Vec<&str> = Vec::new();
            for list in modes {
                assert!(list.is_sorted(), "{list:?}");
                all.extend(list.iter().copied());
            }
            for name in &all {
                assert!(find_symbol(name).is_some(), "{name}");
            }
            let count = all.len();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), count, "a name is in two lists");
        }
    }

    /// What may take device memory and is not charged, and why.
    const UNCHARGED: &[(&str, &str)] = &[
        ("cuExternalMemoryGetMappedBuffer", IMPORTED),
        ("cuExternalMemoryGetMappedMipmappedArray", IMPORTED),
        ("cuIpcOpenMemHandle", PAID),
        ("cuIpcOpenMemHandle_v2", PAID),
        ("cuMemPoolImportFromShareableHandle", PAID),
        ("cuMemPoolImportPointer", PAID),
        ("cuMulticastCreate", "memory is bound to it later"),
    ];
    const IMPORTED: &str = "charged when it was imported";
    const PAID: &str = "charged to the process that made it";

    #[test]
    fn what_takes_memory_is_charged_or_it_is_said_why_not() {
        for entry in ENTRY_POINTS {
            let charged = entry.direct() == Direct::Charged;
            let excused = UNCHARGED.iter().any(|(name, _)| *name == entry.symbol);
            let takes = entry.class == crate::Class::Allocates;
            assert!(!takes || charged != excused, "{}", entry.symbol);
            assert!(takes || !excused, "{} takes none", entry.symbol);
        }
    }

    #[test]
    fn variants_for_a_threads_own_stream_are_served_alike() {
        for entry in ENTRY_POINTS {
            let number = find_symbol(entry.legacy_symbol());
            let legacy = number.map_or(entry, |number| &ENTRY_POINTS[number]);
            assert_eq!(entry.isolated(), legacy.isolated(), "{}", entry.symbol);
        }
        let launch = &ENTRY_POINTS[find_symbol("cuLaunchKernel_ptsz").unwrap()];
        assert_eq!(
            (launch.isolated(), launch.direct()),
            (Isolated::Posted, Direct::Gated)
        );
    }
}
