//! Finds out how a kernel computes its addresses.
//!
//! A register is followed where it has one definition that every path to the reader passes, so what is read
//! is what was written there, in loops too. A register with two is followed where it counts a loop: one
//! before the loop, one sum in it that decides about the next round.

use mica_ptx::ast::{AddrBase, Module, Op, Space};
use mica_ptx::visit::Access as Touch;
use mica_ptx_ops::layout::ModuleLayout;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

use super::dominate::Dominators;
use super::{Access, BoundsProof, Id, Node, Width};
use crate::bits::BitSet;
use crate::graph::Graph;
use crate::liveness::{visit_step, visit_term};
use crate::uniformity::Guard;
use crate::unit::{BlockId, Place, Reg, Step, Unit};

/// A step of a block.
pub(super) type At = (BlockId, usize);

/// Longer chains are not followed, nor are kernels with more blocks.
const DEEPEST: usize = 100;
const MOST_BLOCKS: usize = 2000;

/// What is known of a register is followed, and of what that is compared with, but no further: each step
/// could have as many branches as there are before it.
const MOST_FACTS: usize = 2;

/// A kernel that takes more is checked: looking must end, and every launch evaluates all nodes.
const MOST_WORK: usize = 1 << 20;
const MOST_NODES: usize = 1 << 13;

/// Where a register is written.
#[derive(Clone, Default)]
struct Written {
    /// By instructions.
    at: Vec<At>,
    /// In another way.
    otherwise: bool,
}

pub(super) struct Builder<'a> {
    pub(super) unit: &'a Unit,
    pub(super) module: &'a Module,
    pub(super) layout: &'a ModuleLayout,
    pub(super) graph: &'a Graph,
    pub(super) dominators: Dominators,
    pub(super) loops: Vec<(BlockId, Vec<BlockId>)>,
    written: Vec<Written>,
    proof: BoundsProof,
    /// By definition, and how many facts led there.
    known: HashMap<(At, usize), Option<Id>>,
    /// By block, which others control can come to from its end; found out when it is asked for.
    reached: RefCell<HashMap<BlockId, BitSet>>,
    depth: usize,
    facts_deep: usize,
    worked: Cell<usize>,
}

impl BoundsProof {
    /// What can be proven of a kernel without functions of its own.
    pub(crate) fn build(
        unit: &Unit,
        module: &Module,
        layout: &ModuleLayout,
        graph: &Graph,
        guards: &HashMap<BlockId, Vec<Guard>>,
    ) -> BoundsProof {
        if unit.has_calls() || unit.blocks.len() > MOST_BLOCKS {
            return BoundsProof::default();
        }
        let mut b = Builder {
            unit,
            module,
            layout,
            graph,
            dominators: Dominators::of(graph),
            loops: (graph.rpo.iter().copied())
                .filter(|h| graph.is_header[*h as usize])
                .map(|h| (h, graph.loop_body(h)))
                .collect(),
            written: vec![Written::default(); unit.regs.len()],
            proof: BoundsProof::default(),
            known: HashMap::new(),
            reached: RefCell::default(),
            depth: 0,
            facts_deep: 0,
            worked: Cell::new(0),
        };
        b.find_definitions();
        b.find_accesses();
        // In order: code that is kept on disk must leave out what this very list speaks of.
        let mut blocks: Vec<BlockId> = guards.keys().copied().collect();
        blocks.sort_unstable();
        for block in blocks {
            for g in guards.get(&block).into_iter().flatten() {
                let width = Width {
                    bits: 32,
                    signed: g.signed,
                };
                if let Some(id) = b.register(g.reg, (block, 0)) {
                    let id = b.node(Node::Read(id, width));
                    b.proof.sure.push(id);
                    b.proof.guards.insert((block, g.reg));
                }
            }
        }
        if b.worked.get() > MOST_WORK || b.proof.nodes.len() > MOST_NODES {
            return BoundsProof::default();
        }
        b.proof
    }
}

impl Builder<'_> {
    fn find_definitions(&mut self) {
        for &b in &self.graph.rpo {
            let block = &self.unit.blocks[b as usize];
            for (at, step) in block.steps.iter().enumerate() {
                let plain = matches!(step, Step::Inst(_));
                visit_step(
                    self.unit,
                    self.module,
                    block.instance,
                    *step,
                    &mut |r, a| {
                        if a == Touch::Def {
                            let w = &mut self.written[r as usize];
                            w.at.push((b, at));
                            w.otherwise |= !plain;
                        }
                    },
                );
            }
            visit_term(self.unit, self.module, b, &mut |r, a| {
                self.written[r as usize].otherwise |= a == Touch::Def;
            });
        }
    }

    fn find_accesses(&mut self) {
        let mut missed: HashSet<Place> = HashSet::new();
        for &b in &self.graph.rpo {
            let block = &self.unit.blocks[b as usize];
            for (at, step) in block.steps.iter().enumerate() {
                let Step::Inst(inst) = *step else { continue };
                let place = Place {
                    instance: block.instance,
                    inst,
                };
                let (space, ty, n, addr) = match &self.unit.inst(self.module, place).op {
                    Op::Ld {
                        space,
                        ty,
                        dst,
                        addr,
                        ..
                    } => (*space, *ty, dst.len(), addr),
                    Op::St {
                        space,
                        ty,
                        src,
                        addr,
                        ..
                    } => (*space, *ty, src.len(), addr),
                    _ => continue,
                };
                let in_arena = matches!(space, Space::Global | Space::Generic | Space::Const);
                let (AddrBase::Reg(r), true) = (addr.base, in_arena) else {
                    continue;
                };
                let reg = self.unit.reg(block.instance, r);
                let address = self.register(reg, (b, at));
                let Some(address) = address.filter(|_| self.bits(reg) == 64) else {
                    missed.insert(place);
                    continue;
                };
                let address = self.node(Node::Read(
                    address,
                    Width {
                        bits: 64,
                        signed: false,
                    },
                ));
                self.proof.accesses.push(Access {
                    address,
                    offset: addr.offset,
                    bytes: ty.bytes() * n as u32,
                });
                self.proof.places.insert(place, address);
            }
        }
        // The same instruction may be in two blocks.
        self.proof.places.retain(|p, _| !missed.contains(p));
    }

    pub(super) fn node(&mut self, node: Node) -> Id {
        self.proof.nodes.push(node);
        self.proof.nodes.len() as Id - 1
    }

    /// Whether whatever is at `later` comes after `earlier`, on every path.
    pub(super) fn precedes(&self, earlier: At, later: At) -> bool {
        if earlier.0 == later.0 {
            earlier.1 < later.1
        } else {
            self.dominators.dominates(earlier.0, later.0)
        }
    }

    /// Counts what is done. Whether it is too much.
    pub(super) fn work(&self, n: usize) -> bool {
        self.worked.set(self.worked.get().saturating_add(n));
        self.worked.get() > MOST_WORK || self.proof.nodes.len() > MOST_NODES
    }

    /// The values of a register that is read at `at`.
    pub(super) fn register(&mut self, reg: Reg, at: At) -> Option<Id> {
        if self.depth > DEEPEST || self.work(1) {
            return None;
        }
        self.depth += 1;
        let found = self.followed(reg, at);
        self.depth -= 1;
        found
    }

    fn followed(&mut self, reg: Reg, at: At) -> Option<Id> {
        match self.writers(reg, at)?[..] {
            [definition] if self.precedes(definition, at) => {
                let key = (definition, self.facts_deep);
                let id = match self.known.get(&key) {
                    Some(known) => (*known)?,
                    None => {
                        let made = self.instruction(definition);
                        self.known.insert(key, made);
                        made?
                    }
                };
                Some(self.narrowed(id, reg, at))
            }
            [a, b] => self
                .counter(reg, a, b, at)
                .or_else(|| self.counter(reg, b, a, at)),
            _ => None,
        }
    }

    /// The instructions whose values of a register can still be in it at `at`; `None` if not only instructions write it.
    fn writers(&self, reg: Reg, at: At) -> Option<Vec<At>> {
        let w = &self.written[reg as usize];
        if w.otherwise {
            return None;
        }
        if w.at.len() < 2 {
            return Some(w.at.clone());
        }
        self.work(w.at.len());
        let reaches = |from: &At| (from.0 == at.0 && from.1 < at.1) || self.leads(from.0, at.0);
        Some(w.at.iter().copied().filter(reaches).collect())
    }

    /// Whether control can come from the end of one block to another.
    fn leads(&self, from: BlockId, to: BlockId) -> bool {
        let mut reached = self.reached.borrow_mut();
        let found = reached.entry(from).or_insert_with(|| {
            let mut found = BitSet::new(self.graph.succs.len());
            let mut open = vec![from];
            while let Some(block) = open.pop() {
                self.work(1);
                for next in &self.graph.succs[block as usize] {
                    if !found.has(*next) {
                        found.insert(*next);
                        open.push(*next);
                    }
                }
            }
            found
        });
        found.has(to)
    }

    /// The values `id` of a register, knowing what branches have shown of it.
    fn narrowed(&mut self, mut id: Id, reg: Reg, at: At) -> Id {
        if self.facts_deep == MOST_FACTS {
            return id;
        }
        self.facts_deep += 1;
        let writers = self.writers(reg, at);
        for fact in self.facts(at.0) {
            if fact.reg != reg || fact.width.bits != self.bits(reg) {
                continue;
            }
            // What was compared must be what is read.
            if self.writers(reg, fact.at) != writers {
                continue;
            }
            let instance = self.unit.blocks[fact.at.0 as usize].instance;
            let than = self.operand(&fact.than, instance, fact.at, fact.width);
            if let Some(than) = than {
                id = self.node(Node::Known(id, fact.relation, than, fact.width));
            }
        }
        self.facts_deep -= 1;
        id
    }

    /// The one instruction that writes a register, when it comes before `at`.
    pub(super) fn definition(&self, reg: Reg, at: At) -> Option<(At, &Op, u32)> {
        let [definition] = self.writers(reg, at)?[..] else {
            return None;
        };
        if !self.precedes(definition, at) {
            return None;
        }
        let block = &self.unit.blocks[definition.0 as usize];
        let Step::Inst(inst) = block.steps[definition.1] else {
            return None;
        };
        let place = Place {
            instance: block.instance,
            inst,
        };
        let op = &self.unit.inst(self.module, place).op;
        Some((definition, op, block.instance))
    }
}
