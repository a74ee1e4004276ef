//! Asynchronous copies and `mbarrier`. Copies are done at once, so waiting for them is nothing.

use crate::access::{copy, read, update, write, zero};
use crate::machine::{Flow, Machine, Stop};
use mica_kernel::FaultKind;
use mica_ptx::ast::{
    Address, AtomOp, CpAsyncBulk, CpReduceAsyncBulk, MbarrierOp, MbarrierPhase, Op, Operand, Space,
};
use mica_ptx_ops::mbarrier as state;

/// Bytes that are reduced between two looks at whether the block should stop.
const BYTES_PER_POLL: u64 = 4096;

impl Machine<'_> {
    pub(crate) fn asynchronous_copy(&mut self, t: usize, op: &Op) -> Result<(), Stop> {
        match op {
            Op::CpAsync {
                dst,
                src,
                size,
                src_size,
                ignore_src,
                ..
            } => {
                let ignored = ignore_src.is_some_and(|p| self.predicate(t, p));
                let wanted = src_size.map_or(*size, |s| self.value32(t, s)).min(*size);
                let taken = u64::from(if ignored { 0 } else { wanted });
                let size = u64::from(*size);
                let to = self.range(t, Space::Shared, *dst, size, size, true)?;
                if taken > 0 {
                    let from = self.range(t, Space::Global, *src, taken, size, false)?;
                    // SAFETY: both ranges were checked.
                    unsafe { copy(to, from, taken) };
                }
                // SAFETY: the rest of the checked destination.
                unsafe { zero(to + taken, size - taken) };
            }
            Op::CpAsyncMbarrierArrive { noinc, space, mbar } => {
                // All copies are done already: the arrival happens now. Without `.noinc` the count
                // is raised first, so that nothing changes.
                if *noinc {
                    self.mbarrier_update(t, *space, *mbar, |s| state::arrive(s, 1, false))?;
                } else {
                    self.mbarrier_update(t, *space, *mbar, |s| {
                        state::arrive(state::increment(s), 1, false)
                    })?;
                }
            }
            Op::CpAsyncBulk(bulk) => self.bulk_copy(t, bulk)?,
            Op::CpReduceAsyncBulk(bulk) => self.bulk_reduce(t, bulk)?,
            Op::CpAsyncBulkTensor(copy) if copy.store => self.store_box(t, copy)?,
            Op::CpAsyncBulkTensor(copy) => self.load_box(t, copy)?,
            _ => {}
        }
        Ok(())
    }

    /// Where a bulk copy reads and writes, and how many bytes.
    fn bulk_ranges(
        &mut self,
        t: usize,
        from: (Space, Address),
        to: (Space, Address),
        size: Operand,
    ) -> Result<(u64, u64, u32), Stop> {
        let size = self.value32(t, size);
        let bytes = u64::from(size);
        if !size.is_multiple_of(16) {
            return Err(self.fault(t, FaultKind::MisalignedAddress));
        }
        let from = self.range(t, from.0, from.1, bytes, 16, false)?;
        let to = self.range(t, to.0, to.1, bytes, 16, true)?;
        Ok((from, to, size))
    }

    fn bulk_copy(&mut self, t: usize, bulk: &CpAsyncBulk) -> Result<(), Stop> {
        let size = self.value32(t, bulk.size);
        if !size.is_multiple_of(16) {
            return Err(self.fault(t, FaultKind::MisalignedAddress));
        }
        let bytes = u64::from(size);
        let from = self.range(t, bulk.src_space, bulk.src, bytes, 16, false)?;
        let keep = bulk.byte_mask.map(|mask| self.value32(t, mask));
        let targets = self.targets(t, bulk.multicast)?;
        for rank in targets.ranks() {
            self.poll()?;
            let to = self.target(t, bulk.dst_space, bulk.dst, rank, (bytes, 16))?;
            match keep {
                None => {
                    // SAFETY: both ranges were checked.
                    unsafe { copy(to, from, bytes) };
                }
                Some(mask) => {
                    for i in (0..bytes).filter(|i| mask >> (i % 16) & 1 == 1) {
                        // SAFETY: within the checked ranges.
                        let byte = unsafe { read(from + i, 1) };
                        // SAFETY: as above.
                        unsafe { write(to + i, 1, byte) };
                    }
                }
            }
            self.complete(t, bulk.completion, rank, size)?;
        }
        Ok(())
    }

    fn bulk_reduce(&mut self, t: usize, bulk: &CpReduceAsyncBulk) -> Result<(), Stop> {
        let (from, to) = ((bulk.src_space, bulk.src), (bulk.dst_space, bulk.dst));
        let (from, to, size) = self.bulk_ranges(t, from, to, bulk.size)?;
        let bytes = u64::from(size);
        let step = bulk.ty.bytes();
        for i in (0..bytes).step_by(step as usize) {
            if i.is_multiple_of(BYTES_PER_POLL) {
                self.poll()?;
            }
            // SAFETY: within the checked range, aligned because both start at multiples of 16.
            let operand = unsafe { read(from + i, step) };
            let apply = |old| {
                let op: AtomOp = bulk.op;
                mica_ptx_ops::atomic::apply(op, bulk.ty, false, old, operand, 0)
            };
            // SAFETY: as above.
            unsafe { update(to + i, step, apply) };
        }
        self.complete(t, bulk.completion, None, size)
    }

    /// Tells an mbarrier that bytes have arrived.
    pub(crate) fn complete_bytes(
        &mut self,
        t: usize,
        space: Space,
        mbar: Address,
        bytes: u32,
    ) -> Result<(), Stop> {
        self.mbarrier_update(t, space, mbar, |s| state::complete_tx(s, bytes))
            .map(|_| ())
    }

    pub(crate) fn mbarrier_update(
        &mut self,
        t: usize,
        space: Space,
        addr: Address,
        f: impl Fn(u64) -> u64,
    ) -> Result<u64, Stop> {
        let host = self.range(t, space, addr, 8, 8, true)?;
        // SAFETY: `range` checked it.
        Ok(unsafe { update(host, 8, f) })
    }

    pub(crate) fn mbarrier(
        &mut self,
        t: usize,
        space: Space,
        addr: Address,
        op: &MbarrierOp,
    ) -> Result<Flow, Stop> {
        match op {
            MbarrierOp::Init { count } => {
                let count = self.value32(t, *count);
                self.mbarrier_update(t, space, addr, |_| state::init(count))?;
            }
            MbarrierOp::Inval => {
                self.mbarrier_update(t, space, addr, |_| 0)?;
            }
            MbarrierOp::Arrive {
                drop,
                expect_tx,
                dst,
                count,
                ..
            } => {
                let count = count.map_or(1, |c| self.value32(t, c));
                let bytes = expect_tx.map_or(0, |b| self.value32(t, b));
                let before = self.mbarrier_update(t, space, addr, |s| {
                    state::arrive(state::expect_tx(s, bytes), count, *drop)
                })?;
                self.set_optional(t, *dst, before);
            }
            MbarrierOp::ExpectTx { bytes, .. } => {
                let bytes = self.value32(t, *bytes);
                self.mbarrier_update(t, space, addr, |s| state::expect_tx(s, bytes))?;
            }
            MbarrierOp::CompleteTx { bytes, .. } => {
                let bytes = self.value32(t, *bytes);
                self.mbarrier_update(t, space, addr, |s| state::complete_tx(s, bytes))?;
            }
            MbarrierOp::Wait { dst, phase, .. } => {
                let now = self.mbarrier_update(t, space, addr, |s| s)?;
                let done = match phase {
                    MbarrierPhase::State(token) => state::is_complete(now, self.value(t, *token)),
                    MbarrierPhase::Parity(parity) => {
                        state::is_parity_complete(now, self.value32(t, *parity))
                    }
                };
                self.set(t, *dst, u64::from(done));
                if !done {
                    return Ok(Flow::Yield);
                }
            }
        }
        Ok(Flow::Next)
    }
}
