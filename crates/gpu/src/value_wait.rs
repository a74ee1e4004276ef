//! Waiting in stream order for a word in memory.

use mica_cuda_abi::CuResult;

use crate::{DevicePtr, GpuError, Result};

/// `CU_STREAM_WAIT_VALUE_FLUSH`: remote writes before the word's are seen after the wait.
const FLUSH: u32 = 1 << 30;

/// What the word must be for the wait to end: `CUstreamWaitValue_flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitCondition {
    /// At least the value, in circles: the difference, as a signed number, is not negative.
    AtLeast = 0,
    /// The value.
    Equal = 1,
    /// It has a bit of the value.
    And = 2,
    /// A bit is in neither.
    Nor = 3,
}

/// A wait for a word of 4 or 8 bytes in device memory or registered host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueWait {
    /// Where the word is; a multiple of its size.
    pub address: DevicePtr,
    /// Whether it has 8 bytes, not 4.
    pub is_wide: bool,
    /// What it is compared with.
    pub value: u64,
    /// How.
    pub condition: WaitCondition,
    /// Whether remote writes before the word's must be seen after the wait.
    pub flush: bool,
}

impl ValueWait {
    /// A wait as `cuStreamWaitValue32` and `64` describe it.
    ///
    /// # Errors
    /// `InvalidValue` if a flag is unknown or the address is not a multiple of the word's size.
    pub fn new(address: DevicePtr, is_wide: bool, value: u64, flags: u32) -> Result<Self> {
        let condition = match flags & !FLUSH {
            0 => WaitCondition::AtLeast,
            1 => WaitCondition::Equal,
            2 => WaitCondition::And,
            3 => WaitCondition::Nor,
            _ => return Err(invalid(format!("{flags:#x} are not flags of a wait"))),
        };
        let wait = Self {
            address,
            is_wide,
            value,
            condition,
            flush: flags & FLUSH != 0,
        };
        if address.0 == 0 || !address.0.is_multiple_of(wait.bytes()) {
            let what = format!("a wait for {} bytes at {:#x}", wait.bytes(), address.0);
            return Err(invalid(what));
        }
        Ok(wait)
    }

    /// Bytes of the word.
    pub fn bytes(&self) -> u64 {
        match self.is_wide {
            true => 8,
            false => 4,
        }
    }

    /// The driver's flags.
    pub fn flags(&self) -> u32 {
        self.condition as u32 | if self.flush { FLUSH } else { 0 }
    }

    /// Whether the wait ends with this word, of which a narrow wait reads the lower half.
    pub fn is_met(&self, word: u64) -> bool {
        // A narrow word is compared in the upper half, where it has the sign that it has by itself.
        let shift = if self.is_wide { 0 } else { 32 };
        let (word, value) = (word << shift, self.value << shift);
        let bits = u64::MAX << shift;
        match self.condition {
            WaitCondition::AtLeast => word.wrapping_sub(value) as i64 >= 0,
            WaitCondition::Equal => word == value,
            WaitCondition::And => word & value != 0,
            WaitCondition::Nor => !(word | value) & bits != 0,
        }
    }
}

fn invalid(what: String) -> GpuError {
    GpuError::new(CuResult::InvalidValue, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(is_wide: bool, value: u64, flags: u32) -> ValueWait {
        ValueWait::new(DevicePtr(64), is_wide, value, flags).unwrap()
    }

    #[test]
    fn at_least_goes_in_circles_in_both_widths() {
        let narrow = wait(false, 0xffff_fff0, 0);
        assert!(narrow.is_met(0xffff_fff0) && narrow.is_met(5));
        assert!(!narrow.is_met(0xffff_ffef) && !narrow.is_met(0x7fff_fff1));
        assert!(!wait(true, 0xffff_fff0, 0).is_met(5));
        assert!(wait(true, u64::MAX, 0).is_met(5));
    }

    #[test]
    fn the_upper_half_does_not_count_in_a_narrow_wait() {
        let above = 0xdead_0000_0000;
        assert!(wait(false, 7, 1).is_met(above | 7));
        assert!(!wait(false, above, 2).is_met(above));
        assert!(!wait(false, 0, 3).is_met(0xffff_ffff));
        assert!(wait(false, 1, 3).is_met(0));
        assert!(wait(true, 0, 3).is_met(0xffff_ffff));
    }

    #[test]
    fn strange_flags_and_addresses_are_refused() {
        let new = |address, is_wide, flags| {
            let made = ValueWait::new(DevicePtr(address), is_wide, 0, flags);
            made.map_err(|error| error.code)
        };
        let refused = Err(CuResult::InvalidValue);
        assert_eq!(new(64, false, 4), refused);
        assert_eq!(new(0, false, 0), refused);
        assert_eq!(new(66, false, 0), refused);
        assert_eq!(new(68, true, 0), refused);
        let flushing = new(68, false, 1 | 1 << 30).unwrap();
        assert!(flushing.flush);
        assert_eq!(flushing.flags(), 1 | 1 << 30);
    }
}
