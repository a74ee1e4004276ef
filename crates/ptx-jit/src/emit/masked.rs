//! Short blocks for only some lanes of a group ([`crate::plan::Sides`]).
//!
//! What computes is done for all lanes, and lanes that are off keep what they have. What accesses memory is done for
//! one lane after the other, by the same code as in scalar versions: for its thread, in the order of the threads, with the
//! checks of this version. (Where a launch has proven a place, the version without checks has none for it here either: what
//! is known behind a branch holds for the lanes that took it.) So is a whole block in which hardly anything is left for vectors.

use cranelift_codegen::ir::{
    Block, BlockArg, InstBuilder, SourceLoc, StackSlotData, StackSlotKind, Value, condcodes::IntCC,
    types,
};
use mica_ptx::ast::Operand as Source;
use mica_ptx::ast::{IntBinOp, IntUnOp, Op, RegId, ScalarType};
use std::collections::HashSet;

use super::memory::Window;
use super::{Emit, Home, V, flags, merge};
use crate::CompileError;
use crate::bits::BitSet;
use crate::plan::{Sides, is_pure};
use crate::uniformity::Uniformity;
use crate::unit::{BlockId, Class, Place, Reg, Step};

/// What a lane's turn costs, in vector instructions.
const EACH_ACCESS: usize = 5;
/// What an instruction without a vector form costs in one lane of vectors.
const EACH_LANE: usize = 4;

/// Which lanes are on.
pub(crate) struct Masked {
    /// All ones for each lane that is.
    vectors: Vec<Value>,
    /// A bit for each lane that is.
    bits: Value,
    /// Registers that lanes which are off need later.
    kept: BitSet,
}

/// A loop over lanes.
struct LaneLoop {
    head: Block,
    /// Behind it.
    done: Block,
    /// Bits of the lanes that are not done.
    left: Value,
    lane: Value,
}

/// An instruction of a side.
struct Spot {
    /// The block, if its checks are not planned yet.
    block: Option<BlockId>,
    /// The step of the block.
    at: usize,
    place: Place,
}

/// A register of an instruction that is done lane by lane.
struct Operand {
    reg: Reg,
    class: Class,
    /// Where its row begins.
    row: i32,
    value: V,
}

/// A register that such an instruction writes, and where its row begins.
type Written = (Reg, Class, i32);

impl Emit<'_, '_> {
    /// Whether the sides are computed without a branch.
    pub(crate) fn is_selection(&self, sides: &Sides) -> bool {
        // A branch tells coverage whether any lane was there.
        sides.is_selection && !self.src.coverage
    }

    /// Blocks that are only computed where their branch is.
    pub(crate) fn selected_sides(&self) -> HashSet<BlockId> {
        let sides = self.plan.sides_of.values();
        let selected = sides.filter(|s| self.lanes > 1 && self.is_selection(s));
        selected.flat_map(Sides::blocks).collect()
    }

    /// Runs both sides of a branch for the lanes that each one has. Ends the current block.
    pub(crate) fn run_sides(
        &mut self,
        sides: &Sides,
        pred: &[Value],
        negated: bool,
    ) -> Result<(), CompileError> {
        self.lazy.clear();
        for (side, flipped) in [(&sides.then, negated), (&sides.els, !negated)] {
            if side.is_empty() {
                continue;
            }
            let vectors: Vec<Value> = match flipped {
                true => pred.iter().map(|v| self.b.ins().bnot(*v)).collect(),
                false => pred.to_vec(),
            };
            let mut kept = self.plan.live_in[sides.join as usize].clone();
            if let Some(second) = sides.els.first()
                && flipped == negated
            {
                kept.union(&self.plan.live_in[*second as usize]);
            }
            let bits = self.movemask(&vectors);
            self.masked = Some(Masked {
                vectors,
                bits,
                kept,
            });
            let done = self.side(side);
            self.masked = None;
            done?;
        }
        let join = self.blocks[&sides.join];
        self.b.ins().jump(join, &[]);
        Ok(())
    }

    fn side(&mut self, blocks: &[BlockId]) -> Result<(), CompileError> {
        let (instance, site) = (self.instance, self.site);
        let mut spots = Vec::new();
        for &id in blocks {
            self.note_entered(id);
            let block = &self.plan.unit.blocks[id as usize];
            for (at, step) in block.steps.iter().enumerate() {
                let Step::Inst(inst) = *step else { continue };
                let place = Place {
                    instance: block.instance,
                    inst,
                };
                spots.push(Spot {
                    block: Some(id),
                    at,
                    place,
                });
            }
        }
        if self.plan.is_guarded(blocks) || self.suits_single_lanes(&spots) {
            self.lane_by_lane(&spots)?;
        } else {
            for spot in &spots {
                match is_pure(&self.plan.unit.inst(self.src.module, spot.place).op) {
                    true => self.spot(spot)?,
                    false => self.lane_by_lane(std::slice::from_ref(spot))?,
                }
            }
        }
        (self.instance, self.site) = (instance, site);
        Ok(())
    }

    fn spot(&mut self, spot: &Spot) -> Result<(), CompileError> {
        crate::interrupt::tick();
        self.instance = spot.place.instance;
        if let (Some(block), 0) = (spot.block, spot.at) {
            self.merged = merge::Merged::default();
            self.plan_checks(block);
        }
        self.site = self.plan.slow_of[&spot.place];
        self.b.set_srcloc(SourceLoc::new(self.site + 1));
        self.merged.at = spot.at;
        self.inst(spot.place)
    }

    fn register(&self, spot: &Spot, r: RegId) -> Reg {
        self.plan.unit.reg(spot.place.instance, r)
    }

    /// Whether a side with accesses costs less lane by lane as a whole, were half of the lanes on.
    fn suits_single_lanes(&self, spots: &[Spot]) -> bool {
        let (mut vectors, mut accesses) = (0, 0);
        for spot in spots {
            let op = &self.plan.unit.inst(self.src.module, spot.place).op;
            let site = &self.plan.slow[self.plan.slow_of[&spot.place] as usize];
            let registers = site.uses.iter().chain(&site.defs);
            let varying = registers
                .filter(|r| self.plan.uniformity(self.register(spot, r.0)) == Uniformity::Varying)
                .map(|r| r.1);
            let Some(widest) = varying.max_by_key(|class| class.slot_bytes()) else {
                vectors += 1;
                continue;
            };
            vectors += match is_pure(op) {
                false => {
                    accesses += 1;
                    EACH_ACCESS * self.lanes / 2
                }
                true if is_done_by_lanes(op) => EACH_LANE * self.lanes,
                true => self.vectors(widest).0,
            };
        }
        accesses > 0 && spots.len() * self.lanes / 2 < vectors
    }

    /// What a register gets where lanes are off: what it had, if anybody needs that.
    pub(crate) fn kept_where_off(&mut self, r: Reg, v: V) -> V {
        let Some(masked) = self.masked.as_ref().filter(|m| m.kept.has(r)) else {
            return v;
        };
        let vectors = V::X(masked.vectors.clone());
        if !matches!(self.home(r), Home::Vector(_)) {
            return v;
        }
        let old = self.read_raw(r);
        let class = self.plan.unit.regs[r as usize];
        self.select(&vectors, &v, &old, class)
    }

    /// The lanes of a mask that are on.
    pub(crate) fn only_where_on(&mut self, masks: &[Value]) -> Vec<Value> {
        let vectors = match &self.masked {
            Some(masked) if masked.vectors.len() == masks.len() => masked.vectors.clone(),
            _ => return masks.to_vec(),
        };
        let both = masks.iter().zip(vectors);
        both.map(|(a, b)| self.b.ins().band(*a, b)).collect()
    }

    /// What instructions read and write, each register once, with its row of values in memory; bytes of all rows.
    fn rows_of(&mut self, spots: &[Spot]) -> (Vec<Operand>, Vec<Written>, i32) {
        let (mut read, mut written) = (Vec::<Operand>::new(), Vec::<Written>::new());
        let mut bytes = 0;
        for spot in spots {
            let site = self.plan.slow[self.plan.slow_of[&spot.place] as usize].clone();
            for (r, class) in site.uses {
                let reg = self.register(spot, r);
                if written.iter().any(|w| w.0 == reg) || read.iter().any(|o| o.reg == reg) {
                    continue;
                }
                let value = self.read_raw(reg);
                let row = bytes;
                if matches!(value, V::X(_)) {
                    bytes += self.row_bytes(class);
                }
                read.push(Operand {
                    reg,
                    class,
                    row,
                    value,
                });
            }
            for (r, class) in site.defs {
                let reg = self.register(spot, r);
                if !written.iter().any(|w| w.0 == reg) {
                    written.push((reg, class, bytes));
                    bytes += self.row_bytes(class);
                }
            }
        }
        (read, written, bytes)
    }

    /// Gives registers homes for one lane; the homes that they had.
    fn move_to_scalars(
        &mut self,
        registers: impl Iterator<Item = Reg>,
    ) -> Vec<(Reg, Option<Home>)> {
        let homes: Vec<_> = registers
            .map(|reg| (reg, self.homes[reg as usize].clone()))
            .collect();
        self.lanes = 1;
        for (reg, _) in &homes {
            let ty = self.scalar_type(*reg);
            let var = self.b.declare_var(ty);
            self.homes[*reg as usize] = Some(Home::Scalar(var, ty));
        }
        homes
    }

    /// Reads a register back from its row, after the last lane.
    fn take_result(&mut self, (reg, class, row): &Written, rows: Value, lane: Value) {
        let v = match self.home(*reg) {
            Home::Vector(_) => self.take_row(rows, *row, *class),
            // The same for all lanes: the last one's.
            _ => {
                let one = Operand {
                    reg: *reg,
                    class: *class,
                    row: *row,
                    value: V::X(Vec::new()),
                };
                V::U(self.lane_of(&one, rows, lane))
            }
        };
        self.write(*reg, v);
    }

    /// Begins a loop over the lanes whose bits are set, in which the lane is the thread.
    fn begin_lane_loop(&mut self, first: Value, bits: Value) -> LaneLoop {
        let (head, done) = (self.b.create_block(), self.b.create_block());
        let left = self.b.append_block_param(head, types::I32);
        self.b.ins().jump(head, &[BlockArg::Value(bits)]);
        self.b.switch_to_block(head);
        let lane = self.b.ins().ctz(left);
        let lane = self.b.ins().uextend(types::I64, lane);
        let thread = self.b.ins().iadd(first, lane);
        self.b.def_var(self.thread, thread);
        LaneLoop {
            head,
            done,
            left,
            lane,
        }
    }

    /// Goes on with the next lane, or behind the loop: at once if one lane does for all.
    fn end_lane_loop(&mut self, lane_loop: &LaneLoop, once: bool) {
        let &LaneLoop {
            head, done, left, ..
        } = lane_loop;
        if once {
            self.b.ins().jump(done, &[]);
        } else {
            let below = self.add_imm(left, -1);
            let left = self.b.ins().band(left, below);
            let args = [BlockArg::Value(left)];
            self.b.ins().brif(left, head, &args, done, &[]);
        }
        self.b.switch_to_block(done);
    }

    /// Does instructions in a row for each lane that is on, as scalar code does them.
    fn lane_by_lane(&mut self, spots: &[Spot]) -> Result<(), CompileError> {
        let Some(masked) = self.masked.take() else {
            return Ok(());
        };
        let (read, written, bytes) = self.rows_of(spots);
        let once = self.is_done_once(spots, &read);
        // What only the instructions themselves need stays in the loop.
        let results: Vec<_> = (written.iter())
            .filter(|w| spots.len() == 1 || masked.kept.has(w.0))
            .copied()
            .collect();
        let is_kept = |w: &&Written| !once && masked.kept.has(w.0);
        let kept: Vec<_> = results.iter().filter(is_kept).copied().collect();
        let rows = self.filled_rows(&read, &kept, bytes as u32);
        let (first, lanes) = (self.thread(), self.lanes);
        let lane_loop = self.begin_lane_loop(first, masked.bits);
        let touched = (read.iter().map(|o| o.reg)).chain(written.iter().map(|w| w.0));
        let homes = self.move_to_scalars(touched);
        for o in &read {
            let v = self.lane_of(o, rows, lane_loop.lane);
            self.write(o.reg, V::U(v));
        }
        for spot in spots {
            self.spot(spot)?;
        }
        let mut scalars = Vec::new();
        for (reg, class, row) in &results {
            let v = self.read_raw(*reg);
            let v = self.lane(&v, *class, 0);
            scalars.push(v);
            if !once {
                self.put_lane(v, *class, rows, *row, lane_loop.lane);
            }
        }
        for (reg, home) in homes {
            self.homes[reg as usize] = home;
        }
        self.lanes = lanes;
        self.end_lane_loop(&lane_loop, once);
        self.b.def_var(self.thread, first);
        if once {
            self.masked = Some(masked);
            for ((reg, ..), v) in results.iter().zip(scalars) {
                self.write(*reg, V::U(v));
            }
            return Ok(());
        }
        for result in &results {
            self.take_result(result, rows, lane_loop.lane);
        }
        self.masked = Some(masked);
        Ok(())
    }

    /// Does an instruction for all lanes, one after the other.
    pub(crate) fn for_each_lane(&mut self, place: Place) -> Result<(), CompileError> {
        let on = self.vconst32([u32::MAX; 4]);
        self.masked = Some(Masked {
            vectors: vec![on; self.lanes / 4],
            bits: self.imm(types::I32, (1 << self.lanes) - 1),
            kept: BitSet::new(self.plan.unit.regs.len()),
        });
        let spot = Spot {
            block: None,
            at: self.merged.at,
            place,
        };
        let done = self.lane_by_lane(&[spot]);
        self.masked = None;
        done
    }

    /// Whether one lane does for all what all do alike: a load of what is the same for all. Local memory is each lane's
    /// own.
    fn is_done_once(&self, spots: &[Spot], read: &[Operand]) -> bool {
        let [spot] = spots else { return false };
        let is_shared = match &self.plan.unit.inst(self.src.module, spot.place).op {
            Op::Ld { space, addr, .. } => self.accessed(*space, addr) != Window::Local,
            _ => false,
        };
        // A monitor is told of every thread.
        is_shared && !self.src.monitor && read.iter().all(|o| matches!(o.value, V::U(_)))
    }

    fn row_bytes(&self, class: Class) -> i32 {
        self.lanes as i32 * class.slot_bytes() as i32
    }

    /// Stack memory for rows, which are kept while other code uses [`Emit::buffer`].
    fn rows(&mut self, bytes: u32) -> Value {
        let slot = *self.rows.get_or_insert_with(|| {
            let data = StackSlotData::new(StackSlotKind::ExplicitSlot, bytes, 4);
            self.b.create_sized_stack_slot(data)
        });
        let size = &mut self.b.func.sized_stack_slots[slot].size;
        *size = bytes.max(*size);
        self.b.ins().stack_addr(types::I64, slot, 0)
    }

    /// Rows with what lanes read, and with what results are where lanes are off.
    fn filled_rows(&mut self, read: &[Operand], kept: &[Written], bytes: u32) -> Value {
        let rows = self.rows(bytes);
        for o in read {
            if let V::X(vectors) = &o.value {
                self.fill_row(rows, o.row, vectors);
            }
        }
        for (reg, class, row) in kept {
            let old = self.read_raw(*reg);
            let old = self.vectorize(&old, *class);
            self.fill_row(rows, *row, &old);
        }
        rows
    }

    fn fill_row(&mut self, rows: Value, row: i32, vectors: &[Value]) {
        for (i, v) in vectors.iter().enumerate() {
            self.b.ins().store(flags(), *v, rows, row + 16 * i as i32);
        }
    }

    fn take_row(&mut self, rows: Value, row: i32, class: Class) -> V {
        let (n, ty) = self.vectors(class);
        let vectors = (0..n).map(|i| {
            let v = self.b.ins().load(ty, flags(), rows, row + 16 * i as i32);
            match class {
                Class::Pred => {
                    let zero = self.vconst32([0; 4]);
                    self.b.ins().icmp(IntCC::NotEqual, v, zero)
                }
                _ => v,
            }
        });
        V::X(vectors.collect())
    }

    /// What a register holds for one lane.
    fn lane_of(&mut self, o: &Operand, rows: Value, lane: Value) -> Value {
        match &o.value {
            V::U(v) => *v,
            V::A(base, stride) => {
                let ty = self.ty(*base);
                let lane = self.cast(lane, ty);
                let by = self.mul_imm(lane, *stride);
                self.b.ins().iadd(*base, by)
            }
            V::X(_) => {
                let at = self.row_address(o.class, rows, lane);
                let ty = match o.class {
                    Class::Pred | Class::B16 => types::I32,
                    class => self.class_type(class),
                };
                let v = self.b.ins().load(ty, flags(), at, o.row);
                match o.class {
                    Class::Pred => {
                        let zero = self.imm(types::I32, 0);
                        self.b.ins().icmp(IntCC::NotEqual, v, zero)
                    }
                    Class::B16 => self.b.ins().ireduce(types::I16, v),
                    _ => v,
                }
            }
        }
    }

    fn put_lane(&mut self, v: Value, class: Class, rows: Value, row: i32, lane: Value) {
        let v = self.int(v);
        let v = match class {
            Class::Pred | Class::B16 => self.b.ins().uextend(types::I32, v),
            _ => v,
        };
        let at = self.row_address(class, rows, lane);
        self.b.ins().store(flags(), v, at, row);
    }

    fn row_address(&mut self, class: Class, rows: Value, lane: Value) -> Value {
        let offset = self.mul_imm(lane, i64::from(class.slot_bytes()));
        self.b.ins().iadd(rows, offset)
    }
}

/// Whether vector code does what an instruction computes lane by lane.
fn is_done_by_lanes(op: &Op) -> bool {
    match op {
        Op::IntBin { op, ty, b, .. } => match op {
            IntBinOp::Div | IntBinOp::Rem => true,
            IntBinOp::Shl | IntBinOp::Shr => !matches!(b, Source::Imm(_)),
            _ => {
                matches!(ty, ScalarType::B64 | ScalarType::U64 | ScalarType::S64)
                    && matches!(op, IntBinOp::Min | IntBinOp::Max)
            }
        },
        Op::IntUn { op, .. } => matches!(op, IntUnOp::Popc | IntUnOp::Clz | IntUnOp::Brev),
        Op::Prmt { .. } | Op::Shf { .. } | Op::Bfi { .. } | Op::Sad { .. } => true,
        _ => false,
    }
}
