//! The addresses that a program has its own memory at, kept free in this process.
//!
//! On an NVIDIA GPU device addresses are this process's. A program that uses them must not have anything of its own
//! there (`cudaMemcpyDefault` tells by the address which side is meant), and host memory that both sides use must
//! have the program's own address. So the places where systems put mappings and heaps of programs are reserved before
//! the driver is loaded, without memory. Host memory of the program replaces a part of a reservation while it is
//! registered ([`map`]); nothing outside of the reservations is ever replaced, whatever address a program names.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock};

use crate::lock;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

const PAGE: u64 = 4096;
/// Systems hand out addresses downwards from a place that differs by at most a tebibyte from process to process: what
/// lies several below it meets nothing of a program. It is the same in all workers, so the driver's own mappings, which come
/// right below, are too: a worker that goes on with the session of another one has variables of modules where that had them.
const FLOOR: u64 = 0x7000_0000_0000;
/// Sizes in which what is left above is taken, and how many of each at most.
const LEFT_BYTES: [usize; 3] = [1 << 30, 64 << 20, 2 << 20];
const MOST_LEFT: usize = 64;
/// End of the addresses that a process can have.
const TOP: u64 = (1 << 47) - PAGE;
/// Where position-independent programs and their heaps lie: two thirds up, and at most a tebibyte above that.
const HEAPS: Range<u64> = 0x5555_5555_4000..0x5555_5555_4000 + (1 << 40) + (64 << 30);
/// What is left free for this process's own heap and stack to grow.
const GROWTH_BYTES: u64 = 16 << 30;
/// Smaller gaps between mappings are left alone.
const LEAST_GAP_BYTES: u64 = 1 << 20;

static RESERVED: OnceLock<Reserved> = OnceLock::new();

/// Reserves the addresses of programs, once. No memory is taken; what the system refuses stays as it was.
pub(crate) fn reserve() {
    RESERVED.get_or_init(|| {
        let mut reserved = Reserved::default();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        for gap in gaps(&maps, &[HEAPS, FLOOR..TOP]) {
            match reserve_at(&gap, MapFlags::FIXED_NOREPLACE) {
                Ok(()) => reserved.add(gap),
                Err(error) => {
                    tracing::warn!("device addresses may equal addresses of programs: {error}");
                }
            }
        }
        LEFT_BYTES.into_iter().for_each(take_left);
        reserved
    });
}

/// Takes pieces of the room that the stack has been left, where the system would put mappings before it goes below.
fn take_left(bytes: usize) {
    for _ in 0..MOST_LEFT {
        // SAFETY: no address is given, so nothing that exists is replaced; nobody can touch what is mapped.
        let Ok(start) = (unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, NOBODY, LAZY) })
        else {
            return;
        };
        if (start as u64) < FLOOR {
            // SAFETY: mapped above, and nobody knows of it.
            let _ = unsafe { munmap(start, bytes) };
            return;
        }
    }
}

/// Maps host memory of a program at the program's own address, if that lies in a reservation and nothing else of the
/// program is there; `None` else, and where nothing is reserved.
pub(crate) fn map(fd: impl AsFd, offset: u64, bytes: u64, wanted: u64) -> Option<Placed> {
    if wanted == 0 {
        return None;
    }
    let placed = RESERVED.get()?.map(fd, offset, bytes, wanted);
    if placed.is_none() {
        tracing::info!(
            wanted = format_args!("{wanted:#x}"),
            bytes,
            "host memory of the program has another address here"
        );
    }
    placed
}

const NOBODY: ProtFlags = ProtFlags::empty();
const LAZY: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

/// Reserves a range: one that nobody has, or (with `FIXED`) one that is this module's own.
fn reserve_at(range: &Range<u64>, fixed: MapFlags) -> Result<(), Errno> {
    let len = (range.end - range.start) as usize;
    // SAFETY: the range is free, or the kernel refuses it, or it is ours and unused.
    unsafe { mmap_anonymous(range.start as *mut c_void, len, NOBODY, LAZY | fixed) }.map(drop)
}

/// Reservations, and which parts of them hold a program's memory.
#[derive(Debug, Default)]
struct Reserved {
    ranges: Vec<Range<u64>>,
    /// First address and end of each part.
    taken: Arc<Mutex<BTreeMap<u64, u64>>>,
}

impl Reserved {
    /// Adds a range; neighbours become one, so that memory may lie across them.
    fn add(&mut self, range: Range<u64>) {
        match self
            .ranges
            .iter_mut()
            .find(|known| known.end == range.start)
        {
            Some(known) => known.end = range.end,
            None => self.ranges.push(range),
        }
    }

    fn map(&self, fd: impl AsFd, offset: u64, bytes: u64, wanted: u64) -> Option<Placed> {
        let end = wanted.checked_add(bytes)?;
        if bytes == 0 || !wanted.is_multiple_of(PAGE) || !bytes.is_multiple_of(PAGE) {
            return None;
        }
        let holds = |range: &Range<u64>| range.start <= wanted && end <= range.end;
        if !self.ranges.iter().any(holds) {
            return None;
        }
        let mut taken = lock(&self.taken);
        if taken
            .range(..end)
            .next_back()
            .is_some_and(|(_, to)| *to > wanted)
        {
            return None;
        }
        let (protection, flags) = (
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::FIXED,
        );
        // SAFETY: the range is reserved by us and nothing is in it.
        unsafe {
            mmap(
                wanted as *mut c_void,
                bytes as usize,
                protection,
                flags,
                fd,
                offset,
            )
        }
        .ok()?;
        taken.insert(wanted, end);
        let taken = Arc::clone(&self.taken);
        Some(Placed {
            range: wanted..end,
            taken,
        })
    }
}

/// Host memory of a program at the program's own address; reserved again when dropped.
#[derive(Debug)]
pub(crate) struct Placed {
    range: Range<u64>,
    taken: Arc<Mutex<BTreeMap<u64, u64>>>,
}

impl Placed {
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.range.start as *mut u8
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        match reserve_at(&self.range, MapFlags::FIXED) {
            Ok(()) => drop(taken.remove(&self.range.start)),
            Err(error) => {
                // The part stays taken: whatever is mapped there next is not ours to replace.
                tracing::warn!("addresses of a program are not reserved any more: {error}");
                let len = (self.range.end - self.range.start) as usize;
                // SAFETY: mapped by `Reserved::map`, and nobody uses it any more.
                let _ = unsafe { munmap(self.range.start as *mut c_void, len) };
            }
        }
    }
}

/// The gaps between the mappings of `/proc/self/maps` that lie within some ranges, but for what heap and stack need to
/// grow.
fn gaps(maps: &str, within: &[Range<u64>]) -> Vec<Range<u64>> {
    let mapping = |line: &str| {
        let (range, _) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let name = match line.rsplit(' ').next()? {
            "[heap]" => Name::Heap,
            "[stack]" => Name::Stack,
            _ => Name::Other,
        };
        Some((number(from)?..number(to)?, name))
    };
    let mut found = Vec::new();
    let mut free = 0;
    let end = (TOP..TOP, Name::Other);
    for (range, name) in maps.lines().filter_map(mapping).chain([end]) {
        let upto = match name {
            Name::Stack => range.start.saturating_sub(GROWTH_BYTES),
            _ => range.start,
        };
        for wanted in within {
            let gap = free.max(wanted.start)..upto.min(wanted.end);
            if gap.end.saturating_sub(gap.start) >= LEAST_GAP_BYTES {
                found.push(gap);
            }
        }
        free = match name {
            Name::Heap => range.end.saturating_add(GROWTH_BYTES),
            _ => range.end.max(free),
        };
    }
    found
}

/// Mappings that grow.
enum Name {
    Heap,
    Stack,
    Other,
}

#[cfg(test)]
mod tests {
    use mica_wire::session::create_sealed;

    use super::*;

    /// A reservation of some pages, of which the test gives back nothing: no other test may get them.
    fn reserved(pages: u64) -> (Reserved, u64) {
        let len = (pages * PAGE) as usize;
        // SAFETY: no address is given.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, NOBODY, LAZY) };
        let start = start.unwrap() as u64;
        let mut reserved = Reserved::default();
        reserved.add(start..start + pages * PAGE);
        (reserved, start)
    }

    fn rights_at(address: u64) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let holds = |line: &&str| {
            let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let [from, to] = [from, to].map(|text| u64::from_str_radix(text, 16).unwrap());
            (from..to).contains(&address)
        };
        let line = maps.lines().find(holds).unwrap_or_default();
        line.split_ascii_whitespace()
            .nth(1)
            .unwrap_or("none")
            .into()
    }

    #[test]
    fn memory_has_the_wanted_address_and_leaves_a_reservation_behind() {
        let (reserved, start) = reserved(8);
        let fd = create_sealed("test", 4 * PAGE).unwrap();
        let wanted = start + 2 * PAGE;
        let placed = reserved.map(&fd, PAGE, 2 * PAGE, wanted).unwrap();
        assert_eq!(placed.as_ptr() as u64, wanted);
        // SAFETY: mapped above.
        unsafe { placed.as_ptr().write(7) };
        let mut byte = [0];
        rustix::io::pread(&fd, &mut byte, PAGE).unwrap();
        assert_eq!((byte[0], rights_at(wanted).as_str()), (7, "rw-s"));
        drop(placed);
        assert_eq!(rights_at(wanted), "---p");
        assert!(reserved.map(&fd, 0, 2 * PAGE, wanted).is_some());
    }

    #[test]
    fn addresses_outside_of_reservations_or_taken_are_refused() {
        let (reserved, start) = reserved(8);
        let fd = create_sealed("test", 16 * PAGE).unwrap();
        let try_at = |wanted: u64, bytes: u64| reserved.map(&fd, 0, bytes, wanted).is_some();
        let local = 0_u64;
        let own = std::ptr::from_ref(&local) as u64 & !(PAGE - 1);
        for (wanted, bytes) in [
            (own, PAGE),
            (start - PAGE, 2 * PAGE),
            (start + 7 * PAGE, 2 * PAGE),
            (start + 1, PAGE),
            (start, 0),
            (start, 100),
            (u64::MAX - PAGE + 1, PAGE),
            (u64::MAX, u64::MAX),
        ] {
            assert!(!try_at(wanted, bytes), "{wanted:#x} {bytes:#x}");
        }
        let _held = reserved.map(&fd, 0, 2 * PAGE, start + 2 * PAGE).unwrap();
        for first in 1..4 {
            assert!(!try_at(start + first * PAGE, 2 * PAGE), "page {first}");
        }
        assert!(!try_at(start, 8 * PAGE));
        assert!(try_at(start, 2 * PAGE) && try_at(start + 4 * PAGE, 4 * PAGE));
    }

    #[test]
    fn gaps_leave_room_for_heap_and_stack() {
        let maps = "\
555555554000-555555560000 r-xp 00000000 00:00 1    /usr/bin/mica
555560000000-555560100000 rw-p 00000000 00:00 0    [heap]
7f0000000000-7f8000000000 ---p 00000000 00:00 0
7f8000000000-7f8000010000 r--p 00000000 00:00 2    /usr/lib/libc.so.6
7fff00000000-7fff00021000 rw-p 00000000 00:00 0    [stack]
7fff00100000-7fff00101000 r-xp 00000000 00:00 0    [vdso]
";
        let found = gaps(maps, &[HEAPS, 0x7f00_0000_0000..TOP]);
        let heap_end = 0x5555_6010_0000 + GROWTH_BYTES;
        assert_eq!(
            found,
            [
                0x5555_5556_0000..0x5555_6000_0000,
                heap_end..HEAPS.end,
                0x7f80_0001_0000..0x7fff_0000_0000 - GROWTH_BYTES,
                0x7fff_0010_1000..TOP,
            ]
        );
        assert!(gaps("nonsense", &[]).is_empty());
    }

    #[test]
    fn this_process_keeps_working_with_its_gaps_reserved() {
        reserve();
        let (fd, wanted) = (create_sealed("test", PAGE).unwrap(), HEAPS.start);
        let ranges = &RESERVED.get().unwrap().ranges;
        assert!(
            ranges
                .iter()
                .any(|range| range.end > HEAPS.start && range.start < HEAPS.end)
        );
        let free = ranges
            .iter()
            .map(|range| range.start)
            .max()
            .unwrap_or(wanted);
        assert!(map(&fd, 0, PAGE, free).is_some());
        let grown: Vec<Vec<u8>> = (0..64).map(|_| vec![1; 1 << 20]).collect();
        assert_eq!(grown.iter().map(|part| part[0] as usize).sum::<usize>(), 64);
        let other = std::thread::spawn(|| 1 + 1);
        assert_eq!(other.join().unwrap(), 2);
    }
}
