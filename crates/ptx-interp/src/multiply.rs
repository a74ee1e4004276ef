//! Products that a thread asks the device for ([`mica_ptx_ops::multiply`]), one element after the other.

use mica_kernel::FaultKind;
use mica_ptx::ast::Space;
use mica_ptx_ops::multiply::{Multiply, PART, WORDS, stored};

use crate::access::write;
use crate::address::Place;
use crate::machine::{Machine, Stop};

impl Machine<'_> {
    /// Does the call with these arguments.
    pub(crate) fn multiply_floats(
        &mut self,
        t: usize,
        words: [u64; WORDS],
        adds: bool,
    ) -> Result<(), Stop> {
        let Some(call) = Multiply::of_words(words, adds) else {
            return Err(self.fault(t, FaultKind::IllegalInstruction));
        };
        for row in 0..call.c.rows {
            for col in 0..call.c.cols {
                let to = call.c.at(row, col);
                let mut sum = None;
                if adds {
                    sum = Some(self.float_at(t, to)?);
                }
                for first in (0..call.a.cols.max(1)).step_by(PART as usize) {
                    self.poll()?;
                    let mut part = 0.0;
                    for k in first..call.a.cols.min(first + PART) {
                        let (x, y) = (call.a.at(row, k), call.b.at(k, col));
                        part = self.float_at(t, x)?.mul_add(self.float_at(t, y)?, part);
                    }
                    sum = Some(sum.map_or(part, |sum| sum + part));
                }
                let sum = sum.unwrap_or_default();
                if let Place::Host(host) = self.place_at(t, Space::Generic, to, 4, true)? {
                    // SAFETY: `place_at` has checked the element, which is aligned.
                    unsafe { write(host, 4, u64::from(stored(sum))) };
                }
            }
        }
        Ok(())
    }

    fn float_at(&self, t: usize, address: u64) -> Result<f32, Stop> {
        let place = self.place_at(t, Space::Generic, address, 4, false)?;
        Ok(f32::from_bits(self.read_place(place, 0, 4) as u32))
    }
}
