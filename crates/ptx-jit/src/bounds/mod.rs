//! Addresses that are proven to be in memory before a launch starts.
//!
//! Most kernels compute their addresses from parameters, thread and block indexes by sums and products.
//! For those, `build` makes a list of [`Node`]s from the kernel's code, once; at a launch, where parameters,
//! grid and block are known, each node gets the [`Range`] of its values over all threads. If every access on
//! the list stays inside the arena and aligned, the launch runs code without checks for these accesses;
//! else it runs code with all checks, as it does where nothing could be found out. Ranges are too wide
//! rather than too narrow: a proof can fail for an innocent kernel, never succeed for a wrong one.
//!
//! Owns only the proof; scalar code, which runs threads that left vector code, is always checked.

mod build;
mod compute;
mod count;
mod dominate;
mod facts;
mod next;
mod range;

use mica_kernel::{Dim3, LaunchFacts};
use std::collections::{HashMap, HashSet};

use crate::unit::{BlockId, Place, Reg};
pub(crate) use next::{Factor, Product};
use range::Range;

/// A node: an earlier one in [`BoundsProof::nodes`].
type Id = u32;

/// A comparison of integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Less,
    AtMost,
    More,
    AtLeast,
    Equal,
}

/// How wide an integer is taken to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Width {
    bits: u32,
    signed: bool,
}

/// A value, or rather all the values that threads of a launch may have there.
#[derive(Clone, Copy, Debug)]
enum Node {
    Const(i128),
    /// A kernel parameter.
    Param {
        offset: u64,
        width: Width,
    },
    /// 0 to the block's extent, exclusive.
    Thread(usize),
    BlockExtent(usize),
    /// 0 to the grid's extent, exclusive.
    Block(usize),
    GridExtent(usize),
    Add(Id, Id),
    Sub(Id, Id),
    Mul(Id, Id),
    /// A register that is read as an integer of this width.
    Read(Id, Width),
    /// The first, knowing how it compares with the second.
    Known(Id, Relation, Id, Width),
    /// Starts as `first` and grows by `step` while the sum is less than `bound`.
    Counter {
        first: Id,
        step: Id,
        bound: Id,
        width: Width,
    },
}

/// One access that is proven or not.
#[derive(Clone, Copy, Debug)]
struct Access {
    address: Id,
    offset: i64,
    bytes: u32,
}

/// What can be proven about a kernel.
#[derive(Default)]
pub(crate) struct BoundsProof {
    nodes: Vec<Node>,
    accesses: Vec<Access>,
    /// Nodes that must have a range.
    sure: Vec<Id>,
    /// The accesses, and their addresses without what is added.
    places: HashMap<Place, Id>,
    guards: HashSet<(BlockId, Reg)>,
}

impl BoundsProof {
    /// Whether there is anything that checks could be saved for.
    pub(crate) fn is_useful(&self) -> bool {
        !self.accesses.is_empty()
    }

    /// Whether the access at `place` is one that the proof speaks of.
    pub(crate) fn covers(&self, place: Place) -> bool {
        self.places.contains_key(&place)
    }

    /// Whether the guard against wrapping of `reg` at the start of `block` is.
    pub(crate) fn covers_guard(&self, block: BlockId, reg: Reg) -> bool {
        self.guards.contains(&(block, reg))
    }

    /// Whether all accesses are inside the arena and aligned in every thread of the launch.
    pub(crate) fn holds(&self, launch: &LaunchFacts<'_>) -> bool {
        let mut ranges: Vec<Option<Range>> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let range = evaluate(node, &ranges, launch);
            ranges.push(range);
        }
        let of = |id: Id| ranges.get(id as usize).copied().flatten();
        let low = i128::from(launch.arena_base);
        let high = low + i128::from(launch.arena_len);
        self.sure.iter().all(|id| of(*id).is_some())
            && self.accesses.iter().all(|a| {
                let offset = Range::exactly(i128::from(a.offset));
                of(a.address).and_then(|r| r.add(offset)).is_some_and(|r| {
                    r.low >= low && r.high + i128::from(a.bytes) <= high && r.is_aligned(a.bytes)
                })
            })
    }
}

fn extent(d: Dim3, dim: usize) -> i128 {
    i128::from([d.x, d.y, d.z][dim % 3])
}

fn evaluate(node: &Node, before: &[Option<Range>], launch: &LaunchFacts<'_>) -> Option<Range> {
    let of = |id: Id| before.get(id as usize).copied().flatten();
    match *node {
        Node::Const(x) => Some(Range::exactly(x)),
        Node::Param { offset, width } => parameter(launch.params, offset, width),
        Node::Thread(dim) => Range::between(0, extent(launch.block, dim) - 1),
        Node::BlockExtent(dim) => Some(Range::exactly(extent(launch.block, dim))),
        Node::Block(dim) => Range::between(0, extent(launch.grid, dim) - 1),
        Node::GridExtent(dim) => Some(Range::exactly(extent(launch.grid, dim))),
        Node::Add(a, b) => of(a)?.add(of(b)?),
        Node::Sub(a, b) => of(a)?.sub(of(b)?),
        Node::Mul(a, b) => of(a)?.mul(of(b)?),
        Node::Read(a, width) => of(a).filter(|r| r.is_of(width.bits, width.signed)),
        Node::Known(a, relation, b, width) => {
            let a = of(a)?;
            let b = of(b).filter(|b| b.is_of(width.bits, width.signed));
            // What the comparison saw is another number where the register wraps.
            let Some(b) = b.filter(|_| a.is_of(width.bits, width.signed)) else {
                return Some(a);
            };
            Some(match relation {
                Relation::Less => a.within(a.low, b.high - 1),
                Relation::AtMost => a.within(a.low, b.high),
                Relation::More => a.within(b.low + 1, a.high),
                Relation::AtLeast => a.within(b.low, a.high),
                Relation::Equal => a.within(b.low, b.high),
            })
        }
        Node::Counter {
            first,
            step,
            bound,
            width,
        } => {
            let is_of = |r: &Range| r.is_of(width.bits, width.signed);
            let (first, step, bound) = (
                of(first).filter(is_of)?,
                of(step).filter(|s| s.low >= 0)?,
                of(bound).filter(is_of)?,
            );
            // After the first round it is a sum that was less than the bound; no sum wraps.
            let last = first.high.max(bound.high - 1);
            let most = Range::exactly(last.checked_add(step.high)?);
            is_of(&most).then(|| first.stepping(step, last))
        }
    }
}

/// A parameter of the launch.
fn parameter(params: &[u8], offset: u64, width: Width) -> Option<Range> {
    let at = usize::try_from(offset).ok()?;
    let bytes = params.get(at..)?.get(..width.bits as usize / 8)?;
    let mut word = [0; 8];
    word.get_mut(..bytes.len())?.copy_from_slice(bytes);
    let x = u64::from_le_bytes(word);
    let spare = 64 - width.bits;
    Some(Range::exactly(if width.signed {
        i128::from((x << spare) as i64 >> spare)
    } else {
        i128::from(x)
    }))
}
