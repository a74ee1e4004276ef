//! The first bytes of a file.

use crate::{Result, SnapshotError, VERSION};

/// Bytes of the head.
pub(crate) const HEAD_BYTES: u64 = 64;
const MAGIC: &[u8; 8] = b"MICASNAP";
/// Most bytes of a manifest.
pub(crate) const MOST_MANIFEST_BYTES: u32 = 64 << 10;

/// Where the manifest is, and how long the file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) manifest_bytes: u32,
    pub(crate) manifest_at: u64,
    pub(crate) file_bytes: u64,
    pub(crate) manifest_hash: [u8; 32],
}

impl Head {
    pub(crate) fn to_bytes(self) -> [u8; HEAD_BYTES as usize] {
        let mut bytes = [0; HEAD_BYTES as usize];
        bytes[0..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.manifest_bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.manifest_at.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.file_bytes.to_le_bytes());
        bytes[32..64].copy_from_slice(&self.manifest_hash);
        bytes
    }

    /// Reads a head of a file of so many bytes.
    pub(crate) fn from_bytes(bytes: &[u8; HEAD_BYTES as usize], file_bytes: u64) -> Result<Self> {
        let number = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(eight)
        };
        let (version, manifest_bytes) = (number(8) as u32, (number(8) >> 32) as u32);
        if bytes == &[0; HEAD_BYTES as usize] {
            let what = "the snapshot is not complete: whoever wrote it did not come to the end";
            return Err(SnapshotError::NotASnapshot(what));
        }
        if &bytes[0..8] != MAGIC {
            return Err(SnapshotError::NotASnapshot(
                "the file is not a snapshot of Mica's",
            ));
        }
        if version != VERSION {
            return Err(SnapshotError::Version(version));
        }
        let mut head = Self {
            manifest_bytes,
            manifest_at: number(16),
            file_bytes: number(24),
            manifest_hash: [0; 32],
        };
        head.manifest_hash.copy_from_slice(&bytes[32..64]);
        let end = head.manifest_at.checked_add(manifest_bytes.into());
        if head.file_bytes != file_bytes
            || end != Some(file_bytes)
            || head.manifest_at < HEAD_BYTES
            || manifest_bytes > MOST_MANIFEST_BYTES
        {
            let what = format!("it has {file_bytes} bytes, and its head says otherwise");
            return Err(SnapshotError::Damaged(what));
        }
        Ok(head)
    }
}
