//! Linear memory: `memory_alloc` and what the device allocates for a context.
//!
//! Up to 32 KiB comes from a chunk of 2 MiB that belongs to one context, in steps of 256 bytes;
//! more has pages of its own with a hole behind. Pages nobody uses are holes.

use mica_gpu::{Access, Result, Share};

use super::checked::{LARGE_ZONE, SMALL_ZONE};
use super::{Books, DeviceMemory, Kind, Live, Purpose};
use crate::arena::ranges::Ranges;
use crate::arena::{FRAME, PAGE};
use crate::error::{invalid_value, out_of_memory};

const STEP: u64 = 256;
const SMALL: u64 = 32 << 10;
const CHUNK: u64 = FRAME;
/// Every hole costs a kernel mapping and the system allows 65 530: past this many ranges, large
/// allocations lie side by side.
const MOST_GUARDED: usize = 16_000;

/// 2 MiB of one context's small allocations.
#[derive(Debug)]
pub(super) struct Chunk {
    owner: u64,
    free: Ranges,
    /// Allocations that touch each page.
    users: Vec<u16>,
}

impl DeviceMemory {
    /// Bytes that [`DeviceMemory::alloc`] takes for a request besides what it charges itself; `None` if there are
    /// not so many. Small pieces share pages, and a page stays as long as one of them: so pages are charged, when
    /// they come and go, and not pieces.
    pub(crate) fn taken_bytes(&self, bytes: u64) -> Option<u64> {
        match bytes <= SMALL {
            true if self.budget().is_some() => Some(0),
            true => bytes.checked_next_multiple_of(STEP),
            false => bytes.checked_next_multiple_of(PAGE),
        }
    }

    /// Bytes behind a small allocation that nobody gets.
    fn zone(&self) -> u64 {
        match self.checked {
            Some(_) => SMALL_ZONE,
            None => 0,
        }
    }

    /// Memory for `owner`, 256-byte aligned.
    pub(crate) fn alloc(&self, owner: u64, bytes: u64, purpose: Purpose) -> Result<u64> {
        self.alloc_where(owner, bytes, purpose, None)
    }

    /// Memory that the device holds for `owner`, where memory of an earlier device of this address space was.
    pub(crate) fn alloc_internal_at(&self, owner: u64, bytes: u64, wanted: u64) -> Result<u64> {
        self.alloc_where(owner, bytes, Purpose::Internal, Some(wanted))
    }

    fn alloc_where(
        &self,
        owner: u64,
        bytes: u64,
        purpose: Purpose,
        wanted: Option<u64>,
    ) -> Result<u64> {
        if bytes == 0 {
            return Err(invalid_value("an allocation of 0 bytes"));
        }
        if bytes > self.total {
            return Err(out_of_memory(format!(
                "{bytes} bytes asked for, the device has {}",
                self.total
            )));
        }
        // Charged without the books: whoever grants it may have to be asked.
        let pages = match bytes <= SMALL {
            true => self.charge_device(most_pages(bytes + self.zone()) * PAGE)?,
            false => None,
        };
        let mut books = self.books();
        let at = if bytes <= SMALL {
            self.alloc_small(&mut books, owner, bytes, pages, wanted)?
        } else {
            self.alloc_large(&mut books, owner, bytes, wanted)?
        };
        self.note_new(at, bytes, purpose == Purpose::Internal);
        if purpose == Purpose::Internal
            && let Some(live) = books.live.get_mut(&at)
        {
            live.owner = Some(internal(owner));
            if bytes <= SMALL {
                // A piece of a page that was used before; variables begin as zeros.
                // SAFETY: just mapped and given to nobody else.
                unsafe { std::ptr::write_bytes(at as *mut u8, 0, bytes as usize) };
            }
        }
        Ok(at)
    }

    fn alloc_large(
        &self,
        books: &mut Books,
        owner: u64,
        bytes: u64,
        wanted: Option<u64>,
    ) -> Result<u64> {
        let huge = bytes >= FRAME;
        let mapped = bytes.next_multiple_of(PAGE);
        let guard = if self.checked.is_some() {
            LARGE_ZONE
        } else if books.live.len() < MOST_GUARDED {
            PAGE
        } else {
            0
        };
        let reserved = mapped + guard;
        books.charge(mapped, self.total)?;
        let taken = match wanted {
            None => self.take_addresses(books, reserved, if huge { FRAME } else { PAGE }),
            Some(at) => {
                (at.is_multiple_of(PAGE) && books.space.take_at(at, reserved)).then_some(at)
            }
        };
        let placed = taken
            .ok_or_else(|| out_of_memory(format!("no address space for {bytes} bytes")))
            .and_then(|at| match self.arena.map_zero(at, mapped, huge) {
                Ok(()) => Ok(at),
                Err(error) => {
                    books.space.give(at, reserved);
                    Err(error)
                }
            });
        match placed {
            Ok(at) => {
                books.live.insert(
                    at,
                    Live {
                        bytes,
                        owner: Some(owner),
                        kind: Kind::Large { mapped, reserved },
                        access: Access::ReadWrite,
                    },
                );
                Ok(at)
            }
            Err(error) => {
                books.discharge(mapped);
                Err(error)
            }
        }
    }

    fn alloc_small(
        &self,
        books: &mut Books,
        owner: u64,
        bytes: u64,
        pages: Option<Share>,
        wanted: Option<u64>,
    ) -> Result<u64> {
        let taken = bytes.next_multiple_of(STEP) + self.zone();
        books.charge(taken, self.total)?;
        let result = self.place_small(books, owner, taken, wanted);
        match result {
            Ok((chunk, at, new_pages)) => {
                books.keep_pages(pages, new_pages);
                books.live.insert(
                    at,
                    Live {
                        bytes,
                        owner: Some(owner),
                        kind: Kind::Small { chunk, taken },
                        access: Access::ReadWrite,
                    },
                );
                Ok(at)
            }
            Err(error) => {
                books.discharge(taken);
                Err(error)
            }
        }
    }

    /// Gives the chunk, the address, and how many pages it took.
    fn place_small(
        &self,
        books: &mut Books,
        owner: u64,
        taken: u64,
        wanted: Option<u64>,
    ) -> Result<(u64, u64, u64)> {
        let (base, at) = match wanted {
            None => self.find_small(books, owner, taken)?,
            Some(at) => find_small_at(books, owner, taken, at)?,
        };
        let Some(chunk) = books.chunks.get_mut(&base) else {
            return Err(invalid_value("a chunk vanished"));
        };
        let mut new_pages = 0;
        for page in pages(base, at, taken) {
            chunk.users[page] += 1;
            if chunk.users[page] == 1 {
                new_pages += 1;
                let address = base + page as u64 * PAGE;
                if let Err(error) = self.arena.map_zero(address, PAGE, false) {
                    for page in pages(base, at, taken).take_while(|p| *p <= page) {
                        chunk.users[page] -= 1;
                    }
                    chunk.free.give(at, taken);
                    return Err(error);
                }
            }
        }
        Ok((base, at, new_pages))
    }

    /// Takes a piece of a chunk of this owner; the chunk and the piece.
    fn find_small(&self, books: &mut Books, owner: u64, taken: u64) -> Result<(u64, u64)> {
        let existing = books
            .chunks
            .iter_mut()
            .filter(|(_, chunk)| chunk.owner == owner)
            .find_map(|(&base, chunk)| Some((base, chunk.free.take_lowest(taken, STEP)?)));
        if let Some(found) = existing {
            return Ok(found);
        }
        let base = self
            .take_addresses(books, CHUNK + PAGE, CHUNK)
            .ok_or_else(|| out_of_memory("no address space for small allocations"))?;
        let mut chunk = Chunk::new(owner, base);
        let at = chunk.free.take_lowest(taken, STEP).unwrap_or(base);
        books.chunks.insert(base, chunk);
        Ok((base, at))
    }

    /// Frees what [`DeviceMemory::alloc`] gave a program.
    pub(crate) fn free(&self, owner: u64, address: u64) -> Result<u64> {
        let (_pins, mut books) = self.books_to_unmap();
        let live = books.live.get(&address).copied();
        match live {
            Some(live)
                if live.owner == Some(owner)
                    && matches!(
                        live.kind,
                        Kind::Small { .. }
                            | Kind::Large { .. }
                            | Kind::Shared { .. }
                            | Kind::Exported { .. }
                    ) =>
            {
                self.drop_range(&mut books, address, live);
                Ok(live.bytes)
            }
            _ => Err(invalid_value(format!(
                "{address:#x} is not the start of an allocation of this context"
            ))),
        }
    }

    /// Frees what the device allocated for a context.
    pub(crate) fn free_internal(&self, owner: u64, address: u64) {
        let (_pins, mut books) = self.books_to_unmap();
        if let Some(live) = books.live.get(&address).copied()
            && live.owner == Some(internal(owner))
        {
            self.drop_range(&mut books, address, live);
        }
    }

    /// Frees everything a context holds.
    pub(crate) fn free_all(&self, owner: u64) {
        let (_pins, mut books) = self.books_to_unmap();
        let mine: Vec<(u64, Live)> = books
            .live
            .iter()
            .filter(|(_, live)| live.owner == Some(owner) || live.owner == Some(internal(owner)))
            .map(|(&at, &live)| (at, live))
            .collect();
        for (at, live) in mine {
            self.drop_range(&mut books, at, live);
        }
        self.release_parked_of(&mut books, |live| {
            live.owner == Some(owner) || live.owner == Some(internal(owner))
        });
    }

    pub(super) fn drop_range(&self, books: &mut Books, address: u64, live: Live) {
        books.live.remove(&address);
        if self.park(books, address, live) {
            return;
        }
        match live.kind {
            Kind::Small { chunk, taken } => self.drop_small(books, chunk, address, taken),
            Kind::Large { mapped, reserved } | Kind::Exported { mapped, reserved } => {
                books.exports.remove(&address);
                books.discharge(mapped);
                // Address space whose pages could not be dropped is never handed out again.
                match self.arena.unmap(address, mapped) {
                    Ok(()) => books.space.give(address, reserved),
                    Err(error) => {
                        // Exported pages are others' too.
                        if matches!(live.kind, Kind::Large { .. }) {
                            self.arena.scrub(address, mapped);
                        }
                        tracing::warn!(%error, address, "freed memory stays mapped, but empty");
                    }
                }
            }
            Kind::Registered { pages, mapped } => match self.arena.unmap(pages, mapped) {
                Ok(()) => books.space.give(pages, mapped),
                Err(error) => tracing::warn!(%error, address, "registered memory stays mapped"),
            },
            Kind::Shared { .. } => self.drop_shared(books, address, live.kind),
            Kind::Frame { .. } => {}
        }
    }

    pub(super) fn drop_small(&self, books: &mut Books, base: u64, address: u64, taken: u64) {
        books.discharge(taken);
        let Some(chunk) = books.chunks.get_mut(&base) else {
            return;
        };
        chunk.free.give(address, taken);
        let last = |page: &usize| chunk.users[*page] == 1;
        let gone = pages(base, address, taken).filter(last).count();
        if let Some(share) = &mut books.pages {
            // To give back never fails.
            let left = share.bytes().saturating_sub(gone as u64 * PAGE);
            let _ = share.resize(left, "pages");
        }
        if chunk.free.is_all_free(base, CHUNK) {
            books.chunks.remove(&base);
            match self.arena.unmap(base, CHUNK) {
                Ok(()) => books.space.give(base, CHUNK + PAGE),
                Err(error) => tracing::warn!(%error, base, "a freed chunk stays mapped"),
            }
            return;
        }
        for page in pages(base, address, taken) {
            chunk.users[page] -= 1;
            if chunk.users[page] == 0
                && let Err(error) = self.arena.unmap(base + page as u64 * PAGE, PAGE)
            {
                // Too many mappings: the page stays readable to its own context, but not its
                // contents.
                tracing::debug!(%error, "a freed page stays mapped");
                self.arena.scrub(base + page as u64 * PAGE, PAGE);
            }
        }
    }
}

impl Books {
    /// Keeps what was charged for the pages that are new, and gives the rest back.
    fn keep_pages(&mut self, charged: Option<Share>, new_pages: u64) {
        let Some(mut charged) = charged else {
            return;
        };
        let _ = charged.resize(new_pages * PAGE, "pages");
        match &mut self.pages {
            Some(share) => share.absorb(charged),
            None => self.pages = Some(charged),
        }
    }
}

impl Chunk {
    fn new(owner: u64, base: u64) -> Self {
        Self {
            owner,
            free: Ranges::new(base, CHUNK),
            users: vec![0; (CHUNK / PAGE) as usize],
        }
    }
}

/// Takes a piece at one place, in the chunk of this owner that is there or in a new one; the chunk and the piece. A chunk
/// begins at a multiple of its size, so a piece tells its chunk.
fn find_small_at(books: &mut Books, owner: u64, taken: u64, at: u64) -> Result<(u64, u64)> {
    let refused = || out_of_memory(format!("{taken} bytes of memory at {at:#x} are not free"));
    let base = at - at % CHUNK;
    if !at.is_multiple_of(STEP) {
        return Err(refused());
    }
    if !books.chunks.contains_key(&base) {
        if !books.space.take_at(base, CHUNK + PAGE) {
            return Err(refused());
        }
        books.chunks.insert(base, Chunk::new(owner, base));
    }
    let chunk = books.chunks.get_mut(&base);
    let mut chunk = chunk.filter(|chunk| chunk.owner == owner);
    let is_taken = (chunk.as_mut()).is_some_and(|chunk| chunk.free.take_at(at, taken));
    is_taken.then_some((base, at)).ok_or_else(refused)
}

/// Most pages that a small piece touches.
fn most_pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE) + 1
}

/// Indexes of the pages of the chunk at `base` that the bytes touch.
fn pages(base: u64, at: u64, bytes: u64) -> std::ops::RangeInclusive<usize> {
    let first = (at - base) / PAGE;
    let last = (at + bytes - 1 - base) / PAGE;
    first as usize..=last as usize
}

/// The owner that stands for what the device allocated on a context's behalf.
fn internal(owner: u64) -> u64 {
    owner | 1 << 63
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> DeviceMemory {
        DeviceMemory::new(64 << 20, 1 << 30).unwrap()
    }

    #[test]
    fn small_allocations_share_pages_and_give_them_back() {
        let memory = memory();
        let a = memory.alloc(1, 100, Purpose::Program).unwrap();
        let b = memory.alloc(1, 100, Purpose::Program).unwrap();
        assert_eq!(a % 256, 0);
        assert_eq!(a / PAGE, b / PAGE);
        let mut byte = [0; 1];
        assert!(memory.read(b, &mut byte).is_some());
        memory.free(1, a).unwrap();
        assert!(memory.read(a, &mut byte).is_some(), "the page is still b's");
        memory.free(1, b).unwrap();
        assert!(memory.read(b, &mut byte).is_none());
        assert_eq!(memory.info().0, 64 << 20);
    }

    #[test]
    fn contexts_never_share_a_page() {
        let memory = memory();
        let a = memory.alloc(1, 100, Purpose::Program).unwrap();
        let b = memory.alloc(2, 100, Purpose::Program).unwrap();
        assert_ne!(a / CHUNK, b / CHUNK);
        assert!(memory.free(1, b).is_err());
        assert!(memory.range(1, b).is_err());
        memory.free_all(2);
        assert!(memory.range(2, b).is_err());
        assert_eq!(memory.range(1, a + 99).unwrap(), (a, 100));
        assert!(memory.range(1, a + 100).is_err());
    }

    #[test]
    fn the_total_is_a_limit_and_freeing_lifts_it() {
        let memory = memory();
        let a = memory.alloc(1, 40 << 20, Purpose::Program).unwrap();
        let error = memory.alloc(1, 40 << 20, Purpose::Program).unwrap_err();
        assert_eq!(error.code, mica_cuda_abi::CuResult::OutOfMemory);
        memory.free(1, a).unwrap();
        memory.alloc(1, 40 << 20, Purpose::Program).unwrap();
    }

    #[test]
    fn recycled_memory_reads_as_zeros() {
        let memory = memory();
        for bytes in [4096_u64, 3 << 20] {
            for round in 0..4 {
                let at = memory.alloc(1, bytes, Purpose::Program).unwrap();
                let mut seen = vec![1; bytes as usize];
                memory.read(at, &mut seen).unwrap();
                assert!(seen.iter().all(|b| *b == 0), "round {round}");
                // SAFETY: just allocated, `bytes` long.
                unsafe { std::ptr::write_bytes(at as *mut u8, 0xff, bytes as usize) };
                memory.free(1, at).unwrap();
            }
        }
    }

    #[test]
    fn what_the_device_holds_can_be_put_where_it_was_and_nowhere_that_is_taken() {
        let memory = memory();
        let (small, large) = (100, 3 << 20);
        let at =
            [small, small, large].map(|bytes| memory.alloc(1, bytes, Purpose::Internal).unwrap());
        let again = |owner, index: usize| {
            let bytes = [small, small, large][index];
            memory.alloc_internal_at(owner, bytes, at[index])
        };
        for (index, address) in at.into_iter().enumerate() {
            assert!(again(1, index).is_err(), "{index} is there");
            memory.free_internal(1, address);
            assert!(
                index > 0 || again(2, index).is_err(),
                "another context's chunk"
            );
            assert_eq!(again(1, index), Ok(address));
        }
        assert!(memory.alloc_internal_at(1, 100, at[0] + 8).is_err());
        assert!(memory.alloc_internal_at(1, 100, u64::MAX - 255).is_err());
        (at.iter()).for_each(|at| memory.free_internal(1, *at));
        assert_eq!(memory.info().0, 64 << 20);
        // A chunk that was given back is made again for its piece.
        assert_eq!(again(2, 1), Ok(at[1]));
    }

    #[test]
    fn what_the_device_holds_cannot_be_freed_by_address() {
        let memory = memory();
        let at = memory.alloc(1, 4096, Purpose::Internal).unwrap();
        assert!(memory.free(1, at).is_err());
        memory.free_internal(1, at);
        assert_eq!(memory.info().0, 64 << 20);
    }
}
