//! Slots and sites: where registers are kept, what is saved and loaded where.

use mica_ptx::ast::{Module, Op, RegId, ScalarType, Shape, WmmaMatrix};
use mica_ptx::visit::Access;
use mica_ptx_ops::matrix::wgmma::WgmmaPlan;
use mica_ptx_ops::matrix::{Fragment, MmaPlan, wmma_fragment};
use std::collections::HashMap;
use std::sync::Arc;

use super::{Plan, Saved, Slot, SlowSite, SyncKind, SyncSite, Tracking};
use crate::bits::BitSet;
use crate::liveness::visit_inst;
use crate::unit::{BlockId, Class, Place, Reg, Step, Term, WARP, is_lockstep};

/// Where the lanes of a warp hold the elements of a matrix that lies in memory, if the instruction has as many registers.
fn fragment(
    shape: Shape,
    matrix: WmmaMatrix,
    ty: ScalarType,
    registers: usize,
) -> Option<Fragment> {
    wmma_fragment(shape, matrix, ty).filter(|f| f.registers as usize == registers)
}

impl Plan {
    pub(crate) fn place_slots(&mut self) {
        let mut regs = BitSet::new(self.unit.regs.len());
        for &b in &self.entries {
            regs.union(&self.live_in[b as usize]);
        }
        if self.unit.has_calls() {
            regs.insert(self.unit.sp);
        }
        let mut most = 0;
        for &b in &self.graph.rpo {
            let block = &self.unit.blocks[b as usize];
            if matches!(block.term, Term::Sync { .. }) {
                most = most.max(8);
            }
        }
        self.operand_slots = most;
        // Counted again in `list_sites`, which knows how many operands there are.
        self.frame_bytes = 0;
        for r in regs.iter() {
            let class = self.unit.regs[r as usize];
            self.slots.insert(
                r,
                Slot {
                    offset: self.frame_bytes,
                    class,
                },
            );
            self.frame_bytes += class.slot_bytes() * 32;
        }
    }

    pub(crate) fn list_sites(&mut self, module: &Module) {
        let mut most = 0;
        for b in self.graph.rpo.clone() {
            let block = self.unit.blocks[b as usize].clone();
            if let Term::Sync { inst, next } = block.term {
                let site = self.sync_site(module, block.instance, inst, next);
                let op = &self.unit.inst(module, site.place).op;
                self.meets_cluster |= matches!(op, Op::BarCluster { .. });
                most = most.max(site.uses.len() as u32);
                self.sync_of.insert(b, self.syncs.len() as u32);
                self.syncs.push(site);
            }
            for s in &block.steps {
                if let Step::Inst(inst) = s {
                    let place = Place {
                        instance: block.instance,
                        inst: *inst,
                    };
                    let (uses, defs) = self.registers(module, place);
                    self.slow_of.insert(place, self.slow.len() as u32);
                    self.slow.push(SlowSite { place, uses, defs });
                }
            }
        }
        self.operand_slots = most;
        let base = most * 32 * 8;
        for slot in self.slots.values_mut() {
            slot.offset += base;
        }
        let results = self.syncs.iter_mut().flat_map(|site| &mut site.defs);
        for offset in results.filter_map(|result| result.2.as_mut()) {
            *offset += base;
        }
        self.frame_bytes = (self.frame_bytes + base).next_multiple_of(64);
        self.saved = self.entries.iter().map(|b| self.saved_at(&[*b])).collect();
    }

    /// The site of an instruction at which threads wait for each other. Offsets of its results do not count the operands'
    /// slots yet.
    fn sync_site(&self, module: &Module, instance: u32, inst: u32, next: BlockId) -> SyncSite {
        let place = Place { instance, inst };
        let op = &self.unit.inst(module, place).op;
        let (uses, defs) = match is_lockstep(op) {
            true => (Vec::new(), Vec::new()),
            false => self.registers(module, place),
        };
        let defs = defs.into_iter().map(|(r, c)| {
            let reg = self.unit.reg(instance, r);
            let live = self.live_in[next as usize].has(reg);
            (r, c, live.then(|| self.slots[&reg].offset))
        });
        let product = match op {
            Op::Mma(x) => MmaPlan::mma(x),
            Op::WmmaMma(x) => MmaPlan::wmma(x),
            _ => None,
        };
        let fragment = match op {
            Op::WmmaLoad(x) => fragment(x.shape, x.matrix, x.ty, x.dst.len()),
            Op::WmmaStore(x) => fragment(x.shape, WmmaMatrix::C, x.ty, x.src.len()),
            _ => None,
        };
        let wgmma = match op {
            Op::Wgmma(x) => WgmmaPlan::of(x),
            _ => None,
        };
        SyncSite {
            place,
            uses,
            defs: defs.collect(),
            next: self.entry_of[&next],
            kind: match op {
                Op::Bar { .. } | Op::BarCluster { .. } | Op::WgmmaWait => SyncKind::Barrier,
                Op::BarRed { .. } => SyncKind::Reduction,
                _ => SyncKind::Collective,
            },
            product: product.map(Arc::new),
            fragment: fragment.map(Arc::new),
            wgmma: wgmma.map(Arc::new),
        }
    }

    /// What vector code saves for threads that go on at one of `blocks`.
    pub(crate) fn saved_at(&self, blocks: &[BlockId]) -> Vec<Saved> {
        self.live_at(blocks)
            .into_iter()
            .map(|r| self.saved_register(r))
            .collect()
    }

    /// How vector code saves a register.
    pub(crate) fn saved_register(&self, r: Reg) -> Saved {
        Saved {
            slot: self.slots[&r],
            uniformity: self.uniformity(r),
        }
    }

    /// Registers needed at any of `blocks`, the stack pointer included.
    pub(crate) fn live_at(&self, blocks: &[BlockId]) -> Vec<Reg> {
        let mut all = BitSet::new(self.unit.regs.len());
        for b in blocks {
            all.union(&self.live_in[*b as usize]);
        }
        if self.unit.has_calls() {
            all.insert(self.unit.sp);
        }
        all.iter().collect()
    }

    /// Finds what has to be saved and loaded where, given that a slot stays good until its register
    /// is written again. With `inline`, as code for whole warps does it.
    pub(super) fn track_slots(&self, module: &Module, inline: bool) -> Tracking {
        if self.unit.has_calls() {
            // Registers cross calls by the stack, which this does not follow.
            let (n, blocks) = (self.unit.regs.len(), self.unit.blocks.len());
            let mut all = BitSet::new(n);
            (0..n as u32).for_each(|r| all.insert(r));
            return Tracking {
                dirty_in: vec![all.clone(); blocks],
                dirty_out: vec![all; blocks],
                resume_live: self.live_in.clone(),
            };
        }
        let (dirty_in, dirty_out) = self.dirty_registers(module, inline);
        let mut tracking = Tracking {
            dirty_in,
            dirty_out,
            resume_live: Vec::new(),
        };
        let mut at_start: HashMap<BlockId, Vec<Reg>> = HashMap::new();
        let mut at_end: HashMap<BlockId, Vec<Reg>> = HashMap::new();
        for &b in &self.graph.rpo {
            let stops = self
                .entry_of
                .get(&b)
                .is_some_and(|e| self.diverges.iter().any(|d| d.join == Some(*e)));
            if self.preheaders.contains(&b) {
                at_start.insert(b, self.before_loop(&tracking, b));
            }
            if stops || self.bail_of.contains_key(&b) || self.parks.contains_key(&b) {
                at_start.insert(b, self.dirty_at_start(&tracking, b));
            }
            match &self.unit.blocks[b as usize].term {
                Term::Sync { next, .. } => {
                    at_end.insert(b, self.dirty_at_end(&tracking, b, &[*next]));
                }
                Term::Br { then, els, .. } if self.diverge_of.contains_key(&b) => {
                    at_end.insert(b, self.dirty_at_end(&tracking, b, &[*then, *els]));
                }
                _ => {}
            }
        }
        let stops = |b: BlockId| self.stops(b, inline);
        tracking.resume_live = crate::liveness::resume_live(
            &self.unit,
            module,
            &self.graph,
            (&at_start, &at_end),
            &stops,
        );
        tracking
    }

    /// Registers whose slots are older than they, at the start and at the end of each block.
    fn dirty_registers(&self, module: &Module, inline: bool) -> (Vec<BitSet>, Vec<BitSet>) {
        let slotted: Vec<Reg> = self.slots.keys().copied().collect();
        let mut dirty_in = vec![BitSet::new(self.unit.regs.len()); self.unit.blocks.len()];
        let mut dirty_out = crate::uniformity::block_defs(&self.unit, module);
        let mut changed = true;
        while changed {
            changed = false;
            for &b in &self.graph.rpo {
                for &p in &self.graph.preds[b as usize] {
                    // A thread that waited starts from its slots.
                    if !self.stops(p, inline) {
                        changed |= dirty_in[b as usize].union(&dirty_out[p as usize]);
                    }
                }
                let mut dirty = dirty_in[b as usize].clone();
                if self.preheaders.contains(&b) {
                    // All that has a slot is clean after it.
                    slotted.iter().for_each(|r| dirty.remove(*r));
                }
                changed |= dirty_out[b as usize].union(&dirty);
            }
        }
        (dirty_in, dirty_out)
    }

    /// Whether threads always stop at the end of `b`.
    fn stops(&self, b: BlockId, inline: bool) -> bool {
        matches!(self.unit.blocks[b as usize].term, Term::Sync { .. })
            && !(inline && self.inline[b as usize])
    }

    /// What code of so many lanes keeps in slots.
    fn tracking(&self, lanes: usize) -> &Tracking {
        &self.tracking[usize::from(lanes == WARP)]
    }

    /// What must be saved for threads that stop at the start of `b`.
    pub(crate) fn save_at_start(&self, lanes: usize, b: BlockId) -> Vec<Reg> {
        self.dirty_at_start(self.tracking(lanes), b)
    }

    fn dirty_at_start(&self, tracking: &Tracking, b: BlockId) -> Vec<Reg> {
        let dirty = &tracking.dirty_in[b as usize];
        self.live_at(&[b])
            .into_iter()
            .filter(|r| dirty.has(*r))
            .collect()
    }

    /// What a block before a loop saves.
    pub(crate) fn presave(&self, lanes: usize, b: BlockId) -> Vec<Reg> {
        self.before_loop(self.tracking(lanes), b)
    }

    fn before_loop(&self, tracking: &Tracking, b: BlockId) -> Vec<Reg> {
        if !self.preheaders.contains(&b) {
            return Vec::new();
        }
        let mut regs = self.dirty_at_start(tracking, b);
        regs.retain(|r| self.slots.contains_key(r));
        regs
    }

    /// What must be saved at the end of `b` for threads that go on at one of `targets`.
    pub(crate) fn save_at_end(&self, lanes: usize, b: BlockId, targets: &[BlockId]) -> Vec<Reg> {
        self.dirty_at_end(self.tracking(lanes), b, targets)
    }

    fn dirty_at_end(&self, tracking: &Tracking, b: BlockId, targets: &[BlockId]) -> Vec<Reg> {
        let dirty = &tracking.dirty_out[b as usize];
        self.live_at(targets)
            .into_iter()
            .filter(|r| dirty.has(*r))
            .collect()
    }

    /// What must be loaded when a thread resumes at `b`.
    pub(crate) fn load_at(&self, lanes: usize, b: BlockId) -> Vec<Reg> {
        let mut live = self.tracking(lanes).resume_live[b as usize].clone();
        if self.unit.has_calls() {
            live.insert(self.unit.sp);
        }
        live.iter().collect()
    }

    /// Registers an instruction reads and writes, each once.
    #[allow(clippy::type_complexity, reason = "two lists of the same kind")]
    pub(crate) fn registers(
        &self,
        module: &Module,
        place: Place,
    ) -> (Vec<(RegId, Class)>, Vec<(RegId, Class)>) {
        let base = self.unit.instances[place.instance as usize].reg_base;
        let mut uses: Vec<(RegId, Class)> = Vec::new();
        let mut defs: Vec<(RegId, Class)> = Vec::new();
        visit_inst(
            &self.unit,
            module,
            place.instance,
            place.inst,
            &mut |r, a| {
                let item = (RegId(r - base), self.unit.regs[r as usize]);
                let list = if a == Access::Use {
                    &mut uses
                } else {
                    &mut defs
                };
                if !list.contains(&item) {
                    list.push(item);
                }
            },
        );
        (uses, defs)
    }
}
