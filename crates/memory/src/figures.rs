//! How well memory is used.

/// Sums over a pool or a range of addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Bytes held from the device.
    pub held_bytes: u64,
    /// Bytes of them that programs asked for.
    pub asked_bytes: u64,
    /// Bytes of them that are given out: what was asked for, rounded up.
    pub given_bytes: u64,
    /// Largest piece that could be given out without more memory from the device.
    pub largest_free_bytes: u64,
    /// Pieces given out.
    pub pieces: u64,
}

impl Figures {
    /// Bytes held and not given out.
    pub fn free_bytes(&self) -> u64 {
        self.held_bytes.saturating_sub(self.given_bytes)
    }

    /// Percent of the free bytes that the largest request could not have; 0 where nothing is free.
    pub fn fragmentation_percent(&self) -> f64 {
        match self.free_bytes() {
            0 => 0.0,
            free => 100.0 * (1.0 - self.largest_free_bytes.min(free) as f64 / free as f64),
        }
    }

    /// Percent of the held bytes that nobody asked for.
    pub fn waste_percent(&self) -> f64 {
        match self.held_bytes {
            0 => 0.0,
            held => 100.0 * held.saturating_sub(self.asked_bytes) as f64 / held as f64,
        }
    }

    /// Both together; the largest free piece is the larger one.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            held_bytes: self.held_bytes + other.held_bytes,
            asked_bytes: self.asked_bytes + other.asked_bytes,
            given_bytes: self.given_bytes + other.given_bytes,
            largest_free_bytes: self.largest_free_bytes.max(other.largest_free_bytes),
            pieces: self.pieces + other.pieces,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_of_what_is_free_and_of_what_is_held() {
        let figures = Figures {
            held_bytes: 1000,
            asked_bytes: 700,
            given_bytes: 800,
            largest_free_bytes: 150,
            pieces: 3,
        };
        assert_eq!(figures.free_bytes(), 200);
        assert!((figures.fragmentation_percent() - 25.0).abs() < 1e-9);
        assert!((figures.waste_percent() - 30.0).abs() < 1e-9);
        let twice = figures.plus(figures);
        assert_eq!((twice.held_bytes, twice.largest_free_bytes), (2000, 150));
        let empty = Figures::default();
        assert_eq!(empty.fragmentation_percent() + empty.waste_percent(), 0.0);
    }
}
