//! Whole numbers that a value may be: from, to, and what is known of its low bits.

/// Every value is in `low..=high` and equals `residue` modulo `2^known`.
///
/// A register holds such a number modulo 2^32 or 2^64, so sums and products need not care for overflow;
/// where a register is compared or widened, [`Range::is_of`] must hold first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) low: i128,
    pub(crate) high: i128,
    known: u32,
    residue: u64,
}

impl Range {
    pub(crate) fn exactly(x: i128) -> Range {
        Range {
            low: x,
            high: x,
            known: 64,
            residue: x as u64,
        }
    }

    /// Nothing is known of the low bits.
    pub(crate) fn between(low: i128, high: i128) -> Option<Range> {
        if low == high {
            return Some(Range::exactly(low));
        }
        (low < high).then_some(Range {
            low,
            high,
            known: 0,
            residue: 0,
        })
    }

    /// The same values, as far as they are inside; all of them when none is.
    pub(crate) fn within(self, low: i128, high: i128) -> Range {
        let (low, high) = (self.low.max(low), self.high.min(high));
        if low > high {
            return self;
        }
        Range { low, high, ..self }
    }

    pub(crate) fn add(self, other: Range) -> Option<Range> {
        let known = self.known.min(other.known);
        Some(Range {
            low: self.low.checked_add(other.low)?,
            high: self.high.checked_add(other.high)?,
            known,
            residue: self.residue.wrapping_add(other.residue) & mask(known),
        })
    }

    pub(crate) fn sub(self, other: Range) -> Option<Range> {
        let known = self.known.min(other.known);
        Some(Range {
            low: self.low.checked_sub(other.high)?,
            high: self.high.checked_sub(other.low)?,
            known,
            residue: self.residue.wrapping_sub(other.residue) & mask(known),
        })
    }

    pub(crate) fn mul(self, other: Range) -> Option<Range> {
        let corners = [
            self.low.checked_mul(other.low)?,
            self.low.checked_mul(other.high)?,
            self.high.checked_mul(other.low)?,
            self.high.checked_mul(other.high)?,
        ];
        // (a + i·2^m)(b + j·2^n): the first unknown bit comes from i·b·2^m or j·a·2^n.
        let known = (self.known + other.zeros()).min(other.known + self.zeros());
        let known = known.min(64);
        Some(Range {
            low: corners.into_iter().min()?,
            high: corners.into_iter().max()?,
            known,
            residue: self.residue.wrapping_mul(other.residue) & mask(known),
        })
    }

    /// These, and what comes of adding values of `step`, which are not negative, up to `last`.
    pub(crate) fn stepping(self, step: Range, last: i128) -> Range {
        let known = self.known.min(step.zeros());
        Range {
            low: self.low,
            high: self.high.max(last),
            known,
            residue: self.residue & mask(known),
        }
    }

    /// Low bits that are 0 in every value.
    fn zeros(self) -> u32 {
        self.residue.trailing_zeros().min(self.known)
    }

    /// Whether every value is one that a register of so many bits can be taken for.
    pub(crate) fn is_of(self, bits: u32, signed: bool) -> bool {
        let half = 1i128 << (bits - 1);
        if signed {
            -half <= self.low && self.high < half
        } else {
            0 <= self.low && self.high < half << 1
        }
    }

    /// Whether every value is a multiple of `align`, a power of two.
    pub(crate) fn is_aligned(self, align: u32) -> bool {
        self.zeros() >= align.trailing_zeros()
    }
}

fn mask(bits: u32) -> u64 {
    if bits >= 64 {
        u64::MAX
    } else {
        (1 << bits) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether `x` is one of the values.
    fn has(r: Range, x: i128) -> bool {
        r.low <= x && x <= r.high && (x as u64).wrapping_sub(r.residue) & mask(r.known) == 0
    }

    fn some_ranges() -> Vec<(Range, Vec<i128>)> {
        let mut all = Vec::new();
        for low in [-9i128, -1, 0, 1, 6] {
            for n in [0, 1, 3] {
                for step in [1i128, 2, 4, 12] {
                    let values: Vec<i128> = (0..=n).map(|i| low + i * step).collect();
                    let count = Range::between(0, n).expect("a range");
                    let scaled = count.mul(Range::exactly(step)).expect("small");
                    all.push((scaled.add(Range::exactly(low)).expect("small"), values));
                }
            }
        }
        all
    }

    #[test]
    fn results_hold_every_value() {
        for (a, xs) in some_ranges() {
            for (b, ys) in some_ranges() {
                let (sum, difference) = (a.add(b).expect("small"), a.sub(b).expect("small"));
                let product = a.mul(b).expect("small");
                for x in &xs {
                    for y in &ys {
                        assert!(has(sum, x + y), "{a:?} + {b:?}: {x} + {y}");
                        assert!(has(difference, x - y), "{a:?} - {b:?}: {x} - {y}");
                        assert!(has(product, x * y), "{a:?} * {b:?}: {x} * {y}");
                    }
                }
            }
        }
    }

    #[test]
    fn steps_hold_every_value() {
        for (a, xs) in some_ranges() {
            for (step, by) in some_ranges().into_iter().filter(|s| s.0.low >= 0) {
                let all = a.stepping(step, 1000);
                for x in &xs {
                    for (d, e) in by.iter().flat_map(|d| by.iter().map(move |e| (d, e))) {
                        assert!(has(all, *x) && has(all, x + d) && has(all, x + d + e));
                    }
                }
            }
        }
    }

    #[test]
    fn alignment_is_known_through_a_scaled_index() {
        let index = Range::between(0, 1000).expect("a range");
        let four = index.mul(Range::exactly(4)).expect("small");
        let base = Range::exactly(0x7000_0010);
        assert!(four.add(base).expect("small").is_aligned(4));
        assert!(!four.add(base).expect("small").is_aligned(8));
        let odd = four.add(Range::exactly(2)).expect("small");
        assert!(odd.is_aligned(2) && !odd.is_aligned(4));
        assert!(Range::exactly(0).is_aligned(32));
    }

    #[test]
    fn what_overflows_is_no_range() {
        let huge = Range::exactly(i128::MAX);
        assert_eq!(huge.add(Range::exactly(1)), None);
        assert_eq!(huge.mul(Range::exactly(2)), None);
        assert!(!Range::exactly(1 << 31).is_of(32, true));
        assert!(Range::exactly(1 << 31).is_of(32, false));
        assert!(!Range::exactly(-1).is_of(32, false));
    }
}
