//! Which block every path to another passes.

use crate::graph::Graph;
use crate::unit::BlockId;

pub(super) struct Dominators {
    /// Position in reverse post-order; `u32::MAX` when never reached.
    position: Vec<u32>,
    parent: Vec<Option<BlockId>>,
    /// When a walk over the tree comes to a block, and when it has seen all below it.
    seen: Vec<(u32, u32)>,
}

impl Dominators {
    /// Of a graph with one root, the first block in order.
    pub(super) fn of(graph: &Graph) -> Dominators {
        let n = graph.succs.len();
        let mut position = vec![u32::MAX; n];
        for (i, &b) in graph.rpo.iter().enumerate() {
            position[b as usize] = i as u32;
        }
        let mut d = Dominators {
            position,
            parent: vec![None; n],
            seen: vec![(0, 0); n],
        };
        let Some(&root) = graph.rpo.first() else {
            return d;
        };
        // As in "A Simple, Fast Dominance Algorithm" (Cooper, Harvey, Kennedy).
        let mut changed = true;
        while changed {
            changed = false;
            for &b in &graph.rpo[1..] {
                let seen = |p: &&BlockId| **p == root || d.parent[**p as usize].is_some();
                let parent = (graph.preds[b as usize].iter())
                    .filter(seen)
                    .copied()
                    .reduce(|x, y| d.common(x, y));
                if parent.is_some() && d.parent[b as usize] != parent {
                    d.parent[b as usize] = parent;
                    changed = true;
                }
            }
        }
        d.walk(root);
        d
    }

    fn walk(&mut self, root: BlockId) {
        let mut below: Vec<Vec<BlockId>> = vec![Vec::new(); self.parent.len()];
        for (b, parent) in self.parent.iter().enumerate() {
            if let Some(p) = parent {
                below[*p as usize].push(b as BlockId);
            }
        }
        let mut time = 1;
        self.seen[root as usize].0 = time;
        let mut stack = vec![root];
        while let Some(&b) = stack.last() {
            time += 1;
            match below[b as usize].pop() {
                Some(next) => {
                    self.seen[next as usize].0 = time;
                    stack.push(next);
                }
                None => {
                    self.seen[b as usize].1 = time;
                    stack.pop();
                }
            }
        }
    }

    fn common(&self, mut a: BlockId, mut b: BlockId) -> BlockId {
        while a != b {
            let (later, other) = if self.position[a as usize] > self.position[b as usize] {
                (a, b)
            } else {
                (b, a)
            };
            let Some(up) = self.parent[later as usize] else {
                return later;
            };
            (a, b) = (up, other);
        }
        a
    }

    /// The nearest other block that every path to `b` passes.
    pub(super) fn parent(&self, b: BlockId) -> Option<BlockId> {
        self.parent[b as usize]
    }

    /// Whether every path to `b` passes `a`, which may be `b`.
    pub(super) fn dominates(&self, a: BlockId, b: BlockId) -> bool {
        let ((from, to), (at, _)) = (self.seen[a as usize], self.seen[b as usize]);
        from != 0 && from <= at && at < to
    }
}
