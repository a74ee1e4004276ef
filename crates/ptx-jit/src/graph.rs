//! Order, post-dominators and loops of a unit's blocks.

use crate::unit::{BlockId, Unit};

pub(crate) struct Graph {
    pub(crate) succs: Vec<Vec<BlockId>>,
    pub(crate) preds: Vec<Vec<BlockId>>,
    /// Reachable blocks in reverse post-order, over all roots.
    pub(crate) rpo: Vec<BlockId>,
    pub(crate) ipdom: Vec<Option<BlockId>>,
    /// Targets of edges that go backwards: every cycle has one.
    pub(crate) is_header: Vec<bool>,
}

impl Graph {
    pub(crate) fn build(unit: &Unit) -> Graph {
        crate::interrupt::poll();
        let n = unit.blocks.len();
        let succs: Vec<Vec<u32>> = (0..n as u32).map(|b| unit.succs(b)).collect();
        let mut rpo = Vec::new();
        let mut reachable = vec![false; n];
        for root in unit.roots.iter().rev() {
            post_order(root.entry, &succs, &mut reachable, &mut rpo);
        }
        rpo.reverse();
        let mut preds = vec![Vec::new(); n];
        for &b in &rpo {
            for &s in &succs[b as usize] {
                preds[s as usize].push(b);
            }
        }
        let mut position = vec![u32::MAX; n];
        for (i, &b) in rpo.iter().enumerate() {
            position[b as usize] = i as u32;
        }
        let mut is_header = vec![false; n];
        for &b in &rpo {
            for &s in &succs[b as usize] {
                if position[s as usize] <= position[b as usize] {
                    is_header[s as usize] = true;
                }
            }
        }
        let ipdom = post_dominators(n, &succs, &preds, &reachable);
        Graph {
            succs,
            preds,
            rpo,
            ipdom,
            is_header,
        }
    }

    /// Blocks of the loops headed by `header`.
    pub(crate) fn loop_body(&self, header: BlockId) -> Vec<BlockId> {
        // Everything that reaches the header from itself.
        let n = self.succs.len();
        let mut forward = vec![false; n];
        let mut stack = self.succs[header as usize].clone();
        while let Some(b) = stack.pop() {
            if !std::mem::replace(&mut forward[b as usize], true) && b != header {
                stack.extend(&self.succs[b as usize]);
            }
        }
        let mut back = vec![false; n];
        let mut stack = vec![header];
        while let Some(b) = stack.pop() {
            if !std::mem::replace(&mut back[b as usize], true) {
                stack.extend(
                    self.preds[b as usize]
                        .iter()
                        .filter(|p| forward[**p as usize]),
                );
            }
        }
        (0..n as u32).filter(|b| back[*b as usize]).collect()
    }
}

fn post_order(root: u32, succs: &[Vec<u32>], seen: &mut [bool], order: &mut Vec<u32>) {
    if std::mem::replace(&mut seen[root as usize], true) {
        return;
    }
    let mut stack = vec![(root, 0usize)];
    while let Some((b, next)) = stack.last_mut() {
        if let Some(&s) = succs[*b as usize].get(*next) {
            *next += 1;
            if !std::mem::replace(&mut seen[s as usize], true) {
                stack.push((s, 0));
            }
        } else {
            order.push(*b);
            stack.pop();
        }
    }
}

/// The iterative algorithm of Cooper, Harvey and Kennedy on the reversed graph, from one virtual
/// exit. Blocks that cannot leave have none.
fn post_dominators(
    n: usize,
    succs: &[Vec<u32>],
    preds: &[Vec<u32>],
    reachable: &[bool],
) -> Vec<Option<BlockId>> {
    let exit = n as u32;
    let mut rsuccs: Vec<Vec<u32>> = preds.to_vec();
    let mut exits = Vec::new();
    for b in 0..n {
        if reachable[b] && succs[b].is_empty() {
            exits.push(b as u32);
        }
    }
    rsuccs.push(exits);
    let mut seen = vec![false; n + 1];
    let mut order = Vec::new();
    post_order(exit, &rsuccs, &mut seen, &mut order);
    let mut position = vec![usize::MAX; n + 1];
    for (i, &b) in order.iter().enumerate() {
        position[b as usize] = i;
    }
    let mut idom: Vec<u32> = vec![u32::MAX; n + 1];
    idom[n] = exit;
    let mut changed = true;
    while changed {
        changed = false;
        for &b in order.iter().rev() {
            if b == exit {
                continue;
            }
            let mut new = u32::MAX;
            let sources = &succs[b as usize];
            let direct = sources.is_empty().then_some(exit);
            for &s in sources.iter().chain(direct.iter()) {
                if idom[s as usize] == u32::MAX {
                    continue;
                }
                new = if new == u32::MAX {
                    s
                } else {
                    meet(&idom, &position, new, s)
                };
            }
            if new != u32::MAX && idom[b as usize] != new {
                idom[b as usize] = new;
                changed = true;
            }
        }
    }
    (0..n)
        .map(|b| (idom[b] != u32::MAX && idom[b] != exit).then_some(idom[b]))
        .collect()
}

fn meet(idom: &[u32], position: &[usize], mut a: u32, mut b: u32) -> u32 {
    while a != b {
        while position[a as usize] < position[b as usize] {
            a = idom[a as usize];
        }
        while position[b as usize] < position[a as usize] {
            b = idom[b as usize];
        }
    }
    a
}
