//! Told of what checked kernels do: allows what the test says that they may touch.

use std::sync::Arc;

use mica_kernel::Monitor;
use mica_kernel::monitor::{Access, AccessSpace, Line, Misuse, ThreadSet};

use super::Host;

pub(super) struct Watch {
    pub(super) host: Arc<Host>,
    /// Local memory of the first thread, and from one thread to the next.
    pub(super) locals: (u64, u64),
}

impl Monitor for Watch {
    fn access(&mut self, access: &Access) -> bool {
        let (base, stride) = self.locals;
        let bytes = u64::from(access.bytes);
        if access.space == AccessSpace::Local {
            let own = base + u64::from(access.thread) * stride;
            return own <= access.address && access.address + bytes <= own + stride;
        }
        let host = &self.host;
        host.allows_everything() || host.range_of(access.address, bytes).is_some()
    }
    fn live_range(&mut self, access: &Access) -> Option<(u64, u64)> {
        let range = self
            .host
            .range_of(access.address, u64::from(access.bytes))?;
        Some((range.start, range.end - range.start))
    }
    fn fence(&mut self, _thread: u32) {}
    fn arrive(&mut self, _barrier: u32, _thread: u32) {}
    fn barrier(&mut self, _barrier: u32, _waiting: &ThreadSet) {}
    fn warp(&mut self, _lanes: &ThreadSet) {}
    fn misuse(&mut self, _what: Misuse, _thread: u32, _line: Line) {}
}
