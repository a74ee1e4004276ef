//! Guarded allocations: each ends where its mapping ends, so that an access behind it faults at once.
//!
//! Owns the list of freed allocations, whose addresses stay reserved and unmapped for a while, and the sentence that names
//! an allocation when a kernel has faulted. A driver tells no address, so each launch is waited for: the kernel that faulted
//! is known, and with it the allocations whose addresses it was given.

use std::collections::VecDeque;

use mica_gpu::{Gpu, GpuError, Launch};

use crate::books::Books;

/// What is told of a fault, to whom.
pub(crate) type Tell = Box<dyn Fn(&str) + Send + Sync>;

/// An allocation begins so that it ends less than this before an unmapped page: the widest access of a thread.
pub(crate) const ALIGN_BYTES: u64 = 16;
/// Freed allocations whose addresses are given to nobody.
const KEPT_FREED: usize = 4096;
/// Allocations that are named if no address is known.
const MOST_NAMED: usize = 4;

/// An allocation that was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreedOne {
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    /// Its reserved addresses.
    pub(crate) base: u64,
    pub(crate) reserved: u64,
}

/// Allocations that were freed last.
#[derive(Debug, Default)]
pub(crate) struct Freed(VecDeque<FreedOne>);

impl Freed {
    /// Keeps one; the oldest, if there are too many.
    pub(crate) fn keep(&mut self, one: FreedOne) -> Option<FreedOne> {
        self.0.push_back(one);
        (self.0.len() > KEPT_FREED)
            .then(|| self.0.pop_front())
            .flatten()
    }

    /// Lets the oldest go, for want of addresses.
    pub(crate) fn oldest(&mut self) -> Option<FreedOne> {
        self.0.pop_front()
    }

    /// All of them, at the end of the device.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = FreedOne> + '_ {
        self.0.drain(..)
    }
}

/// The allocation that an address belongs to or is nearest to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Near {
    at: u64,
    bytes: u64,
    is_freed: bool,
}

impl Near {
    /// Bytes from the last byte to the address, negative before the first; `None` inside.
    fn distance(&self, address: u64) -> Option<i128> {
        let (address, at) = (i128::from(address), i128::from(self.at));
        let end = at + i128::from(self.bytes);
        match address {
            _ if address < at => Some(address - at),
            _ if address >= end => Some(address - end + 1),
            _ => None,
        }
    }

    fn name(&self) -> String {
        let state = if self.is_freed { "freed " } else { "" };
        format!(
            "the {state}allocation of {} bytes at {:#x}",
            self.bytes, self.at
        )
    }

    fn sentence(&self, address: u64) -> String {
        let name = self.name();
        match self.distance(address) {
            None => format!("in {name}"),
            Some(before) if before < 0 => format!("{} bytes before {name}", -before),
            Some(past) if past > 1 => format!("{} bytes past the end of {name}", past - 1),
            Some(_) => format!("just past the end of {name}"),
        }
    }
}

impl Books {
    fn all_near(&self) -> impl Iterator<Item = Near> + '_ {
        let live = self.large.iter().map(|(at, large)| Near {
            at: *at,
            bytes: large.bytes,
            is_freed: false,
        });
        let freed = self.freed.0.iter().map(|one| Near {
            at: one.at,
            bytes: one.bytes,
            is_freed: true,
        });
        live.chain(freed)
    }

    /// What lies at or nearest to an address.
    fn nearest(&self, address: u64) -> Option<Near> {
        let far = |near: &Near| near.distance(address).map_or(0, i128::abs);
        self.all_near().min_by_key(far)
    }

    /// Allocations that begin at, or hold, an address that a kernel was given, in the order of its parameters.
    fn given(&self, params: &[u8]) -> Vec<Near> {
        let mut found: Vec<Near> = Vec::new();
        for word in params.chunks_exact(8) {
            let address = u64::from_le_bytes(word.try_into().unwrap_or_default());
            let holds = |near: &Near| address.wrapping_sub(near.at) < near.bytes;
            if let Some(near) = self.all_near().find(holds)
                && !found.contains(&near)
            {
                found.push(near);
            }
        }
        found
    }

    /// What is told of a kernel that faulted.
    pub(crate) fn blame(&self, kernel: &str, params: &[u8], error: &GpuError) -> String {
        let named =
            address_in(&error.message).and_then(|address| Some((address, self.nearest(address)?)));
        if let Some((address, near)) = named {
            return format!(
                "guard: {kernel} touched {address:#x}, {}",
                near.sentence(address)
            );
        }
        let given = self.given(params);
        let names: Vec<String> = given.iter().take(MOST_NAMED).map(Near::name).collect();
        let more = match given.len().saturating_sub(MOST_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        match names.is_empty() {
            true => format!(
                "guard: {kernel} touched memory that is not mapped, and was given no allocation"
            ),
            false => format!(
                "guard: {kernel} left the memory that it was given: {}{more}",
                names.join(", ")
            ),
        }
    }
}

/// The address in the sentence of a device that knows it: `… at 0x1234 …`.
fn address_in(message: &str) -> Option<u64> {
    let (_, rest) = message.split_once(" at 0x")?;
    let end = rest.find(|c: char| !c.is_ascii_hexdigit());
    u64::from_str_radix(&rest[..end.unwrap_or(rest.len())], 16).ok()
}

/// The name of a launch's kernel.
pub(crate) fn kernel_name(gpu: &dyn Gpu, launch: &Launch<'_>) -> String {
    let kernel = gpu.kernel_description(launch.module, launch.kernel);
    kernel.map_or_else(
        |_| "a kernel".to_owned(),
        |kernel| format!("kernel {}", kernel.name),
    )
}

#[cfg(test)]
mod tests {
    use mica_cuda_abi::CuResult;

    use super::*;
    use crate::books::Large;

    fn books() -> Books {
        let mut books = Books::default();
        for (at, bytes) in [(0x20_0f00, 256), (0x60_0000, 4096)] {
            let large = Large {
                bytes,
                reserved: 0x40_0000,
                lead: at % 0x20_0000,
                context: 1,
                frames: vec![],
            };
            books.large.insert(at, large);
        }
        books
    }

    fn blame(books: &Books, params: &[u64], message: &str) -> String {
        let params: Vec<u8> = params.iter().flat_map(|word| word.to_le_bytes()).collect();
        let error = GpuError::new(CuResult::IllegalAddress, message);
        books.blame("kernel k", &params, &error)
    }

    #[test]
    fn without_an_address_what_the_kernel_was_given_is_named() {
        let books = books();
        let told = blame(
            &books,
            &[7, 0x60_0010, 0x20_0f00, 0x60_0000],
            "cuStreamSynchronize",
        );
        assert_eq!(
            told,
            "guard: kernel k left the memory that it was given: the allocation of 4096 bytes at 0x600000, the \
             allocation of 256 bytes at 0x200f00"
        );
        let told = blame(&books, &[7, u64::MAX], "cuStreamSynchronize");
        assert!(told.ends_with("was given no allocation"), "{told}");
        assert_eq!(blame(&books, &[], ""), told);
    }

    #[test]
    fn distances_count_from_both_ends() {
        let books = books();
        let told =
            |address: u64| blame(&books, &[], &format!("invalid write at {address:#x} by x"));
        assert!(told(0x20_1000).contains(", just past the end of the allocation of 256 bytes"));
        assert!(told(0x20_1008).contains(", 8 bytes past the end"));
        assert!(told(0x20_0eff).contains(", 1 bytes before the allocation of 256 bytes"));
        assert!(told(0x60_0010).contains(", in the allocation of 4096 bytes"));
        assert!(told(u64::MAX).contains("past the end of the allocation of 4096 bytes"));
        assert_eq!(address_in("write at 0xzz"), None);
        assert_eq!(address_in("write at 0x11112222333344445"), None, "too long");
    }

    #[test]
    fn addresses_of_freed_memory_are_kept_so_many_times() {
        let mut freed = Freed::default();
        let one = |base| FreedOne {
            at: base,
            bytes: 1,
            base,
            reserved: 4,
        };
        for base in 0..KEPT_FREED as u64 {
            assert_eq!(freed.keep(one(base)), None);
        }
        assert_eq!(freed.keep(one(1 << 40)), Some(one(0)));
        assert_eq!(freed.drain().count(), KEPT_FREED);
    }
}
