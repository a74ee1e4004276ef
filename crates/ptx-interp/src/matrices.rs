//! Matrix instructions of a warp: fragments to and from registers and memory.

use crate::access::{read, write};
use crate::machine::{Machine, Stop};
use mica_kernel::FaultKind;
use mica_ptx::ast::{Address, Layout, Mma, Op, Operand, RegId, Space, WmmaLoad, WmmaStore};
use mica_ptx_ops::matrix::{Fragment, LaneOperands, memory_bit_offset, tile_places};
use mica_ptx_ops::warp::lanes;

impl Machine<'_> {
    pub(crate) fn matrix_collective(&mut self, start: usize, members: u32) -> Result<(), Stop> {
        let Some(first) = lanes(members).next() else {
            return Ok(());
        };
        let lead = start + first as usize;
        match &self.instruction(lead).op {
            Op::Mma(_) | Op::WmmaMma(_) => self.multiply(start, members),
            Op::Wgmma(_) => self.warpgroup_product(start, members)?,
            Op::WmmaLoad(_) => {
                for lane in lanes(members) {
                    self.wmma_load(start + lane as usize, lane)?;
                }
            }
            Op::WmmaStore(_) => {
                for lane in lanes(members) {
                    self.wmma_store(start + lane as usize, lane)?;
                }
            }
            Op::LdMatrix { .. } | Op::StMatrix { .. } => self.tiles(start, members)?,
            Op::MovMatrix { .. } => self.transpose(start, members),
            _ => return Err(self.fault(lead, FaultKind::IllegalInstruction)),
        }
        Ok(())
    }

    fn multiply(&mut self, start: usize, members: u32) {
        let mut operands = [LaneOperands::default(); 32];
        let mut plan = None;
        for lane in lanes(members) {
            let t = start + lane as usize;
            let (Op::Mma(inst) | Op::WmmaMma(inst)) = &self.instruction(t).op else {
                continue;
            };
            let frame = self.frame(t);
            plan = plan.or_else(|| self.plans.mma(frame.function, frame.pc));
            let to = &mut operands[lane as usize];
            for (registers, sources) in [
                (&mut to.a, &inst.a),
                (&mut to.b, &inst.b),
                (&mut to.c, &inst.c),
            ] {
                for (slot, source) in registers.iter_mut().zip(sources) {
                    *slot = self.value(t, *source);
                }
            }
        }
        let Some(plan) = plan else { return };
        let results = plan.run(&operands);
        for lane in lanes(members) {
            let t = start + lane as usize;
            let (Op::Mma(inst) | Op::WmmaMma(inst)) = &self.instruction(t).op else {
                continue;
            };
            let inst: &Mma = inst;
            for (dst, bits) in inst.d.iter().zip(results[lane as usize]) {
                self.set(t, *dst, bits);
            }
        }
    }

    /// The host address and bit of an element of a matrix in memory.
    fn element(
        &self,
        t: usize,
        base: u64,
        at: ElementAt<'_>,
        is_write: bool,
    ) -> Result<(u64, u32, u32), Stop> {
        let bits = at.fragment.ty.bits();
        let offset = memory_bit_offset(at.layout, at.stride, at.row, at.col, bits);
        let bytes = bits.div_ceil(8);
        let address = base.wrapping_add(offset / 8);
        let place = self.place_at(t, at.space, address, bytes, is_write)?;
        match place {
            crate::address::Place::Host(host) => Ok((host, bytes, (offset % 8) as u32)),
            crate::address::Place::Parameter(_) => Err(self.fault(t, FaultKind::IllegalAddress)),
        }
    }

    fn matrix_base(&self, t: usize, space: Space, addr: Address) -> Result<(Space, u64), Stop> {
        // One element's range is enough here; each element is checked by itself.
        let host = self.range(t, space, addr, 1, 1, false)?;
        Ok((Space::Generic, host))
    }

    fn stride(&self, t: usize, stride: Option<Operand>, layout: Layout, size: (u32, u32)) -> u64 {
        stride.map_or_else(
            || {
                u64::from(if layout == Layout::Row {
                    size.1
                } else {
                    size.0
                })
            },
            |s| u64::from(self.value32(t, s)),
        )
    }

    fn wmma_load(&mut self, t: usize, lane: u32) -> Result<(), Stop> {
        let Op::WmmaLoad(inst) = &self.instruction(t).op else {
            return Ok(());
        };
        let inst: &WmmaLoad = inst;
        let memory = (inst.space, inst.addr, inst.layout, inst.stride);
        let mut registers = [0; 8];
        let has_loaded = self.each_element(t, lane, memory, false, |fragment, e, place| {
            let (host, bytes, bit) = place;
            // SAFETY: `element` checked the address.
            fragment.insert(&mut registers, e, unsafe { read(host, bytes) } >> bit);
        })?;
        if has_loaded {
            for (dst, bits) in inst.dst.iter().zip(registers) {
                self.set(t, *dst, bits);
            }
        }
        Ok(())
    }

    fn wmma_store(&mut self, t: usize, lane: u32) -> Result<(), Stop> {
        let Op::WmmaStore(inst) = &self.instruction(t).op else {
            return Ok(());
        };
        let inst: &WmmaStore = inst;
        let memory = (inst.space, inst.addr, inst.layout, inst.stride);
        let mut registers = [0; 8];
        for (slot, source) in registers.iter_mut().zip(&inst.src) {
            *slot = self.value(t, *source);
        }
        self.each_element(t, lane, memory, true, |fragment, e, (host, bytes, _)| {
            // SAFETY: `element` checked the address. Accumulators are never narrower than a byte.
            unsafe { write(host, bytes, fragment.extract(&registers, e)) };
        })?;
        Ok(())
    }

    /// Gives the place of each element that the lane has of a fragment in memory, as [`Machine::element`] does. Whether there is
    /// a fragment.
    fn each_element(
        &self,
        t: usize,
        lane: u32,
        (space, addr, layout, stride): (Space, Address, Layout, Option<Operand>),
        is_write: bool,
        mut each: impl FnMut(&Fragment, u32, (u64, u32, u32)),
    ) -> Result<bool, Stop> {
        let frame = self.frame(t);
        let Some(fragment) = self.plans.fragment(frame.function, frame.pc) else {
            return Ok(false);
        };
        let (space, base) = self.matrix_base(t, space, addr)?;
        let stride = self.stride(t, stride, layout, (fragment.rows, fragment.cols));
        for (e, (row, col)) in fragment.lane_places(lane).enumerate() {
            let at = ElementAt {
                fragment,
                layout,
                stride,
                row,
                col,
                space,
            };
            each(fragment, e as u32, self.element(t, base, at, is_write)?);
        }
        Ok(true)
    }

    /// `ldmatrix` and `stmatrix`: lanes 8j to 8j+7 give the rows of tile j.
    fn tiles(&mut self, start: usize, members: u32) -> Result<(), Stop> {
        let mut rows = [0u64; 32];
        for lane in lanes(members) {
            let t = start + lane as usize;
            let (space, addr, count, store) = match &self.instruction(t).op {
                Op::LdMatrix {
                    space, dst, addr, ..
                } => (*space, *addr, dst.len(), false),
                Op::StMatrix {
                    space, src, addr, ..
                } => (*space, *addr, src.len(), true),
                _ => continue,
            };
            if (lane as usize) < 8 * count {
                rows[lane as usize] = self.range(t, space, addr, 16, 16, store)?;
            }
        }
        for lane in lanes(members) {
            let t = start + lane as usize;
            match &self.instruction(t).op {
                Op::LdMatrix { trans, dst, .. } => {
                    for (tile, dst) in dst.iter().enumerate() {
                        // SAFETY: `range` checked the whole row of 16 bytes.
                        let half = |(i, place)| unsafe { read(place, 2) } << (16 * i);
                        let halves = elements(&rows[tile * 8..], lane, *trans).map(half);
                        self.set_optional(t, *dst, halves.sum());
                    }
                }
                Op::StMatrix { trans, src, .. } => {
                    for (tile, src) in src.iter().enumerate() {
                        let word = self.value(t, *src);
                        // SAFETY: `range` checked the whole row of 16 bytes.
                        let store = |(i, place)| unsafe { write(place, 2, word >> (16 * i)) };
                        elements(&rows[tile * 8..], lane, *trans).for_each(store);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn transpose(&mut self, start: usize, members: u32) {
        let mut tile = [[0u64; 8]; 8];
        for lane in lanes(members) {
            let t = start + lane as usize;
            if let Op::MovMatrix { src, .. } = &self.instruction(t).op {
                let word = self.value(t, *src);
                for (i, (row, col)) in tile_places(lane, false).into_iter().enumerate() {
                    tile[row as usize][col as usize] = word >> (16 * i) & 0xffff;
                }
            }
        }
        for lane in lanes(members) {
            let t = start + lane as usize;
            if let Op::MovMatrix { dst, .. } = &self.instruction(t).op {
                let [low, high] =
                    tile_places(lane, true).map(|(row, col)| tile[row as usize][col as usize]);
                let dst: RegId = *dst;
                self.set(t, dst, high << 16 | low);
            }
        }
    }
}

/// An element of a matrix in memory.
struct ElementAt<'a> {
    fragment: &'a Fragment,
    layout: Layout,
    stride: u64,
    row: u32,
    col: u32,
    space: Space,
}

/// A lane's elements of a tile whose rows begin at these addresses: their number in the register, and where they are.
/// Rows of lanes that take no part are 0, and left out.
fn elements(rows: &[u64], lane: u32, trans: bool) -> impl Iterator<Item = (usize, u64)> {
    let places = tile_places(lane, trans).into_iter().enumerate();
    places.filter_map(|(i, (row, col))| match rows[row as usize] {
        0 => None,
        base => Some((i, base + u64::from(col) * 2)),
    })
}
