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

mod cut;
mod entries;
mod pressure;
mod sides;
mod slots;
mod spread;
mod stack;

pub(crate) use entries::mask_of;
pub(crate) use sides::{Sides, is_pure};
pub(crate) use spread::Spread;
pub(crate) use stack::{LINK, Stack};

use cut::{add_preheaders, split};
use mica_ptx::ast::{MbarrierOp, Module, Op, Operand, Order, RegId, Space};
use mica_ptx::visit::Access;
use mica_ptx_ops::layout::ModuleLayout;
use mica_ptx_ops::matrix::wgmma::WgmmaPlan;
use mica_ptx_ops::matrix::{Fragment, MmaPlan};
use std::collections::HashMap;
use std::sync::Arc;

use crate::CompileError;
use crate::bits::BitSet;
use crate::bounds::BoundsProof;
use crate::graph::Graph;
use crate::grid_stride::has_grid_stride;
use crate::liveness::live_in;
use crate::nan_canonicalisation::raw_nan_registers;
use crate::uniformity::{Guard, Uniformities, Uniformity, solve};
use crate::unit::{Block, BlockId, Class, Place, Reg, Step, Term, Unit, is_warp_collective};

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
    /// Who waits there.
    pub(crate) kind: SyncKind,
    /// Where the elements of a matrix product are, worked out once.
    pub(crate) product: Option<Arc<MmaPlan>>,
    /// The same for a matrix that is loaded or stored.
    pub(crate) fragment: Option<Arc<Fragment>>,
    /// The same for the product of a warpgroup.
    pub(crate) wgmma: Option<Arc<WgmmaPlan>>,
}

/// Who waits for each other at a sync point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncKind {
    /// Threads of the block.
    Barrier,
    /// Threads of the block, who get a result.
    Reduction,
    /// Threads of a warp.
    Collective,
}

/// Where a group can leave vector code.
#[derive(Clone, Debug)]
pub(crate) struct DivergeSite {
    pub(crate) then: u32,
    pub(crate) els: u32,
    /// Where the paths meet again.
    pub(crate) join: Option<u32>,
    /// What a group that goes on there has to load; `None` where that is all.
    pub(crate) reload: Option<Vec<Reg>>,
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
    pub(crate) uniformity: Uniformity,
}

/// Which registers differ from their slots.
#[derive(Debug, Default)]
struct Tracking {
    /// Registers that may differ from their slots at the start of each block.
    dirty_in: Vec<BitSet>,
    /// The same at its end.
    dirty_out: Vec<BitSet>,
    /// Registers that must be loaded when a thread resumes at a block: those that are used, or
    /// saved because they may be dirty, before it stops again.
    resume_live: Vec<BitSet>,
}

pub(crate) struct Plan {
    pub(crate) unit: Unit,
    pub(crate) graph: Graph,
    pub(crate) live_in: Vec<BitSet>,
    pub(crate) uniformities: Uniformities,
    /// Registers in which a NaN may have the processor's bits.
    pub(crate) raw_nans: BitSet,
    /// The block of each entry. Entry 0 is the kernel's.
    pub(crate) entries: Vec<BlockId>,
    pub(crate) entry_of: HashMap<BlockId, u32>,
    pub(crate) slots: HashMap<Reg, Slot>,
    /// Where the stack pointer is kept, if it is.
    pub(crate) sp_slot: Option<Slot>,
    pub(crate) operand_slots: u32,
    pub(crate) frame_bytes: u32,
    pub(crate) syncs: Vec<SyncSite>,
    /// By block.
    pub(crate) sync_of: HashMap<BlockId, u32>,
    pub(crate) diverges: Vec<DivergeSite>,
    /// Sites of divergent branches, at the end of a block.
    pub(crate) diverge_of: HashMap<BlockId, u32>,
    /// Branches at the end of a block where vector code switches lanes off instead.
    pub(crate) sides_of: HashMap<BlockId, Sides>,
    /// Sites at the start of a block.
    pub(crate) bail_of: HashMap<BlockId, u32>,
    /// Tests at the start of a block in vector code.
    pub(crate) guards: HashMap<BlockId, Vec<Guard>>,
    /// Loop headers where a thread may stand aside for others.
    pub(crate) parks: HashMap<BlockId, u32>,
    /// Those of them where groups take turns in vector code: nobody waits for anybody there.
    pub(crate) grid_stride: Vec<BlockId>,
    /// Blocks before those of these loops that lie in no other loop where a thread may stand aside.
    pub(crate) turns: Vec<BlockId>,
    /// Blocks before loops that wait: they save what is dirty, so that the loop need not.
    preheaders: Vec<BlockId>,
    /// By entry: what vector code saves for it.
    pub(crate) saved: Vec<Vec<Saved>>,
    pub(crate) slow: Vec<SlowSite>,
    pub(crate) slow_of: HashMap<Place, u32>,
    /// What differs from the slots where: with every sync point a stop, and with collectives inline
    /// ([`Plan::inline`]).
    tracking: [Tracking; 2],
    /// Registers that are written once, with a number.
    pub(crate) constants: HashMap<Reg, u64>,
    /// By block: ends with a collective that code for whole warps does without stopping.
    pub(crate) inline: Vec<bool>,
    /// By entry, whether vector code can be entered there: for groups, and for whole warps.
    vector_entries: [Vec<bool>; 2],
    /// What can be proven of a launch.
    pub(crate) proof: BoundsProof,
    /// Local memory.
    pub(crate) stack: Stack,
    /// Whether threads meet at the barrier of a cluster.
    pub(crate) meets_cluster: bool,
}

impl Plan {
    pub(crate) fn build(
        module: &Module,
        layout: &ModuleLayout,
        kernel: mica_ptx::ast::FuncId,
    ) -> Result<Plan, CompileError> {
        let mut unit = Unit::build(module, layout, kernel)?;
        crate::limit::unit(&unit)?;
        let graph = Graph::build(&unit);
        let live = live_in(&unit, module, &graph);
        let uniformities = solve(&unit, module, layout, &graph, &live);
        let guards = split(&mut unit, module, &uniformities);
        let graph = Graph::build(&unit);
        let live = live_in(&unit, module, &graph);
        let grid_stride: Vec<BlockId> = (graph.rpo.iter().copied())
            .filter(|b| graph.is_header[*b as usize])
            .filter(|b| has_grid_stride(&unit, module, &graph, &uniformities, &live, *b))
            .collect();
        let preheaders = add_preheaders(&mut unit, &graph, &grid_stride);
        let graph = Graph::build(&unit);
        let live = live_in(&unit, module, &graph);
        crate::interrupt::poll();
        let raw_nans = raw_nan_registers(&unit, module);
        crate::interrupt::poll();
        let proof = BoundsProof::build(&unit, module, layout, &graph, &guards);
        let mut plan = Plan {
            unit,
            graph,
            live_in: live,
            uniformities,
            raw_nans,
            entries: Vec::new(),
            entry_of: HashMap::new(),
            slots: HashMap::new(),
            sp_slot: None,
            operand_slots: 0,
            frame_bytes: 0,
            syncs: Vec::new(),
            sync_of: HashMap::new(),
            diverges: Vec::new(),
            diverge_of: HashMap::new(),
            sides_of: HashMap::new(),
            bail_of: HashMap::new(),
            guards,
            parks: HashMap::new(),
            grid_stride,
            turns: Vec::new(),
            preheaders,
            saved: Vec::new(),
            slow: Vec::new(),
            slow_of: HashMap::new(),
            tracking: Default::default(),
            constants: HashMap::new(),
            inline: Vec::new(),
            vector_entries: Default::default(),
            proof,
            stack: Stack::default(),
            meets_cluster: false,
        };
        plan.complete(module);
        Ok(plan)
    }

    /// Finds where code is entered and left, and what it keeps in memory there.
    fn complete(&mut self, module: &Module) {
        crate::interrupt::poll();
        self.inline = self.inline_blocks(module);
        self.constants = self.find_constants(module);
        self.find_entries(module);
        crate::interrupt::poll();
        self.place_slots();
        crate::interrupt::poll();
        self.sp_slot = self.slots.get(&self.unit.sp).copied();
        self.list_sites(module);
        for at in 0..self.diverges.len() {
            crate::interrupt::poll();
            self.diverges[at].reload = self.reload(module, &self.diverges[at]);
        }
        self.vector_entries = [false, true].map(|warps| self.find_vector_entries(module, warps));
        self.tracking = [false, true].map(|inline| self.track_slots(module, inline));
        self.measure_stack(module);
    }

    pub(crate) fn uniformity(&self, r: Reg) -> Uniformity {
        self.uniformities.of[r as usize]
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
                } if self.uniformity(pred) == Uniformity::Varying => {
                    if let Some(sides) = self.sides(module, b) {
                        self.sides_of.insert(b, sides);
                    } else {
                        let then = self.entry(then);
                        let els = self.entry(els);
                        let join = self.graph.ipdom[b as usize].map(|j| self.entry(j));
                        self.diverge_of.insert(b, self.diverges.len() as u32);
                        self.diverges.push(DivergeSite {
                            then,
                            els,
                            join,
                            reload: None,
                        });
                    }
                }
                Term::Table { index, .. } => {
                    let instance = self.unit.blocks[b as usize].instance;
                    let uniform = index.reg().is_none_or(|r| {
                        self.uniformity(self.unit.reg(instance, r)) == Uniformity::Uniform
                    });
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
        let read = self.read_registers(module);
        for b in self.graph.rpo.clone() {
            if !self.graph.is_header[b as usize] {
                continue;
            }
            if self.waits(module, b, &read) || self.waits_in_warps(module, b) {
                self.grid_stride.retain(|s| *s != b);
            } else if !self.grid_stride.contains(&b) {
                continue;
            }
            let e = self.entry(b);
            self.parks.insert(b, e);
        }
        self.turns = self.outer_turns();
    }

    /// Where a group begins a loop of turns that no other loop counts rounds around: there the count of rounds can begin anew.
    /// Within a loop that waits it must not, or that loop would never stand aside.
    fn outer_turns(&self) -> Vec<BlockId> {
        let begins = |b: &BlockId| {
            let next = &self.graph.succs[*b as usize];
            next.iter().any(|next| self.grid_stride.contains(next))
        };
        let mut turns: Vec<BlockId> = self.preheaders.iter().copied().filter(begins).collect();
        for header in self.parks.keys() {
            if turns.is_empty() {
                break;
            }
            let body = self.graph.loop_body(*header);
            turns.retain(|b| !body.contains(b));
        }
        turns
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
            reload: None,
        });
    }

    /// Whether a loop can wait for another thread.
    fn waits(&self, module: &Module, header: BlockId, read: &BitSet) -> bool {
        self.graph.loop_body(header).into_iter().any(|b| {
            let block = &self.unit.blocks[b as usize];
            block.steps.iter().any(|s| {
                let Step::Inst(i) = s else { return false };
                match &self.unit.func(module, block.instance).body[*i as usize].op {
                    // A result that nobody reads tells nothing.
                    Op::Atom(a) => a
                        .dst
                        .iter()
                        .flatten()
                        .any(|r| read.has(self.unit.reg(block.instance, *r))),
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

    /// Registers that are written once, with a number. What is read before it is written is undefined.
    fn find_constants(&self, module: &Module) -> HashMap<Reg, u64> {
        let mut written = vec![0u32; self.unit.regs.len()];
        let mut found = HashMap::new();
        for &b in &self.graph.rpo {
            let block = &self.unit.blocks[b as usize];
            let mut count = |r: Reg, a: Access| written[r as usize] += u32::from(a == Access::Def);
            for s in &block.steps {
                crate::liveness::visit_step(&self.unit, module, block.instance, *s, &mut count);
                let Step::Inst(i) = s else { continue };
                let op = &self.unit.func(module, block.instance).body[*i as usize].op;
                if let Op::Mov {
                    dst,
                    src: Operand::Imm(bits),
                    ..
                } = op
                {
                    found.insert(self.unit.reg(block.instance, *dst), *bits);
                }
            }
            crate::liveness::visit_term(&self.unit, module, b, &mut count);
        }
        found.retain(|r, _| written[*r as usize] == 1);
        found
    }

    /// Blocks that end with a collective of a warp that needs no other warp.
    fn inline_blocks(&self, module: &Module) -> Vec<bool> {
        let inline = |block: &Block| match block.term {
            Term::Sync { inst, .. } => {
                is_warp_collective(&self.unit.func(module, block.instance).body[inst as usize].op)
            }
            _ => false,
        };
        self.unit.blocks.iter().map(inline).collect()
    }

    /// Whether code for whole warps could wait in a loop for another warp. Such code does not stop at
    /// collectives, which order memory: a plain load beside one may be of what another warp writes.
    fn waits_in_warps(&self, module: &Module, header: BlockId) -> bool {
        let body = self.graph.loop_body(header);
        body.iter().any(|b| self.inline[*b as usize])
            && body.iter().any(|b| {
                let block = &self.unit.blocks[*b as usize];
                block.steps.iter().any(|s| {
                    let Step::Inst(i) = s else { return false };
                    let op = &self.unit.func(module, block.instance).body[*i as usize].op;
                    matches!(
                        op,
                        Op::Ld {
                            space: Space::Generic
                                | Space::Global
                                | Space::Shared
                                | Space::SharedCluster,
                            ..
                        }
                    )
                })
            })
    }

    /// Registers that any instruction reads.
    fn read_registers(&self, module: &Module) -> BitSet {
        let mut read = BitSet::new(self.unit.regs.len());
        let mut look = |r: Reg, a: Access| {
            if a == Access::Use {
                read.insert(r);
            }
        };
        for &b in &self.graph.rpo {
            let block = &self.unit.blocks[b as usize];
            for s in &block.steps {
                crate::liveness::visit_step(&self.unit, module, block.instance, *s, &mut look);
            }
            crate::liveness::visit_term(&self.unit, module, b, &mut look);
        }
        read
    }
}
