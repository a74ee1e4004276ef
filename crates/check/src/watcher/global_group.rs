//! Accesses of a group to global memory, side by side: what is the same for all lanes is looked up once.

use mica_kernel::monitor::{Access, AccessKind, GroupAccess, LaneAddresses};

use super::{BlockWatcher, LiveMemory, Where, each_word, seen};
use crate::finding::Tool;
use crate::pages::PAGE;
use crate::race::Hit;

impl<M: LiveMemory> BlockWatcher<M> {
    /// Looks at plain accesses of a group side by side. Whether it could: other groups are looked at lane by lane.
    pub(super) fn race_beside(&mut self, group: &GroupAccess<'_>) -> bool {
        let first = &group.first;
        let bytes = u64::from(first.bytes) * u64::from(group.lanes);
        let is_beside = match group.addresses {
            LaneAddresses::Stride(stride) => stride == i64::from(first.bytes),
            LaneAddresses::Each(_) => false,
        };
        let is_write = first.kind == AccessKind::Write;
        if !is_beside
            || first.order != 0
            || first.kind == AccessKind::Atomic
            || self.locate(first) != Where::Global
            || self.block.holds_part(first.address, bytes)
            || !self.memory.allows(first.address, bytes, is_write)
        {
            return false;
        }
        let mut threads = first.thread..first.thread + group.lanes;
        let is_watched = |t| self.clocks.as_ref().is_some_and(|c| c.epoch(t).is_some());
        if self.shadow.is_none() || !threads.all(is_watched) {
            return false;
        }
        if self.tools.has(Tool::Initcheck) {
            (0..group.lanes).for_each(|lane| self.initcheck(&group.lane(lane), Where::Global));
        }
        let (Some(clocks), Some(shadow)) = (&self.clocks, &self.shadow) else {
            return true;
        };
        let number = self.block.number as u32;
        let mut hits: Vec<(Access, Hit)> = Vec::new();
        let mut shadow = shadow.lock();
        let mut lane = 0;
        while lane < group.lanes {
            // Lanes whose accesses are in one page.
            let start = group.lane(lane);
            let room = PAGE - start.address % PAGE;
            let inside = (room / u64::from(first.bytes.max(1))) as u32;
            let count = inside.clamp(1, group.lanes - lane);
            let whole = u64::from(count) * u64::from(first.bytes) <= room;
            let Some(cells) = shadow
                .cells_of(self.launch, start.address)
                .filter(|_| whole)
            else {
                if whole {
                    // No room for what is known of this page.
                    lane += count;
                    continue;
                }
                // One access in two pages.
                drop(shadow);
                for (access, hit) in hits {
                    self.judge(&hit, &access);
                }
                for lane in lane..group.lanes {
                    self.racecheck(&group.lane(lane), Where::Global);
                }
                return true;
            };
            for lane in lane..lane + count {
                let access = group.lane(lane);
                let mut hit = None;
                each_word(&access, |at, bytes| {
                    let seen = seen(&access, clocks, number, bytes)?;
                    let cell = cells.get_mut((at % PAGE) as usize / 4)?;
                    hit = hit.or(cell.access(&seen, clocks, false));
                    Some(())
                });
                hits.extend(hit.map(|hit| (access, hit)));
            }
            lane += count;
        }
        if !hits.is_empty() && shadow.sync(self.launch).is_lost() {
            hits.clear();
        }
        drop(shadow);
        for (access, hit) in hits {
            self.judge(&hit, &access);
        }
        true
    }

    fn judge(&self, hit: &Hit, access: &Access) {
        if !self.is_same_value(hit, access) {
            self.report_race(hit, access, Where::Global);
        }
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
                if as_groups && watcher.race_beside(&group) {
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
