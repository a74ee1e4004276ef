//! The control-flow graph of a function: blocks, edges, dominators, post-dominators.
//!
//! A block ends at a branch, `ret`, `exit` or `trap`, or before a branch target. Calls do not end
//! blocks: a callee that never returns is not known here. Unreachable blocks are kept, with no
//! dominators.

use crate::ast::{Function, InstIndex, Op};

/// An index into [`Cfg::blocks`].
pub type BlockId = u32;

/// Instructions that run one after another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// The first instruction.
    pub start: InstIndex,
    /// One past the last instruction.
    pub end: InstIndex,
    /// Where control may go next, without repeats. A guarded branch lists its target first, then
    /// the fall-through.
    pub succs: Vec<BlockId>,
    /// Where control may come from.
    pub preds: Vec<BlockId>,
}

/// The graph of one function. Block 0 is the entry; blocks are in text order.
#[derive(Clone, Debug)]
pub struct Cfg {
    /// The blocks.
    pub blocks: Vec<Block>,
    /// The block of each instruction.
    pub block_of: Vec<BlockId>,
    /// Reachable blocks in reverse post-order.
    pub rpo: Vec<BlockId>,
    /// Immediate dominators; `None` for the entry and for unreachable blocks.
    pub idom: Vec<Option<BlockId>>,
    /// Immediate post-dominators; `None` when only leaving the function follows, or when the block
    /// cannot reach an exit.
    pub ipdom: Vec<Option<BlockId>>,
    /// Where each block's subtree of the dominator tree begins and ends in a walk of the tree;
    /// empty for unreachable blocks.
    subtree: Vec<(u32, u32)>,
}

/// Where control goes after an instruction.
enum Flow {
    Next,
    /// Ends the block.
    Ends,
}

fn flow(op: &Op) -> Flow {
    match op {
        Op::Bra { .. } | Op::BrxIdx { .. } | Op::Ret { .. } | Op::Exit | Op::Trap => Flow::Ends,
        _ => Flow::Next,
    }
}

impl Cfg {
    /// Builds the graph. An empty body gives one empty block.
    pub fn build(function: &Function) -> Cfg {
        let body = &function.body;
        let leaders = leaders(function);
        let mut blocks = Vec::new();
        let mut block_of = vec![0; body.len()];
        let mut start = 0usize;
        for i in 0..body.len() {
            if i > start && leaders[i] {
                blocks.push(Block {
                    start: start as u32,
                    end: i as u32,
                    ..Block::default()
                });
                start = i;
            }
            block_of[i] = blocks.len() as u32;
        }
        blocks.push(Block {
            start: start as u32,
            end: body.len() as u32,
            ..Block::default()
        });
        connect(function, &mut blocks, &block_of);

        let n = blocks.len();
        let succs = |b: usize| blocks[b].succs.as_slice();
        let preds = |b: usize| blocks[b].preds.as_slice();
        let rpo = reverse_post_order(n, 0, succs);
        let idom = dominators(n, 0, &rpo, preds);

        // Post-dominators are dominators of the reversed graph, from one virtual exit `n`.
        let mut back_succs: Vec<Vec<u32>> = blocks.iter().map(|b| b.preds.clone()).collect();
        let mut back_preds: Vec<Vec<u32>> = blocks.iter().map(|b| b.succs.clone()).collect();
        let mut exits = Vec::new();
        for (b, preds) in back_preds.iter_mut().enumerate() {
            if may_leave(function, &blocks[b]) {
                preds.push(n as u32);
                exits.push(b as u32);
            }
        }
        back_succs.push(exits);
        back_preds.push(Vec::new());
        let order = reverse_post_order(n + 1, n, |b| back_succs[b].as_slice());
        let mut ipdom = dominators(n + 1, n, &order, |b| back_preds[b].as_slice());
        ipdom.truncate(n);
        for p in &mut ipdom {
            if *p == Some(n as u32) {
                *p = None;
            }
        }
        let subtree = subtrees(&idom, &rpo);
        Cfg {
            blocks,
            block_of,
            rpo,
            idom,
            ipdom,
            subtree,
        }
    }

    /// Whether block `a` dominates block `b` (a block dominates itself).
    pub fn dominates(&self, a: BlockId, b: BlockId) -> bool {
        if a == b {
            return true;
        }
        let ((start, end), (inner, _)) = (self.subtree[a as usize], self.subtree[b as usize]);
        start < inner && inner < end
    }

    /// Edges `(from, to)` where `to` dominates `from`: natural loops' back edges.
    pub fn back_edges(&self) -> Vec<(BlockId, BlockId)> {
        let mut edges = Vec::new();
        for &b in &self.rpo {
            for &s in &self.blocks[b as usize].succs {
                if self.dominates(s, b) {
                    edges.push((b, s));
                }
            }
        }
        edges
    }

    /// Edges that go backwards in reverse post-order: every cycle has one, natural or not. What a
    /// preemption check must sit on.
    pub fn retreating_edges(&self) -> Vec<(BlockId, BlockId)> {
        let mut position = vec![u32::MAX; self.blocks.len()];
        for (i, &b) in self.rpo.iter().enumerate() {
            position[b as usize] = i as u32;
        }
        let mut edges = Vec::new();
        for &b in &self.rpo {
            for &s in &self.blocks[b as usize].succs {
                if position[s as usize] <= position[b as usize] {
                    edges.push((b, s));
                }
            }
        }
        edges
    }
}

fn leaders(function: &Function) -> Vec<bool> {
    let body = &function.body;
    let mut leaders = vec![false; body.len()];
    let mut mark = |i: usize| {
        if let Some(l) = leaders.get_mut(i) {
            *l = true;
        }
    };
    for (i, inst) in body.iter().enumerate() {
        match &inst.op {
            Op::Bra { target, .. } => mark(*target as usize),
            Op::BrxIdx { targets, .. } => targets.iter().for_each(|t| mark(*t as usize)),
            _ => {}
        }
        if matches!(flow(&inst.op), Flow::Ends) {
            mark(i + 1);
        }
    }
    leaders
}

fn may_leave(function: &Function, block: &Block) -> bool {
    let last = block
        .end
        .checked_sub(1)
        .and_then(|i| function.body.get(i as usize));
    match last {
        None => true,
        Some(inst) => matches!(inst.op, Op::Ret { .. } | Op::Exit | Op::Trap),
    }
}

fn connect(function: &Function, blocks: &mut [Block], block_of: &[BlockId]) {
    for b in 0..blocks.len() {
        let block = &blocks[b];
        let mut succs: Vec<BlockId> = Vec::new();
        let mut falls = true;
        let last = block
            .end
            .checked_sub(1)
            .and_then(|i| function.body.get(i as usize));
        if let Some(inst) = last.filter(|_| block.end > block.start) {
            match &inst.op {
                Op::Bra { target, .. } => {
                    succs.extend(block_of.get(*target as usize));
                    falls = inst.guard.is_some();
                }
                Op::BrxIdx { targets, .. } => {
                    succs.extend(targets.iter().filter_map(|t| block_of.get(*t as usize)));
                    falls = inst.guard.is_some();
                }
                Op::Ret { .. } | Op::Exit | Op::Trap => falls = inst.guard.is_some(),
                _ => {}
            }
        }
        if falls && b + 1 < blocks.len() {
            succs.push(b as u32 + 1);
        }
        let mut unique = Vec::with_capacity(succs.len());
        let mut seen = std::collections::HashSet::new();
        for s in succs {
            if seen.insert(s) {
                unique.push(s);
            }
        }
        for &s in &unique {
            blocks[s as usize].preds.push(b as u32);
        }
        blocks[b].succs = unique;
    }
}

fn reverse_post_order<'a>(
    n: usize,
    root: usize,
    succs: impl Fn(usize) -> &'a [BlockId],
) -> Vec<BlockId> {
    let mut seen = vec![false; n];
    let mut order = Vec::with_capacity(n);
    let mut stack = vec![(root, 0usize)];
    seen[root] = true;
    while let Some((b, next)) = stack.last_mut() {
        if let Some(&s) = succs(*b).get(*next) {
            *next += 1;
            if !std::mem::replace(&mut seen[s as usize], true) {
                stack.push((s as usize, 0));
            }
        } else {
            order.push(*b as u32);
            stack.pop();
        }
    }
    order.reverse();
    order
}

/// The iterative algorithm of Cooper, Harvey and Kennedy.
fn dominators<'a>(
    n: usize,
    root: usize,
    rpo: &[BlockId],
    preds: impl Fn(usize) -> &'a [BlockId],
) -> Vec<Option<BlockId>> {
    let mut position = vec![usize::MAX; n];
    for (i, &b) in rpo.iter().enumerate() {
        position[b as usize] = i;
    }
    let mut idom: Vec<Option<BlockId>> = vec![None; n];
    idom[root] = Some(root as u32);
    let mut changed = true;
    while changed {
        changed = false;
        for &b in rpo.iter().skip(1) {
            let mut new: Option<u32> = None;
            for &p in preds(b as usize) {
                if idom[p as usize].is_none() {
                    continue;
                }
                new = Some(match new {
                    None => p,
                    Some(q) => meet(&idom, &position, p, q),
                });
            }
            if new.is_some() && idom[b as usize] != new {
                idom[b as usize] = new;
                changed = true;
            }
        }
    }
    idom[root] = None;
    idom
}

/// Numbers the dominator tree so that asking who dominates whom takes two comparisons.
fn subtrees(idom: &[Option<BlockId>], rpo: &[BlockId]) -> Vec<(u32, u32)> {
    let mut children: Vec<Vec<BlockId>> = vec![Vec::new(); idom.len()];
    for &b in rpo {
        if let Some(parent) = idom[b as usize] {
            children[parent as usize].push(b);
        }
    }
    let mut ranges = vec![(0, 0); idom.len()];
    let mut clock = 1;
    let mut stack: Vec<(BlockId, usize)> = Vec::new();
    if let Some(&root) = rpo.first() {
        ranges[root as usize].0 = clock;
        stack.push((root, 0));
    }
    while let Some((b, next)) = stack.last_mut() {
        if let Some(&child) = children[*b as usize].get(*next) {
            *next += 1;
            clock += 1;
            ranges[child as usize].0 = clock;
            stack.push((child, 0));
        } else {
            ranges[*b as usize].1 = clock + 1;
            stack.pop();
        }
    }
    ranges
}

fn meet(idom: &[Option<BlockId>], position: &[usize], mut a: u32, mut b: u32) -> u32 {
    while a != b {
        while position[a as usize] > position[b as usize] {
            match idom[a as usize] {
                Some(up) => a = up,
                None => return b,
            }
        }
        while position[b as usize] > position[a as usize] {
            match idom[b as usize] {
                Some(up) => b = up,
                None => return a,
            }
        }
    }
    a
}

#[cfg(test)]
#[path = "cfg_tests.rs"]
mod tests;
