//! What each process was granted, kept where a killed daemon's successor finds it.
//!
//! One fixed-size slot per process in one file, rewritten with a single call at every change. It need not
//! reach a disk: it must outlive this process, not the machine, and what it says about processes that
//! do not live any more is ignored. A slot never says less than the process may use: it is written before
//! a grant and after a recall.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use mica_wire::host::page::Account;
use rustix::fs::{FallocateFlags, fallocate};

const SLOT_BYTES: usize = 64;
/// More processes than any host has; a damaged file is not read for ever.
const MOST_SLOTS: u64 = 1 << 20;
/// Slots whose room is taken from the disk at once.
const RESERVED_SLOTS: u64 = 256;

/// A process and its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its number in the daemon; never 0.
    pub(crate) client: u64,
    pub(crate) pid: u32,
    /// A `Role` by number.
    pub(crate) role: u32,
    /// Start time of the process, which tells it from a later one with the same number.
    pub(crate) start: u64,
    /// Token of its virtual GPU.
    pub(crate) token: [u8; 16],
    pub(crate) granted_bytes: u64,
    /// The user that the process acts for; `None` in a file of a Mica that did not write it.
    pub(crate) uid: Option<u32>,
    /// Which memory was granted.
    pub(crate) account: Account,
}

impl Entry {
    /// Whether both are of one process in one role.
    pub(crate) fn is_same_process(&self, other: &Self) -> bool {
        let same_user = match (self.uid, other.uid) {
            (Some(uid), Some(other)) => uid == other,
            _ => true,
        };
        let who = |entry: &Self| (entry.pid, entry.start, entry.role);
        who(self) == who(other) && same_user
    }

    fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        bytes[0..8].copy_from_slice(&self.client.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.pid.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.role.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.start.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.token);
        bytes[40..48].copy_from_slice(&self.granted_bytes.to_le_bytes());
        let uid = self.uid.map_or(0, |uid| u64::from(uid) + 1);
        bytes[48..56].copy_from_slice(&uid.to_le_bytes());
        bytes[56] = self.account as u8;
        bytes
    }

    fn decode(bytes: &[u8; SLOT_BYTES]) -> Option<Self> {
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let short = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let client = long(0);
        (client != 0).then(|| Self {
            client,
            pid: short(8),
            role: short(12),
            start: long(16),
            token: std::array::from_fn(|i| bytes[24 + i]),
            granted_bytes: long(40),
            uid: long(48).checked_sub(1).map(|uid| uid as u32),
            account: match bytes[56] == Account::Host as u8 {
                true => Account::Host,
                false => Account::Device,
            },
        })
    }
}

/// The file.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    /// Slots that are free, and the first one never used.
    free: Mutex<(Vec<u64>, u64)>,
}

impl Journal {
    /// Opens the file and reads what an earlier daemon left, with the slots it is in.
    pub(crate) fn open(path: &Path) -> std::io::Result<(Self, Vec<(u64, Entry)>)> {
        let file = mica_control::files::open_or_create(path)?;
        // A disk that fills up later has room for these; one that is full already is said at the first write.
        let reserved = RESERVED_SLOTS * SLOT_BYTES as u64;
        let _ = fallocate(&file, FallocateFlags::KEEP_SIZE, 0, reserved);
        let slots = (file.metadata()?.len() / SLOT_BYTES as u64).min(MOST_SLOTS);
        let mut entries = Vec::new();
        let mut free = Vec::new();
        for slot in 0..slots {
            let mut bytes = [0; SLOT_BYTES];
            file.read_exact_at(&mut bytes, slot * SLOT_BYTES as u64)?;
            match Entry::decode(&bytes) {
                Some(entry) => entries.push((slot, entry)),
                None => free.push(slot),
            }
        }
        let journal = Self {
            file,
            free: Mutex::new((free, slots)),
        };
        Ok((journal, entries))
    }

    /// A slot for a new entry.
    pub(crate) fn take_slot(&self) -> u64 {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = free.0.pop() {
            return slot;
        }
        free.1 += 1;
        free.1 - 1
    }

    /// Writes a slot.
    pub(crate) fn write(&self, slot: u64, entry: &Entry) {
        // A full file system can refuse this; the daemon goes on, and only a successor would know less.
        if let Err(error) = self
            .file
            .write_all_at(&entry.encode(), slot * SLOT_BYTES as u64)
        {
            tracing::warn!("the journal of grants cannot be written: {error}");
        }
    }

    /// Empties a slot.
    pub(crate) fn clear(&self, slot: u64) {
        let _ = self
            .file
            .write_all_at(&[0; SLOT_BYTES], slot * SLOT_BYTES as u64);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.0.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_finds_what_was_written_and_reuses_what_was_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let entry = |client| Entry {
            client,
            pid: 7,
            role: 1,
            start: 9,
            token: [3; 16],
            granted_bytes: 1 << 40,
            uid: Some(u32::MAX),
            account: match client {
                1 => Account::Device,
                _ => Account::Host,
            },
        };
        let (journal, none) = Journal::open(&path).unwrap();
        assert!(none.is_empty());
        for client in 1..=3 {
            let slot = journal.take_slot();
            journal.write(slot, &entry(client));
        }
        journal.clear(1);
        drop(journal);
        let (journal, found) = Journal::open(&path).unwrap();
        assert_eq!(found, [(0, entry(1)), (2, entry(3))]);
        assert_eq!(journal.take_slot(), 1);
        assert_eq!(journal.take_slot(), 3);
    }
}
