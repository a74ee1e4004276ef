//! Relaxed atomics of a group in shared memory, as histograms make them: nobody learns anything from them, so that all
//! but the word itself is looked up once.

use mica_kernel::monitor::{AccessKind, AccessSpace, GroupAccess, Monitor, order};

use super::{BlockWatcher, LiveMemory, Where};
use crate::finding::Tool;
use crate::pages::PAGE;
use crate::race::Seen;

impl<M: LiveMemory> BlockWatcher<M> {
    /// Looks at relaxed atomics of a group in shared memory. Whether it could: others are looked at lane by lane.
    pub(super) fn race_of_atomics(&mut self, group: &GroupAccess<'_>) -> bool {
        let first = &group.first;
        let Some(clocks) = &self.clocks else {
            return false;
        };
        if first.kind != AccessKind::Atomic
            || first.order != order::STRONG
            || first.space != AccessSpace::Shared
            || first.bytes != 4
            || self.tools.has(Tool::Initcheck)
            || clocks.may_release()
            || !self.shared_sync.is_empty()
            || self.shared_sync.is_lost()
        {
            return false;
        }
        let Some(epoch) = clocks.epoch_of_all(first.thread, group.lanes) else {
            return false;
        };
        self.catch_up();
        self.is_unwritten = false;
        self.look_at_atomics(group, epoch);
        true
    }

    fn look_at_atomics(&mut self, group: &GroupAccess<'_>, epoch: u32) {
        let first = &group.first;
        let mut seen = Seen {
            block: self.block.number as u32,
            thread: first.thread,
            epoch,
            ptx_line: first.line.ptx,
            bytes: 15,
            kind: first.kind,
            order: first.order,
        };
        for lane in 0..group.lanes {
            let offset = group.address(lane).wrapping_sub(self.block.shared.0);
            let page = self.pages.get_mut((offset / PAGE) as usize);
            let (Some(page), Some(clocks)) = (page, &self.clocks) else {
                continue;
            };
            if !offset.is_multiple_of(4) {
                self.access(&group.lane(lane));
                continue;
            }
            seen.thread = first.thread + lane;
            let found = page.one((offset % PAGE) as usize / 4, &seen, clocks);
            if let Ok(Some(hit)) = found {
                self.report_race(&hit, &group.lane(lane), Where::Shared);
            }
        }
    }
}
