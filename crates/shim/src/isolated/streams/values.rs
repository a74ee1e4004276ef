//! Streams that wait for a word in memory or write one, alone or several in a row.

use std::sync::atomic::Ordering::Acquire;

use mica_cuda_abi::Handle;
use mica_wire::session::{StreamWaitValue, Write};

use super::{Stream, resolve};
use crate::isolated::context::Context;
use crate::isolated::state::State;
use crate::isolated::support::{Answer, driver, get, invalid, not_supported, stream_entries};

/// `CUstreamWaitValue_flags`: how the word is compared, and whether remote writes are flushed after the wait.
const WAIT_CONDITIONS: u32 = 3;
const WAIT_FLUSH: u32 = 1 << 30;

/// Most operations of one `cuStreamBatchMemOp`.
const MOST_IN_BATCH: u32 = 256;

/// `CUstreamBatchMemOpParams`: a union whose members have their fields at the same places.
#[repr(C)]
#[derive(Clone, Copy)]
struct BatchEntry {
    /// `CUstreamBatchMemOpType`.
    kind: u32,
    /// Of a flush or a barrier, which have nothing else.
    short_flags: u32,
    address: u64,
    /// A 32-bit one is in the lower half.
    value: u64,
    flags: u32,
    _alias: u64,
    _rest: u64,
}

const _: () = assert!(size_of::<BatchEntry>() == 48);

/// A word that a stream waits for or writes.
#[derive(Clone, Copy)]
struct Word {
    address: u64,
    is_wide: bool,
    value: u64,
}

/// One thing that a stream does.
#[derive(Clone, Copy)]
enum ValueOp {
    Wait(Word, u32),
    Write(Word),
    /// The operations of a stream see each other's writes without it.
    Barrier,
}

impl ValueOp {
    /// An entry of a batch.
    fn of_entry(entry: &BatchEntry) -> Answer<Self> {
        let word = |is_wide| Word {
            address: entry.address,
            is_wide,
            value: match is_wide {
                true => entry.value,
                false => entry.value & u64::from(u32::MAX),
            },
        };
        match (entry.kind, entry.short_flags) {
            (1, _) => Ok(Self::Wait(word(false), entry.flags)),
            (2, _) => Ok(Self::Write(word(false))),
            (3, _) => not_supported("flushing remote writes by cuStreamBatchMemOp"),
            (4, _) => Ok(Self::Wait(word(true), entry.flags)),
            (5, _) => Ok(Self::Write(word(true))),
            // For the whole system or for the GPU.
            (6, 0 | 1) => Ok(Self::Barrier),
            _ => invalid(),
        }
    }
}

/// A stream with its context and the state of the program.
type Resolved = (&'static State, &'static Context, &'static Stream);

driver! {
    fn stream_write_value_32<const PT>(handle: Handle, address: u64, value: u32, _flags: u32) {
        let word = Word { address, is_wide: false, value: value.into() };
        carry_out(resolve::<PT>(handle)?, "cuStreamWriteValue", &[ValueOp::Write(word)])
    }

    fn stream_write_value_64<const PT>(handle: Handle, address: u64, value: u64, _flags: u32) {
        let word = Word { address, is_wide: true, value };
        carry_out(resolve::<PT>(handle)?, "cuStreamWriteValue", &[ValueOp::Write(word)])
    }

    fn stream_wait_value_32<const PT>(handle: Handle, address: u64, value: u32, flags: u32) {
        let word = Word { address, is_wide: false, value: value.into() };
        carry_out(resolve::<PT>(handle)?, "cuStreamWaitValue", &[ValueOp::Wait(word, flags)])
    }

    fn stream_wait_value_64<const PT>(handle: Handle, address: u64, value: u64, flags: u32) {
        let word = Word { address, is_wide: true, value };
        carry_out(resolve::<PT>(handle)?, "cuStreamWaitValue", &[ValueOp::Wait(word, flags)])
    }

    fn stream_batch<const PT>(handle: Handle, count: u32, entries: *const BatchEntry, flags: u32) {
        let resolved = resolve::<PT>(handle)?;
        if count > MOST_IN_BATCH || flags != 0 {
            return invalid();
        }
        let entries = (0..count as usize).map(|index| {
            let entry = get(entries.wrapping_add(index))?;
            ValueOp::of_entry(&entry)
        });
        carry_out(resolved, "cuStreamBatchMemOp", &entries.collect::<Answer<Vec<_>>>()?)
    }
}

/// The device address of an aligned word; a program may name one in its own memory that the device sees.
fn word_address(state: &State, word: Word) -> Answer<u64> {
    let (address, bytes) = (word.address, if word.is_wide { 8 } else { 4 });
    let found = state.memory.find(address);
    let Some(found) = found.filter(|_| address.is_multiple_of(bytes)) else {
        return invalid();
    };
    Ok(match address.wrapping_sub(found.device) < found.bytes {
        true => address,
        false => address - found.host + found.device,
    })
}

/// Submits operations in their order; none of them if one is wrong.
fn carry_out((state, context, stream): Resolved, call: &str, ops: &[ValueOp]) -> Answer {
    if stream.capturing.load(Acquire) {
        return not_supported(&format!("a captured {call}"));
    }
    for op in ops {
        let (ValueOp::Wait(word, _) | ValueOp::Write(word)) = op else {
            continue;
        };
        word_address(state, *word)?;
        if matches!(op, ValueOp::Wait(_, flags) if flags & !(WAIT_CONDITIONS | WAIT_FLUSH) != 0) {
            return invalid();
        }
    }
    (ops.iter()).try_for_each(|op| submit((state, context, stream), op))
}

fn submit((state, context, stream): Resolved, op: &ValueOp) -> Answer {
    let stream = stream.wire();
    let posted = match op {
        ValueOp::Wait(word, flags) => {
            let address = word_address(state, *word)?;
            state.copied.given(state, &address.to_le_bytes());
            let request = StreamWaitValue {
                stream,
                address,
                is_wide: word.is_wide,
                value: word.value,
                flags: *flags,
            };
            state.client.post(&request, &[])
        }
        ValueOp::Write(word) => {
            let address = word_address(state, *word)?;
            let bytes = word.value.to_ne_bytes();
            let bytes = if word.is_wide {
                &bytes[..]
            } else {
                &bytes[..4]
            };
            state.client.post(&Write { stream, address }, bytes)
        }
        ValueOp::Barrier => return Ok(()),
    };
    context.checked(posted)
}

stream_entries! {
    cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz = stream_wait_value_32;
    cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz = stream_wait_value_64;
    cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz = stream_write_value_32;
    cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz = stream_write_value_64;
    cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz = stream_batch;
}
