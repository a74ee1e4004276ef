//! `wgmma`: each warp of a warpgroup computes its rows when it comes to the product. What a product reads may change
//! only after `wgmma.wait_group`, where the warps wait for each other.

use crate::access::read;
use crate::machine::{Machine, Stop};
use crate::state::WARP;
use mica_ptx::ast::{Op, Operand, Space, Wgmma, WgmmaFactor};
use mica_ptx_ops::matrix::WarpRegister;
use mica_ptx_ops::matrix::wgmma::{Descriptor, Left, PIECE};
use mica_ptx_ops::warp::lanes;

impl Machine<'_> {
    pub(crate) fn warpgroup_product(&mut self, start: usize, members: u32) -> Result<(), Stop> {
        let lead = start + members.trailing_zeros() as usize;
        let frame = self.frame(lead);
        let Op::Wgmma(inst) = &self.instruction(lead).op else {
            return Ok(());
        };
        let inst: &Wgmma = inst;
        self.poll()?;
        let Some(plan) = self.plans.wgmma(frame.function, frame.pc) else {
            return Ok(());
        };
        let row = |of: &Self, operand: &Operand| -> WarpRegister {
            let mut row = [0; 32];
            for lane in lanes(members) {
                row[lane as usize] = of.value(start + lane as usize, *operand);
            }
            row
        };
        let registers: Vec<WarpRegister>;
        let left = match &inst.a {
            WgmmaFactor::Registers(list) => {
                registers = list.iter().map(|operand| row(self, operand)).collect();
                Left::Registers(&registers)
            }
            WgmmaFactor::Descriptor(from) => {
                let from = Descriptor::of(self.value(lead, *from));
                Left::Shared(from, (start / WARP) as u32)
            }
        };
        let right = Descriptor::of(self.value(lead, inst.b));
        let adds = self.predicate(lead, inst.scale_d);
        let accumulators = inst.d.iter().map(|r| row(self, &Operand::Reg(*r)));
        let mut d: Vec<WarpRegister> = accumulators.collect();
        let mut bad = None;
        let mut read = |at| self.piece(lead, at).map_err(|stop| bad = Some(stop)).ok();
        if plan.run(&left, right, adds, &mut d, &mut read).is_none() {
            return bad.map_or(Ok(()), Err);
        }
        for (dst, row) in inst.d.iter().zip(&d) {
            for lane in lanes(members) {
                self.set(start + lane as usize, *dst, row[lane as usize]);
            }
        }
        Ok(())
    }

    fn piece(&self, t: usize, at: u64) -> Result<[u8; PIECE], Stop> {
        let host = self.range_at(t, Space::Shared, at, PIECE as u64, PIECE as u64, false)?;
        // SAFETY: `range_at` checked all sixteen bytes.
        let low = unsafe { read(host, 8) };
        // SAFETY: as above.
        let high = unsafe { read(host + 8, 8) };
        Ok((u128::from(high) << 64 | u128::from(low)).to_le_bytes())
    }
}
