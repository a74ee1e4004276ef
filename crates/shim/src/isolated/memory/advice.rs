//! Hints about managed memory: kept and told, as a driver tells them.
//!
//! Managed memory is in one place that both sides see, so nothing moves; but a program may ask what it
//! has advised, and where it has asked memory to be prefetched to.

use std::sync::Mutex;

use mica_cuda_abi::{Handle, MemLocation, RangeAttribute};

use super::AllocationKind;
use crate::isolated::state::{State, state};
use crate::isolated::streams::resolve;
use crate::isolated::support::{Answer, driver, entries, get, invalid, lock, stream_entries};

/// No place, as a device's number.
const NOWHERE: i32 = -2;
const HOST: i32 = -1;

/// What is known of a range. Places are numbers of devices, with those two beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Advice {
    read_mostly: bool,
    preferred: i32,
    accessed_by_device: bool,
    accessed_by_host: bool,
    prefetched: i32,
}

impl Advice {
    const NONE: Self = Self {
        read_mostly: false,
        preferred: NOWHERE,
        accessed_by_device: false,
        accessed_by_host: false,
        prefetched: NOWHERE,
    };
}

/// A range of one allocation.
#[derive(Clone, Copy)]
struct Part {
    allocation: u64,
    start: u64,
    end: u64,
    advice: Advice,
}

static PARTS: Mutex<Vec<Part>> = Mutex::new(Vec::new());

/// Changes what is known of a range; parts of it that nothing was said about begin with none.
fn change(parts: &mut Vec<Part>, range: Range, change: impl Fn(&mut Advice)) {
    let mut told = Vec::new();
    let mut next = Vec::with_capacity(parts.len() + 2);
    for part in parts.drain(..) {
        // An older allocation at these addresses is gone.
        let overlaps = part.start < range.end && range.start < part.end;
        if part.allocation != range.allocation {
            if !overlaps {
                next.push(part);
            }
            continue;
        }
        if !overlaps {
            next.push(part);
            continue;
        }
        let (start, end) = (part.start.max(range.start), part.end.min(range.end));
        if part.start < start {
            next.push(Part { end: start, ..part });
        }
        if end < part.end {
            next.push(Part { start: end, ..part });
        }
        told.push(Part { start, end, ..part });
    }
    told.sort_by_key(|part| part.start);
    let mut at = range.start;
    let mut all = Vec::new();
    let fresh = |start, end| Part {
        allocation: range.allocation,
        start,
        end,
        advice: Advice::NONE,
    };
    for part in told {
        if at < part.start {
            all.push(fresh(at, part.start));
        }
        at = part.end;
        all.push(part);
    }
    if at < range.end {
        all.push(fresh(at, range.end));
    }
    for mut part in all {
        change(&mut part.advice);
        next.push(part);
    }
    *parts = next;
}

/// What is known of all of a range: a value that differs within it counts as none.
fn known(parts: &[Part], range: Range) -> Advice {
    let mut inside: Vec<&Part> = parts
        .iter()
        .filter(|part| part.allocation == range.allocation)
        .filter(|part| part.start < range.end && range.start < part.end)
        .collect();
    inside.sort_by_key(|part| part.start);
    let covered: u64 = inside
        .iter()
        .map(|part| part.end.min(range.end) - part.start.max(range.start))
        .sum();
    let mut values: Vec<Advice> = inside.iter().map(|part| part.advice).collect();
    if covered < range.end - range.start {
        values.push(Advice::NONE);
    }
    let place = |of: fn(&Advice) -> i32| {
        let first = values.first().map_or(NOWHERE, of);
        match values.iter().all(|value| of(value) == first) {
            true => first,
            false => NOWHERE,
        }
    };
    Advice {
        read_mostly: values.iter().all(|value| value.read_mostly),
        preferred: place(|value| value.preferred),
        accessed_by_device: values.iter().all(|value| value.accessed_by_device),
        accessed_by_host: values.iter().all(|value| value.accessed_by_host),
        prefetched: place(|value| value.prefetched),
    }
}

/// Addresses of one allocation.
#[derive(Clone, Copy)]
struct Range {
    allocation: u64,
    start: u64,
    end: u64,
}

fn is_managed(kind: AllocationKind) -> bool {
    matches!(
        kind,
        AllocationKind::Managed | AllocationKind::ManagedGlobal
    )
}

fn managed(state: &State, address: u64, bytes: usize) -> Answer<Range> {
    match state.memory.find(address) {
        Some(found) if is_managed(found.kind) => {
            match bytes > 0 && bytes as u64 <= found.bytes - (address - found.device) {
                true => Ok(Range {
                    allocation: found.id,
                    start: address,
                    end: address + bytes as u64,
                }),
                false => invalid(),
            }
        }
        _ => invalid(),
    }
}

/// A location as the number of a device.
fn place_of(location: MemLocation) -> Answer<i32> {
    match (location.kind, location.id) {
        (MemLocation::DEVICE, 0) => Ok(0),
        (MemLocation::DEVICE, _) => Err(mica_cuda_abi::CuResult::InvalidDevice.into()),
        // The host, a node of it, the nearest node.
        (2..=4, _) => Ok(HOST),
        _ => invalid(),
    }
}

fn check_place(device: i32) -> Answer<i32> {
    match device {
        0 | HOST => Ok(device),
        _ => Err(mica_cuda_abi::CuResult::InvalidDevice.into()),
    }
}

fn prefetch_to(state: &State, address: u64, bytes: usize, place: i32) -> Answer {
    let range = managed(state, address, bytes)?;
    change(&mut lock(&PARTS), range, |advice| advice.prefetched = place);
    Ok(())
}

fn advise_range(address: u64, bytes: usize, what: u32, place: Answer<i32>) -> Answer {
    let range = managed(state()?, address, bytes)?;
    // Where it is read from does not matter to memory that is mostly read.
    use mica_cuda_abi::Advice::*;
    let what = mica_cuda_abi::Advice::from_number(what);
    let place = match what {
        Some(SetReadMostly | UnsetReadMostly | UnsetPreferredLocation) => HOST,
        _ => place?,
    };
    let is_set = what == Some(SetAccessedBy);
    let apply: &dyn Fn(&mut Advice) = match what {
        Some(SetReadMostly) => &|advice| advice.read_mostly = true,
        Some(UnsetReadMostly) => &|advice| advice.read_mostly = false,
        Some(SetPreferredLocation) => &|advice| advice.preferred = place,
        Some(UnsetPreferredLocation) => &|advice| advice.preferred = NOWHERE,
        Some(SetAccessedBy | UnsetAccessedBy) => &|advice| match place {
            HOST => advice.accessed_by_host = is_set,
            _ => advice.accessed_by_device = is_set,
        },
        None => return invalid(),
    };
    change(&mut lock(&PARTS), range, apply);
    Ok(())
}

/// The numbers that answer a question about a range: one, or a list that fills the room there is.
fn answer(attribute: RangeAttribute, range: Range, room: usize) -> Answer<Vec<i32>> {
    let advice = known(&lock(&PARTS), range);
    let kind = |place: i32| match place {
        0 => 1,
        HOST => 2,
        _ => 0,
    };
    let number = |place: i32| place.max(0);
    use RangeAttribute::*;
    Ok(vec![match attribute {
        ReadMostly => i32::from(advice.read_mostly),
        PreferredLocation => advice.preferred,
        AccessedBy => {
            let mut list = vec![NOWHERE; room];
            let by = [
                (advice.accessed_by_device, 0),
                (advice.accessed_by_host, HOST),
            ];
            let given = by.iter().filter(|(given, _)| *given);
            for (slot, (_, place)) in list.iter_mut().zip(given) {
                *slot = *place;
            }
            return Ok(list);
        }
        LastPrefetchLocation => advice.prefetched,
        PreferredLocationType => kind(advice.preferred),
        PreferredLocationId => number(advice.preferred),
        LastPrefetchLocationType => kind(advice.prefetched),
        LastPrefetchLocationId => number(advice.prefetched),
    }])
}

/// # Safety
/// `out` has room for `size` bytes, or is null.
unsafe fn tell(out: *mut i32, size: usize, attribute: u32, range: Range) -> Answer {
    let Some(attribute) = RangeAttribute::from_number(attribute) else {
        return invalid();
    };
    let is_list = attribute == RangeAttribute::AccessedBy;
    if out.is_null() || size == 0 || !size.is_multiple_of(4) || (!is_list && size != 4) {
        return invalid();
    }
    for (index, value) in answer(attribute, range, size / 4)?.into_iter().enumerate() {
        // SAFETY: our contract; there are as many numbers as fit.
        unsafe { out.add(index).write_unaligned(value) };
    }
    Ok(())
}

driver! {
    fn prefetch<const PT>(address: u64, bytes: usize, device: i32, stream: Handle) {
        let (state, _, _) = resolve::<PT>(stream)?;
        prefetch_to(state, address, bytes, check_place(device)?)
    }

    fn prefetch_v2<const PT>(address: u64, bytes: usize, location: MemLocation, flags: u32, stream: Handle) {
        let (state, _, _) = resolve::<PT>(stream)?;
        if flags != 0 {
            return invalid();
        }
        prefetch_to(state, address, bytes, place_of(location)?)
    }

    fn advise(address: u64, bytes: usize, advice: u32, device: i32) {
        advise_range(address, bytes, advice, check_place(device))
    }

    fn advise_v2(address: u64, bytes: usize, advice: u32, location: MemLocation) {
        advise_range(address, bytes, advice, place_of(location))
    }

    fn range_attribute(out: *mut i32, size: usize, attribute: u32, address: u64, bytes: usize) {
        tell(out, size, attribute, managed(state()?, address, bytes)?)
    }

    fn range_attributes(outs: *const *mut i32, sizes: *const usize, attributes: *const u32, count: usize, address: u64, bytes: usize) {
        let range = managed(state()?, address, bytes)?;
        if outs.is_null() || sizes.is_null() || attributes.is_null() || count == 0 {
            return invalid();
        }
        for index in 0..count {
            tell(get(outs.add(index))?, get(sizes.add(index))?, get(attributes.add(index))?, range)?;
        }
        Ok(())
    }
}

entries! {
    cuMemAdvise = advise;
    cuMemAdvise_v2 = advise_v2;
    cuMemRangeGetAttribute = range_attribute;
    cuMemRangeGetAttributes = range_attributes;
}

stream_entries! {
    cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz = prefetch;
    cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz = prefetch_v2;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> Range {
        Range {
            allocation: 1,
            start,
            end,
        }
    }

    #[test]
    fn a_range_is_told_what_holds_for_all_of_it() {
        let mut parts = Vec::new();
        change(&mut parts, range(0, 100), |advice| {
            advice.read_mostly = true
        });
        change(&mut parts, range(40, 60), |advice| advice.preferred = 0);
        assert!(known(&parts, range(0, 100)).read_mostly);
        assert_eq!(known(&parts, range(0, 100)).preferred, NOWHERE);
        assert_eq!(known(&parts, range(45, 55)).preferred, 0);
        change(&mut parts, range(90, 110), |advice| {
            advice.read_mostly = false
        });
        assert!(!known(&parts, range(0, 100)).read_mostly);
        assert!(known(&parts, range(0, 90)).read_mostly);
        assert!(!known(&parts, range(0, 200)).read_mostly);
    }

    #[test]
    fn a_new_allocation_knows_nothing_of_the_old_one() {
        let mut parts = Vec::new();
        change(&mut parts, range(0, 100), |advice| advice.preferred = 0);
        let later = Range {
            allocation: 2,
            ..range(50, 150)
        };
        assert_eq!(known(&parts, later), Advice::NONE);
        change(&mut parts, later, |advice| advice.prefetched = HOST);
        assert_eq!(known(&parts, later).prefetched, HOST);
        assert_eq!(known(&parts, range(0, 100)), Advice::NONE);
    }
}
