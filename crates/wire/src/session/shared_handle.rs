//! The 64 bytes by which programs name memory and events that they share, `CUipcMemHandle` and its relatives.
//!
//! A handle opens nothing by itself: the daemon decides which worker is given what the handle names.

/// What handles begin with.
const MAGIC: [u8; 8] = *b"MICAIPC1";

/// What a handle is of.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedKind {
    /// An allocation, or a region.
    Allocation = 1,
    /// An event.
    Event = 2,
    /// A frame.
    Frame = 3,
    /// A memory pool.
    Pool = 4,
    /// An allocation of a memory pool.
    PoolPointer = 5,
}

/// What a handle says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedHandle {
    /// What it is of.
    pub what: SharedKind,
    /// What it is shared under.
    pub id: [u8; 16],
    /// An event's place.
    pub slot: u32,
    /// Where in the shared memory it begins.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

impl SharedHandle {
    /// A whole region.
    #[must_use]
    pub fn of_region(id: [u8; 16], bytes: u64) -> Self {
        Self {
            what: SharedKind::Allocation,
            id,
            slot: 0,
            offset: 0,
            bytes,
        }
    }

    /// The handle's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; 64] {
        let mut handle = [0; 64];
        handle[..8].copy_from_slice(&MAGIC);
        handle[8..12].copy_from_slice(&(self.what as u32).to_le_bytes());
        handle[12..16].copy_from_slice(&self.slot.to_le_bytes());
        handle[16..32].copy_from_slice(&self.id);
        handle[32..40].copy_from_slice(&self.offset.to_le_bytes());
        handle[40..48].copy_from_slice(&self.bytes.to_le_bytes());
        handle
    }

    /// What a handle says, if it is one of `what`.
    #[must_use]
    pub fn decode(handle: &[u8; 64], what: SharedKind) -> Option<Self> {
        let word = |at: usize| handle[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let long = |at: usize| handle[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let (kind, slot) = (word(8)?, word(12)?);
        let (offset, bytes) = (long(32)?, long(40)?);
        let id = handle[16..32].try_into().ok()?;
        let is_it = handle[..8] == MAGIC && kind == what as u32;
        is_it.then_some(Self {
            what,
            id,
            slot,
            offset,
            bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_say_what_was_shared_and_nothing_else() {
        let token = SharedHandle {
            what: SharedKind::PoolPointer,
            id: [3; 16],
            slot: 4,
            offset: 5 << 40,
            bytes: 6,
        };
        let handle = token.encode();
        let decode = SharedHandle::decode;
        assert_eq!(decode(&handle, SharedKind::PoolPointer), Some(token));
        assert_eq!(decode(&handle, SharedKind::Allocation), None);
        assert_eq!(decode(&[0; 64], SharedKind::Allocation), None);
        assert_eq!(decode(&[0xff; 64], SharedKind::Event), None);
    }
}
