//! Copies of boxes by tensor maps, and the blocks of a cluster that a copy is for.

use crate::access::{read, update, write};
use crate::machine::{Machine, Stop};
use mica_kernel::FaultKind;
use mica_ptx::ast::{AddrBase, Address, Completion, CpAsyncBulkTensor, Operand, Space};
use mica_ptx_ops::mbarrier as state;
use mica_ptx_ops::tensor_map::{ALIGN, BYTES, MOST_RANK, Row, Shape, TensorMap};

/// Alignment of a box in shared memory.
const BOX_ALIGN: u64 = 128;

/// The blocks that a copy into shared memory is for: a mask of ranks, or the one that the address names.
#[derive(Clone, Copy)]
pub(crate) struct Targets(Option<u32>);

impl Targets {
    pub(crate) fn ranks(self) -> impl Iterator<Item = Option<u32>> {
        let own = self.0.is_none().then_some(None);
        let mask = self.0.unwrap_or(0);
        let ranks = (0..16).filter(move |rank| mask >> rank & 1 == 1);
        own.into_iter().chain(ranks.map(Some))
    }
}

/// A tensor map in memory, and the coordinates of a box.
struct Boxed {
    map: TensorMap,
    coords: [i32; MOST_RANK],
    offsets: [u16; 3],
}

impl Boxed {
    fn rows(&self) -> impl Iterator<Item = Row> {
        self.map.rows(&self.coords, &self.offsets)
    }

    /// Bytes of shared memory: whole rows of the pattern in which pieces are exchanged.
    fn shared_bytes(&self) -> u64 {
        self.map.bytes().next_multiple_of(self.map.span())
    }
}

impl Machine<'_> {
    /// The blocks of a mask, each of which must be there.
    pub(crate) fn targets(&self, t: usize, multicast: Option<Operand>) -> Result<Targets, Stop> {
        let mask = multicast.map(|mask| self.value32(t, mask) & 0xffff);
        if mask.is_some_and(|mask| u64::from(mask) >> self.env.cluster_place.size != 0) {
            return Err(self.fault(t, FaultKind::IllegalInstruction));
        }
        Ok(Targets(mask))
    }

    /// The address of the same place in the shared memory of a block.
    fn address_in(&self, t: usize, addr: Address, rank: Option<u32>) -> Address {
        let Some(rank) = rank else { return addr };
        let at = self
            .env
            .block()
            .map_shared(self.shared_offset(t, addr), rank);
        Address {
            base: AddrBase::Absolute,
            offset: at as i64,
        }
    }

    /// An address of `.shared::cluster` as a number.
    fn shared_offset(&self, t: usize, addr: Address) -> u64 {
        let base = match addr.base {
            AddrBase::Reg(r) => self.value(t, Operand::Reg(r)),
            AddrBase::Absolute => 0,
            AddrBase::Var(var) => self.variable_address(t, var),
        };
        u64::from(base.wrapping_add_signed(addr.offset) as u32)
    }

    /// The host address of what a copy writes, checked.
    pub(crate) fn target(
        &self,
        t: usize,
        space: Space,
        addr: Address,
        rank: Option<u32>,
        (bytes, align): (u64, u64),
    ) -> Result<u64, Stop> {
        let space = if rank.is_some() {
            Space::SharedCluster
        } else {
            space
        };
        let addr = self.address_in(t, addr, rank);
        self.range(t, space, addr, bytes, align, true)
    }

    /// Tells the barrier of a target that bytes have come.
    pub(crate) fn complete(
        &mut self,
        t: usize,
        how: Completion,
        rank: Option<u32>,
        bytes: u32,
    ) -> Result<(), Stop> {
        let Completion::Mbarrier(mbar) = how else {
            return Ok(());
        };
        let mbar = self.address_in(t, mbar, rank);
        self.mbarrier_update(t, Space::SharedCluster, mbar, |s| {
            state::complete_tx(s, bytes)
        })
        .map(|_| ())
    }

    /// What an instruction names. Bytes that are no map, or not one for it, are an illegal instruction.
    fn boxed(&self, t: usize, x: &CpAsyncBulkTensor) -> Result<Boxed, Stop> {
        let len = BYTES as u64;
        let host = self.range(t, Space::Generic, x.tensor_map, len, ALIGN.into(), false)?;
        let mut bytes = [0; BYTES];
        for (i, piece) in bytes.chunks_exact_mut(8).enumerate() {
            // SAFETY: within the checked range, which is aligned.
            let word = unsafe { read(host + 8 * i as u64, 8) };
            piece.copy_from_slice(&word.to_le_bytes());
        }
        let map = TensorMap::decode(&bytes)
            .filter(|map| map.rank == x.dim && matches!(map.shape, Shape::Im2col(..)) == x.im2col);
        let Some(map) = map else {
            return Err(self.fault(t, FaultKind::IllegalInstruction));
        };
        let mut coords = [0; MOST_RANK];
        for (to, from) in coords.iter_mut().zip(&x.coords) {
            *to = self.value32(t, *from) as i32;
        }
        let mut offsets = [0; 3];
        for (to, from) in offsets.iter_mut().zip(&x.im2col_offsets) {
            *to = self.value32(t, *from) as u16;
        }
        Ok(Boxed {
            map,
            coords,
            offsets,
        })
    }

    /// Global to shared memory.
    pub(crate) fn load_box(&mut self, t: usize, x: &CpAsyncBulkTensor) -> Result<(), Stop> {
        let boxed = self.boxed(t, x)?;
        let size = (boxed.shared_bytes(), BOX_ALIGN);
        for rank in self.targets(t, x.multicast)?.ranks() {
            let to = self.target(t, Space::SharedCluster, x.shared, rank, size)?;
            let start = self.shared_offset(t, x.shared) & 0xff_ffff;
            for row in boxed.rows() {
                self.poll()?;
                self.fill_row(t, &boxed, &row, (start, to))?;
            }
            self.complete(t, x.completion, rank, boxed.map.bytes() as u32)?;
        }
        Ok(())
    }

    fn fill_row(
        &self,
        t: usize,
        boxed: &Boxed,
        row: &Row,
        (start, to): (u64, u64),
    ) -> Result<(), Stop> {
        let inside = row.skipped..row.skipped + row.inside;
        if row.inside > 0 {
            self.range_at(t, Space::Generic, row.global, row.inside, 1, false)?;
        }
        let fill = boxed.map.fill().to_le_bytes();
        for byte in 0..boxed.map.row_bytes() {
            let value = match inside.contains(&byte) {
                // SAFETY: `range_at` checked the part of the row that is inside.
                true => unsafe { read(row.global + (byte - row.skipped), 1) },
                false => u64::from(fill[byte as usize % 8]),
            };
            // SAFETY: `target` checked the whole box.
            unsafe { write(to + boxed.map.place(start, row.shared + byte), 1, value) };
        }
        Ok(())
    }

    /// Shared to global memory, perhaps reduced with what is there.
    pub(crate) fn store_box(&mut self, t: usize, x: &CpAsyncBulkTensor) -> Result<(), Stop> {
        let boxed = self.boxed(t, x)?;
        let bytes = boxed.shared_bytes();
        let from = self.range(t, Space::Shared, x.shared, bytes, BOX_ALIGN, false)?;
        let start = self.shared_offset(t, x.shared);
        let size = boxed.map.element_bytes();
        let ty = boxed.map.element();
        for row in boxed.rows() {
            self.poll()?;
            if row.inside == 0 {
                continue;
            }
            self.range_at(t, Space::Generic, row.global, row.inside, size, true)?;
            for byte in (0..row.inside).step_by(size as usize) {
                let at = from + boxed.map.place(start, row.shared + row.skipped + byte);
                // SAFETY: within the box, which was checked, at an element.
                let value = unsafe { read(at, size as u32) };
                let apply = |old| match x.reduce.zip(ty) {
                    None => value,
                    Some((op, ty)) => mica_ptx_ops::atomic::apply(op, ty, false, old, value, 0),
                };
                // SAFETY: `range_at` checked the part of the row that is inside.
                unsafe { update(row.global + byte, size as u32, apply) };
            }
        }
        Ok(())
    }
}
