//! Copies of a program's host memory, beside the worker.

use std::collections::HashMap;
use std::os::fd::AsFd;

use mica_wire::session::client::RecordPort;
use mica_wire::session::{MappedBytes, back, create_sealed};

use crate::TunnelError;
use crate::frame::{Header, Kind};
use crate::shadow::Shadow;

/// Pieces of host memory of one session, at most.
const MOST: usize = 1 << 16;
/// Bytes of changes that are sent at once.
const AT_ONCE_BYTES: usize = 1 << 20;

/// Host memory of one session.
pub(super) struct HostCopies {
    by_tag: HashMap<u64, Shadow>,
    held_bytes: u64,
    most_bytes: u64,
    mapped: usize,
}

impl HostCopies {
    pub(super) fn new(most_bytes: u64) -> Self {
        Self {
            by_tag: HashMap::new(),
            held_bytes: 0,
            most_bytes,
            mapped: 0,
        }
    }

    /// Makes memory and shows it to the worker; a record that registers it follows. What is too much has no file, so that
    /// the worker refuses the record and the program hears of it.
    pub(super) fn add(
        &mut self,
        port: &RecordPort,
        tag: u64,
        bytes: u64,
    ) -> Result<(), TunnelError> {
        if self.by_tag.contains_key(&tag) || self.by_tag.len() >= MOST || bytes == 0 {
            return Err(TunnelError::protocol("host memory that cannot be"));
        }
        let held = self.held_bytes.saturating_add(bytes);
        if held > self.most_bytes {
            let most = self.most_bytes;
            tracing::warn!(bytes, most, "host memory beyond the limit is refused");
            let empty = create_sealed("mica-refused", 0);
            let empty = empty.map_err(TunnelError::system("memfd_create"))?;
            return Ok(port.send_descriptor(tag, empty.as_fd())?);
        }
        let file =
            create_sealed("mica-host", bytes).map_err(TunnelError::system("memfd_create"))?;
        back(&file, 0, bytes);
        let mapped = MappedBytes::map(&file, 0, bytes as usize, 0);
        let mapped = mapped.map_err(TunnelError::system("mmap"))?;
        port.send_descriptor(tag, file.as_fd())?;
        self.held_bytes = held;
        self.by_tag.insert(tag, Shadow::new(mapped, bytes));
        Ok(())
    }

    /// Takes over what the program has written.
    pub(super) fn write(&mut self, tag: u64, offset: u64, data: &[u8]) -> Result<(), TunnelError> {
        let Some(shadow) = self.by_tag.get_mut(&tag) else {
            // Refused above, or gone: the record that uses it fails.
            return Ok(());
        };
        let inside = match shadow.is_mapped() {
            true => shadow.merge(offset, data),
            false => shadow.write(offset, data),
        };
        match inside {
            true => Ok(()),
            false => Err(TunnelError::protocol("bytes outside of host memory")),
        }
    }

    /// Keeps memory equal from now on.
    pub(super) fn map(&mut self, tag: u64) {
        if let Some(shadow) = self.by_tag.get_mut(&tag)
            && !shadow.is_mapped()
        {
            shadow.map();
            self.mapped += 1;
        }
    }

    /// The worker has let go of it.
    pub(super) fn remove(&mut self, tag: u64) {
        if let Some(shadow) = self.by_tag.remove(&tag) {
            self.held_bytes -= shadow.bytes();
            self.mapped -= usize::from(shadow.is_mapped());
        }
    }

    /// Begins to look for what the device has changed of memory that is kept equal.
    pub(super) fn begin_sweep(&self) -> Sweep {
        let mapped = self.by_tag.iter().filter(|(_, shadow)| shadow.is_mapped());
        Sweep {
            tags: mapped.map(|(tag, _)| *tag).collect(),
            page: 0,
        }
    }

    /// Adds some of what has changed. Whether there may be more: all of it at once could be as much as the memory itself.
    pub(super) fn sweep(&mut self, sweep: &mut Sweep, out: &mut Vec<u8>) -> bool {
        while let Some(tag) = sweep.tags.last() {
            let put = |offset, page: &[u8]| {
                Header::new(Kind::HostChanged, *tag, offset).put(out, &[page]);
            };
            let shadow = self.by_tag.get_mut(tag);
            match shadow.and_then(|shadow| shadow.some_changes(sweep.page, AT_ONCE_BYTES, put)) {
                Some(page) => {
                    sweep.page = page;
                    return true;
                }
                None => {
                    sweep.tags.pop();
                    sweep.page = 0;
                }
            }
            if out.len() > AT_ONCE_BYTES {
                return !sweep.tags.is_empty();
            }
        }
        false
    }
}

/// How far a look through memory that is kept equal has come.
pub(super) struct Sweep {
    /// What is still to be looked at, the last one first.
    tags: Vec<u64>,
    page: usize,
}
