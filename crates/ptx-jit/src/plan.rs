//! What both versions of a kernel, scalar and vector, agree on.
//!
//! Owns the *entries* (blocks at which a thread can be resumed), the spill slots that hold its
//! registers meanwhile, and the sites that generated code and the runtime name to each other.
//!
//! Scratch memory, per block of threads:
//! ```text
//!   header │ continuation of each thread │ barriers │ frame of warp 0 │ frame of warp 1 │ …
//!   frame: operands of sync points [operand][lane] │ register slots [slot][lane]
//! ```

use mica_ptx::ast::{MbarrierOp, Module, Op, Order, RegId};
use mica_ptx::visit::Access;
use mica_ptx_ops::layout::ModuleLayout;
use std::collections::HashMap;

use crate::CompileError;
use crate::bits::BitSet;
use crate::graph::Graph;
use crate::liveness::{live_in, visit_inst};
use crate::shape::{Guard, Shape, Shapes, solve};
use crate::stream::streams;
use crate::unit::{Block, BlockId, Class, Place, Reg, Step, Term, Unit};

/// A register's place in a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) offset: u32,
    pub(crate) class: Class,
}

/// Where threads wait for each other.
#[derive(Clone, Debug)]
pub(crate) struct SyncSite {
    pub(crate) place: Place,
    /// Registers the instruction reads, in order, without repeats; operand slot `i` holds the `i`th.
    pub(crate) uses: Vec<(RegId, Class)>,
    /// Registers it writes, with their slots (absent when never read).
    pub(crate) defs: Vec<(RegId, Class, Option<u32>)>,
    /// The entry to go on at.
    pub(crate) next: u32,
}

/// Where a group can leave vector code.
#[derive(Clone, Debug)]
pub(crate) struct DivergeSite {
    pub(crate) then: u32,
    pub(crate) els: u32,
    /// Where the paths meet again.
    pub(crate) join: Option<u32>,
}

/// An instruction done by the runtime.
#[derive(Clone, Debug)]
pub(crate) struct SlowSite {
    pub(crate) place: Place,
    pub(crate) uses: Vec<(RegId, Class)>,
    pub(crate) defs: Vec<(RegId, Class)>,
}

/// A register as it is saved by vector code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Saved {
    pub(crate) slot: Slot,
    pub(crate) shape: Shape,
}

pub(crate) struct Plan {
    pub(crate) unit: Unit,
    pub(crate) graph: Graph,
    pub(crate) live_in: Vec<BitSet>,
    pub(crate) shapes: Shapes,
    /// The block of each entry. Entry 0 is the kernel's.
    pub(crate) entries: Vec<BlockId>,
    pub(crate) entry_of: HashMap<BlockId, u32>,
    pub(crate) slots: HashMap<Reg, Slot>,
    pub(crate) operand_slots: u32,
    pub(crate) frame_bytes: u32,
    pub(crate) syncs: Vec<SyncSite>,
    /// By block.
    pub(crate) sync_of: HashMap<BlockId, u32>,
    pub(crate) diverges: Vec<DivergeSite>,
    /// Sites of divergent branches, at the end of a block.
    pub(crate) diverge_of: HashMap<BlockId, u32>,
    /// Sites at the start of a block.
    pub(crate) bail_of: HashMap<BlockId, u32>,
    /// Tests at the start of a block in vector code.
    pub(crate) guards: HashMap<BlockId, Vec<Guard>>,
    /// Loop headers where a thread may stand aside for others.
    pub(crate) parks: HashMap<BlockId, u32>,
    /// Those of them where groups take turns in vector code: nobody waits for anybody there.
    pub(crate) streaming: Vec<BlockId>,
    /// Blocks before loops that wait: they save what is dirty, so that the loop need not.
    preheaders: Vec<BlockId>,
    /// By entry: what vector code saves for it.
    pub(crate) saved: Vec<Vec<Saved>>,
    pub(crate) slow: Vec<SlowSite>,
    pub(crate) slow_of: HashMap<Place, u32>,
    /// Registers that may differ from their slots at the start of each block.
    dirty_in: Vec<BitSet>,
    /// The same at its end.
    dirty_out: Vec<BitSet>,
    /// Registers that must be loaded when a thread resumes at a block: those that are used, or
    /// saved because they may be dirty, before it stops again.
    region_live: Vec<BitSet>,
}

impl Plan {
    pub(crate) fn build(
        module: &Module,
        layout: &ModuleLayout,
        kernel: mica_ptx::ast::FuncId,
    ) -> Result<Plan, CompileError> {
        let mut unit = Unit::build(module, layout, kernel)?;
        let graph = Graph::build(&unit);
        let live = live_in(&unit, module, &graph);
        let shapes = solve(&unit, module, layout, &graph, &live);
        let guards = split(&mut unit, module, &shapes);
        let graph = Graph::build(&unit);
        let live = live_in(&unit, module, &graph);
        let streaming: Vec<BlockId> = (graph.rpo.iter().copied())
            .filter(|b| graph.is_header[*b as usize])
            .filter(|b| streams(&unit, module, &graph, &shapes, &live, *b))
            .collect();
        let preheaders = add_preheaders(&mut unit, &graph, &streaming);
        let graph = Graph::build(&unit);
        let live = live_in(&unit, module, &graph);
        let mut plan = Plan {
            unit,
            graph,
            live_in: live,
            shapes,
            entries: Vec::new(),
            entry_of: HashMap::new(),
            slots: HashMap::new(),
            operand_slots: 0,
            frame_bytes: 0,
            syncs: Vec::new(),
            sync_of: HashMap::new(),
            diverges: Vec::new(),
            diverge_of: HashMap::new(),
            bail_of: HashMap::new(),
            guards,
            parks: HashMap::new(),
            streaming,
            preheaders,
            saved: Vec::new(),
            slow: Vec::new(),
            slow_of: HashMap::new(),
            dirty_in: Vec::new(),
            dirty_out: Vec::new(),
            region_live: Vec::new(),
        };
        plan.find_entries(module);
        plan.place_slots();
        plan.list_sites(module);
        plan.track_slots(module);
        Ok(plan)
    }

    pub(crate) fn shape(&self, r: Reg) -> Shape {
        self.shapes.of[r as usize]
    }

    fn entry(&mut self, b: BlockId) -> u32 {
        if let Some(e) = self.entry_of.get(&b) {
            return *e;
        }
        let e = self.entries.len() as u32;
        self.entries.push(b);
        self.entry_of.insert(b, e);
        e
    }

    fn find_entries(&mut self, module: &Module) {
        let start = self.unit.roots[0].entry;
        self.entry(start);
        for b in self.graph.rpo.clone() {
            match self.unit.blocks[b as usize].term.clone() {
                Term::Sync { next, .. } => {
                    self.entry(next);
                }
                Term::Br {
                    pred, then, els, ..
                } if self.shape(pred) == Shape::Varying => {
                    let then = self.entry(then);
                    let els = self.entry(els);
                    let join = self.graph.ipdom[b as usize].map(|j| self.entry(j));
                    self.diverge_of.insert(b, self.diverges.len() as u32);
                    self.diverges.push(DivergeSite { then, els, join });
                }
                Term::Table { index, .. } => {
                    let instance = self.unit.blocks[b as usize].instance;
                    let uniform = index
                        .reg()
                        .is_none_or(|r| self.shape(self.unit.reg(instance, r)) == Shape::Uniform);
                    if !uniform {
                        self.bail(b);
                    }
                }
                _ => {}
            }
            if self.guards.contains_key(&b) {
                self.bail(b);
            }
        }
        for b in self.graph.rpo.clone() {
            if !self.graph.is_header[b as usize] {
                continue;
            }
            if self.waits(module, b) {
                self.streaming.retain(|s| *s != b);
            } else if !self.streaming.contains(&b) {
                continue;
            }
            let e = self.entry(b);
            self.parks.insert(b, e);
        }
    }

    /// Lets a group leave vector code at the start of `b`.
    fn bail(&mut self, b: BlockId) {
        let e = self.entry(b);
        let join = self.graph.ipdom[b as usize].map(|j| self.entry(j));
        self.bail_of.insert(b, self.diverges.len() as u32);
        self.diverges.push(DivergeSite {
            then: e,
            els: e,
            join,
        });
    }

    /// Whether a loop can wait for another thread.
    fn waits(&self, module: &Module, header: BlockId) -> bool {
        self.graph.loop_body(header).into_iter().any(|b| {
            let block = &self.unit.blocks[b as usize];
            block.steps.iter().any(|s| {
                let Step::Inst(i) = s else { return false };
                match &self.unit.func(module, block.instance).body[*i as usize].op {
                    // A result that nobody reads tells nothing.
                    Op::Atom(a) => a.dst.iter().flatten().any(|r| {
                        let reg = self.unit.reg(block.instance, *r);
                        self.is_read(module, reg)
                    }),
                    Op::Ld { order, .. } => *order != Order::Weak,
                    Op::Fence { .. } | Op::Nanosleep { .. } => true,
                    Op::Mbarrier {
                        op: MbarrierOp::Wait { .. },
                        ..
                    } => true,
                    _ => false,
                }
            })
        })
    }

    /// Whether any instruction reads the register.
    fn is_read(&self, module: &Module, reg: Reg) -> bool {
        self.graph.rpo.iter().any(|&b| {
            let block = &self.unit.blocks[b as usize];
            let mut found = false;
            let mut look = |r: Reg, a: Access| found |= r == reg && a == Access::Use;
            for s in &block.steps {
                crate::liveness::visit_step(&self.unit, module, block.instance, *s, &mut look);
            }
            crate::liveness::visit_term(&self.unit, module, b, &mut look);
            found
        })
    }

    fn place_slots(&mut self) {
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

    fn list_sites(&mut self, module: &Module) {
        let mut most = 0;
        for b in self.graph.rpo.clone() {
            let block = self.unit.blocks[b as usize].clone();
            if let Term::Sync { inst, next } = block.term {
                let place = Place {
                    instance: block.instance,
                    inst,
                };
                let (uses, defs) = self.registers(module, place);
                most = most.max(uses.len() as u32);
                let next_entry = self.entry_of[&next];
                let defs = defs
                    .into_iter()
                    .map(|(r, c)| {
                        let reg = self.unit.reg(block.instance, r);
                        let live = self.live_in[next as usize].has(reg);
                        (r, c, live.then(|| self.slots[&reg].offset))
                    })
                    .collect();
                self.sync_of.insert(b, self.syncs.len() as u32);
                self.syncs.push(SyncSite {
                    place,
                    uses,
                    defs,
                    next: next_entry,
                });
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
        for site in &mut self.syncs {
            for d in &mut site.defs {
                if let Some(o) = &mut d.2 {
                    *o += base;
                }
            }
        }
        self.frame_bytes = (self.frame_bytes + base).next_multiple_of(64);
        self.saved = self.entries.iter().map(|b| self.saved_at(&[*b])).collect();
    }

    /// What vector code saves for threads that go on at one of `blocks`.
    pub(crate) fn saved_at(&self, blocks: &[BlockId]) -> Vec<Saved> {
        self.live_at(blocks)
            .into_iter()
            .map(|r| Saved {
                slot: self.slots[&r],
                shape: self.shape(r),
            })
            .collect()
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
    /// is written again.
    fn track_slots(&mut self, module: &Module) {
        let n = self.unit.regs.len();
        let blocks = self.unit.blocks.len();
        if self.unit.has_calls() {
            // Registers cross calls by the stack, which this does not follow.
            let mut all = BitSet::new(n);
            (0..n as u32).for_each(|r| all.insert(r));
            self.dirty_in = vec![all.clone(); blocks];
            self.dirty_out = vec![all; blocks];
            self.region_live = self.live_in.clone();
            return;
        }
        let defs = crate::shape::block_defs(&self.unit, module);
        let slotted: Vec<Reg> = self.slots.keys().copied().collect();
        let mut dirty_in = vec![BitSet::new(n); blocks];
        let mut dirty_out = defs;
        let mut changed = true;
        while changed {
            changed = false;
            for &b in &self.graph.rpo {
                for &p in &self.graph.preds[b as usize] {
                    // A thread that waited starts from its slots.
                    if !matches!(self.unit.blocks[p as usize].term, Term::Sync { .. }) {
                        changed |= dirty_in[b as usize].union(&dirty_out[p as usize]);
                    }
                }
                if self.preheaders.contains(&b) {
                    // All that has a slot is clean after it.
                    let mut rest = dirty_in[b as usize].clone();
                    slotted.iter().for_each(|r| rest.remove(*r));
                    changed |= dirty_out[b as usize].union(&rest);
                } else {
                    let dirty = dirty_in[b as usize].clone();
                    changed |= dirty_out[b as usize].union(&dirty);
                }
            }
        }
        self.dirty_in = dirty_in;
        self.dirty_out = dirty_out;
        let mut at_start: HashMap<BlockId, Vec<Reg>> = HashMap::new();
        let mut at_end: HashMap<BlockId, Vec<Reg>> = HashMap::new();
        for &b in &self.graph.rpo {
            let stops = self
                .entry_of
                .get(&b)
                .is_some_and(|e| self.diverges.iter().any(|d| d.join == Some(*e)));
            if self.preheaders.contains(&b) {
                at_start.insert(b, self.presave(b));
            }
            if stops || self.bail_of.contains_key(&b) || self.parks.contains_key(&b) {
                at_start.insert(b, self.save_at_start(b));
            }
            match &self.unit.blocks[b as usize].term {
                Term::Sync { next, .. } => {
                    at_end.insert(b, self.save_at_end(b, &[*next]));
                }
                Term::Br { then, els, .. } if self.diverge_of.contains_key(&b) => {
                    at_end.insert(b, self.save_at_end(b, &[*then, *els]));
                }
                _ => {}
            }
        }
        self.region_live =
            crate::liveness::region_live(&self.unit, module, &self.graph, &at_start, &at_end);
    }

    /// What must be saved for threads that stop at the start of `b`.
    pub(crate) fn save_at_start(&self, b: BlockId) -> Vec<Reg> {
        let dirty = &self.dirty_in[b as usize];
        self.live_at(&[b])
            .into_iter()
            .filter(|r| dirty.has(*r))
            .collect()
    }

    /// What a block before a loop saves.
    pub(crate) fn presave(&self, b: BlockId) -> Vec<Reg> {
        if !self.preheaders.contains(&b) {
            return Vec::new();
        }
        let mut regs = self.save_at_start(b);
        regs.retain(|r| self.slots.contains_key(r));
        regs
    }

    /// What must be saved at the end of `b` for threads that go on at one of `targets`.
    pub(crate) fn save_at_end(&self, b: BlockId, targets: &[BlockId]) -> Vec<Reg> {
        let dirty = &self.dirty_out[b as usize];
        self.live_at(targets)
            .into_iter()
            .filter(|r| dirty.has(*r))
            .collect()
    }

    /// What must be loaded when a thread resumes at `b`.
    pub(crate) fn load_at(&self, b: BlockId) -> Vec<Reg> {
        let mut live = self.region_live[b as usize].clone();
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

/// Puts a block before every loop in which threads wait for each other or take turns.
fn add_preheaders(unit: &mut Unit, graph: &Graph, streaming: &[BlockId]) -> Vec<BlockId> {
    if unit.has_calls() {
        return Vec::new();
    }
    let mut made = Vec::new();
    for &h in &graph.rpo {
        if !graph.is_header[h as usize] {
            continue;
        }
        let body = graph.loop_body(h);
        let waits = |b: &u32| matches!(unit.blocks[*b as usize].term, Term::Sync { .. });
        if !body.iter().any(waits) && !streaming.contains(&h) {
            continue;
        }
        let outside: Vec<u32> = graph.preds[h as usize]
            .iter()
            .copied()
            .filter(|p| !body.contains(p))
            .collect();
        // Where a thread resumes right at the loop there is nothing to save.
        if outside.iter().any(waits) {
            continue;
        }
        let new = unit.blocks.len() as u32;
        let instance = unit.blocks[h as usize].instance;
        unit.blocks.push(Block {
            instance,
            steps: Vec::new(),
            term: Term::Jump(h),
        });
        for p in outside {
            unit.blocks[p as usize].retarget(h, new);
        }
        made.push(new);
    }
    made
}

/// Cuts blocks so that guarded instructions and varying tables are at the start of one.
fn split(unit: &mut Unit, module: &Module, shapes: &Shapes) -> HashMap<BlockId, Vec<Guard>> {
    let mut guards: HashMap<BlockId, Vec<Guard>> = HashMap::new();
    let mut b = 0u32;
    while (b as usize) < unit.blocks.len() {
        let block = &unit.blocks[b as usize];
        let instance = block.instance;
        let mut cut = None;
        // Registers already known not to wrap in this block.
        let mut known: Vec<Guard> = guards.get(&b).cloned().unwrap_or_default();
        for (at, s) in block.steps.iter().enumerate() {
            if let Step::Inst(i) = s
                && let Some(g) = shapes.guards.get(&(instance, *i))
            {
                let live = matches!(shapes.of[g.reg as usize], Shape::Affine(_));
                if live && !known.contains(g) {
                    cut = Some((at, Some(*g)));
                    break;
                }
            }
            crate::liveness::visit_step(unit, module, instance, *s, &mut |r, a| {
                if a == Access::Def {
                    known.retain(|g| g.reg != r);
                }
            });
        }
        if cut.is_none()
            && !block.steps.is_empty()
            && let Term::Table { index, .. } = &block.term
        {
            let varying = index
                .reg()
                .is_some_and(|r| shapes.of[unit.reg(instance, r) as usize] != Shape::Uniform);
            if varying {
                cut = Some((block.steps.len(), None));
            }
        }
        if let Some((at, guard)) = cut {
            if at == 0 {
                // Already at the start: only the test is missing.
                guards.entry(b).or_default().extend(guard);
                continue;
            }
            let new = unit.blocks.len() as u32;
            let block = &mut unit.blocks[b as usize];
            let steps = block.steps.split_off(at);
            let term = std::mem::replace(&mut block.term, Term::Jump(new));
            unit.blocks.push(Block {
                instance,
                steps,
                term,
            });
            if let Some(g) = guard {
                guards.entry(new).or_default().push(g);
            }
        }
        b += 1;
    }
    guards
}
