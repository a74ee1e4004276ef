//! Accesses of a group, side by side: what is the same for all lanes is looked up once.

use mica_kernel::monitor::{Access, AccessKind, GroupAccess, LaneAddresses};

use super::{BlockWatcher, LiveMemory, Where, each_word, seen};
use crate::finding::Tool;
use crate::pages::PAGE;
use crate::race::{Clocks, Hit, Seen, Span, Spans};
use crate::shadow::State;

/// What was found, with the access that it was found for.
type Hits = Vec<(Access, Hit)>;

impl<M: LiveMemory> BlockWatcher<M> {
    /// Looks at plain accesses of a group that lie in rows of words. Whether it could: other groups are looked at lane by lane.
    pub(super) fn race_in_rows(&mut self, group: &GroupAccess<'_>) -> bool {
        let first = &group.first;
        let Some(clocks) = &self.clocks else {
            return false;
        };
        let Some(epoch) = clocks.epoch_of_all(first.thread, group.lanes) else {
            return false;
        };
        let seen = Seen {
            block: self.block.number as u32,
            thread: first.thread,
            epoch,
            ptx_line: first.line.ptx,
            bytes: 0,
            kind: first.kind,
            order: first.order,
        };
        let Some(spans) = Spans::new(group, seen) else {
            return false;
        };
        let place = self.locate(first);
        if !self.holds_group(group, place) {
            return false;
        }
        if self.tools.has(Tool::Initcheck) {
            (0..group.lanes).for_each(|lane| self.initcheck(&group.lane(lane), place));
        }
        let hits = match place {
            Where::Shared => {
                self.catch_up();
                self.is_unwritten &= first.kind == AccessKind::Read;
                self.rows_of_shared(group, spans)
            }
            _ => self.rows_of_global(group, spans),
        };
        for (access, hit) in hits {
            if !self.is_same_value(&hit, &access) {
                self.report_race(&hit, &access, place);
            }
        }
        true
    }

    /// Whether all that a group accesses lies in global memory that may be accessed, or in shared memory.
    fn holds_group(&mut self, group: &GroupAccess<'_>, place: Where) -> bool {
        let first = &group.first;
        let bytes = match group.addresses {
            LaneAddresses::Stride(0) => u64::from(first.bytes),
            _ => u64::from(first.bytes) * u64::from(group.lanes),
        };
        match place {
            Where::Global => {
                let is_write = first.kind == AccessKind::Write;
                self.shadow.is_some()
                    && !self.block.holds_part(first.address, bytes)
                    && self.memory.allows(first.address, bytes, is_write)
            }
            Where::Shared => {
                let (start, len) = self.block.shared;
                first.address.wrapping_sub(start).saturating_add(bytes) <= len
            }
            Where::Local | Where::Params => false,
        }
    }

    fn rows_of_global(&self, group: &GroupAccess<'_>, mut spans: Spans) -> Hits {
        let mut hits = Hits::new();
        let (Some(clocks), Some(shadow)) = (&self.clocks, &self.shadow) else {
            return hits;
        };
        let mut shadow = shadow.lock();
        let number = self.block.number as u32;
        while spans.next() {
            let (span, last) = (spans.span(), spans.last());
            let at = (self.launch, span.address);
            let Some(last) = &last else {
                let note = &mut |word, hit| note(&mut hits, group, span, word, hit);
                shadow.access_row(at, &span.access, clocks, note);
                continue;
            };
            if shadow.is_quiet(at, &span.access, clocks) {
                for access in [&span.access, last] {
                    shadow.access_row(at, access, clocks, &mut |_, _| {});
                }
                continue;
            }
            for lane in span.lane..span.lane + span.lanes {
                let access = group.lane(lane);
                let found = self.one_of_global(&mut shadow, &access, (clocks, number));
                hits.extend(found.map(|hit| (access, hit)));
            }
        }
        if !hits.is_empty() && shadow.sync(self.launch).is_lost() {
            hits.clear();
        }
        hits
    }

    fn one_of_global(
        &self,
        shadow: &mut State,
        access: &Access,
        (clocks, number): (&Clocks, u32),
    ) -> Option<Hit> {
        let mut hit = None;
        each_word(access, |at, bytes| {
            let seen = seen(access, clocks, number, bytes)?;
            hit = hit.or(shadow.access((self.launch, at), &seen, clocks)?);
            Some(())
        })
        .and(hit)
    }

    fn rows_of_shared(&mut self, group: &GroupAccess<'_>, mut spans: Spans) -> Hits {
        let mut hits = Hits::new();
        let Some(clocks) = &self.clocks else {
            return hits;
        };
        while spans.next() {
            let (span, last) = (spans.span(), spans.last());
            let offset = span.address - self.block.shared.0;
            let word = (offset % PAGE) as usize / 4;
            let Some(page) = self.pages.get_mut((offset / PAGE) as usize) else {
                continue;
            };
            // All rows of shared memory may be kept word by word, so there is room.
            let Some(last) = &last else {
                let note = &mut |word, hit| note(&mut hits, group, span, word, hit);
                let _ = page.some(word, &span.access, clocks, note);
                continue;
            };
            if page.is_quiet(word, &span.access, clocks) {
                for access in [&span.access, last] {
                    let _ = page.some(word, access, clocks, &mut |_, _| {});
                }
                continue;
            }
            for lane in span.lane..span.lane + span.lanes {
                let access = group.lane(lane);
                let mut hit = None;
                each_word(&access, |at, bytes| {
                    let seen = seen(&access, clocks, self.block.number as u32, bytes)?;
                    let word = ((at - self.block.shared.0) % PAGE) as usize / 4;
                    hit = hit.or(page.one(word, &seen, clocks).ok()?);
                    Some(())
                });
                hits.extend(hit.map(|hit| (access, hit)));
            }
        }
        if self.shared_sync.is_lost() {
            hits.clear();
        }
        hits
    }
}

/// Keeps what was found for a word; of several words of one access the first.
fn note(hits: &mut Hits, group: &GroupAccess<'_>, span: &Span, word: usize, hit: Hit) {
    let access = group.lane(span.lane_of(word));
    if hits
        .last()
        .is_none_or(|(last, _)| last.thread != access.thread)
    {
        hits.push((access, hit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Finding;
    use crate::launch::LaunchFindings;
    use crate::settings::Tools;
    use crate::shadow::Shadow;
    use crate::watcher::WatchedBlock;
    use crate::watcher::tests::{Anything, Noise};
    use mica_kernel::monitor::{AccessSpace, LaneValues, Line, Monitor, ThreadSet};
    use std::sync::Arc;

    /// What is found in a random program of groups, and how many were looked at as such.
    fn found(seed: u64, as_groups: bool) -> (Vec<Finding>, usize) {
        let mut noise = Noise(seed);
        let findings = Arc::new(LaunchFindings::default());
        let mut tools = Tools::default().with(Tool::Racecheck);
        if seed.is_multiple_of(2) {
            tools = tools.with(Tool::Initcheck);
        }
        let launch = (1, [4, 1, 1], "k".to_owned());
        let shadow = Arc::new(Shadow::new(0, 1 << 20, 1 << 24, Box::new(|_| true)));
        shadow.allocated(0x1800, 0x2000);
        let kept = Arc::clone(&findings);
        let mut watcher = BlockWatcher::new(tools, launch, Some(shadow), Anything, kept);
        let mut groups = 0;
        for number in 0..4 {
            watcher.begin(WatchedBlock {
                number,
                index: [number as u32, 0, 0],
                shape: [64, 1, 1],
                shared: (0x8000, 64),
                params: (0x2040, 16),
                ..WatchedBlock::default()
            });
            for line in 0..60 {
                let bytes = 1u32 << noise.below(5);
                let words: Vec<u64> = (0..16).map(|_| noise.below(9)).collect();
                let kind = match noise.below(6) {
                    0 => AccessKind::Write,
                    1 => AccessKind::Atomic,
                    _ => AccessKind::Read,
                };
                let first = Access {
                    thread: 16 * noise.below(4) as u32,
                    bytes,
                    // Near the end of a page, beside the block's parameters, or behind both.
                    address: 0x1f00 + u64::from(bytes) * noise.below(64) + 2 * noise.below(2),
                    kind,
                    order: 0,
                    space: AccessSpace::Arena,
                    line: Line {
                        ptx: line + 1,
                        source: 0,
                    },
                    value: None,
                };
                let group = GroupAccess {
                    first,
                    lanes: 16,
                    addresses: LaneAddresses::Stride(i64::from(bytes)),
                    values: match kind {
                        AccessKind::Write => LaneValues::Pairs(&words),
                        _ => LaneValues::None,
                    },
                };
                if noise.below(8) == 0 {
                    watcher.barrier(0, &ThreadSet::first(64));
                }
                if as_groups && watcher.race_in_rows(&group) {
                    groups += 1;
                } else {
                    (0..16).for_each(|lane| assert!(watcher.access(&group.lane(lane))));
                }
            }
        }
        (findings.take().0, groups)
    }

    #[test]
    fn groups_side_by_side_are_as_good_as_lane_by_lane() {
        let (mut races, mut groups) = (0, 0);
        for seed in 1..40 {
            let (by_lane, _) = found(seed, false);
            let (by_group, looked_at) = found(seed, true);
            assert_eq!(
                format!("{by_group:?}"),
                format!("{by_lane:?}"),
                "seed {seed}"
            );
            races += by_lane.len();
            groups += looked_at;
        }
        assert!(races > 300 && groups > 1000, "{races} {groups}");
    }
}
