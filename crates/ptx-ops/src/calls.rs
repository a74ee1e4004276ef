//! Who calls whom, and how much local memory the deepest chain of calls needs.
//!
//! Owns the one call graph of a module. The layout takes the size of local memory from it and the
//! compiler what it may inline, so that both speak of the same chains. Every function is visited
//! once and nothing here recurses: a module may nest calls as deep as its text is long.

use mica_ptx::ast::{Callee, FuncId, Function, Module, Op};

use crate::layout::Frame;

/// The calls of a module.
#[derive(Clone, Debug, Default)]
pub struct CallGraph {
    recursive: Vec<bool>,
    open_ended: Vec<bool>,
    depth: Vec<u64>,
}

impl CallGraph {
    /// Follows the calls of every function. `frames` holds the frame of each.
    pub fn new(module: &Module, frames: &[Frame]) -> CallGraph {
        let calls: Vec<Calls> = module.functions.iter().map(Calls::of).collect();
        let direct: Vec<Vec<usize>> = calls.iter().map(|c| c.direct.clone()).collect();
        let recursive = chains(&direct, |_| 0).cyclic;
        let all: Vec<Vec<usize>> = calls.iter().map(Calls::all).collect();
        let chains = chains(&all, |f| frames.get(f).map_or(0, Frame::most_bytes));
        let mut open_ended: Vec<bool> = calls.iter().map(|c| c.unbounded).collect();
        // Callees come before their callers, except inside a cycle, which is open-ended anyway.
        for &f in &chains.order {
            let below = all[f].iter().any(|&c| open_ended[c]);
            open_ended[f] |= chains.cyclic[f] || below;
        }
        CallGraph {
            recursive,
            open_ended,
            depth: chains.weight,
        }
    }

    /// Whether a function can reach itself by calls that name their callee.
    pub fn is_recursive(&self, f: FuncId) -> bool {
        self.recursive.get(f.index()).copied().unwrap_or(true)
    }

    /// Whether [`CallGraph::depth`] is only a least: the function, or one that it calls, recurses,
    /// calls through a pointer or allocates on its stack.
    pub fn is_open_ended(&self, f: FuncId) -> bool {
        self.open_ended.get(f.index()).copied().unwrap_or(true)
    }

    /// Bytes of all frames on the deepest chain of calls from a function on, its own frame included.
    pub fn depth(&self, f: FuncId) -> u64 {
        self.depth.get(f.index()).copied().unwrap_or(u64::MAX)
    }
}

/// What one function calls.
#[derive(Default)]
struct Calls {
    direct: Vec<usize>,
    listed: Vec<usize>,
    unbounded: bool,
}

impl Calls {
    fn of(function: &Function) -> Calls {
        let mut calls = Calls::default();
        for at in reached(function) {
            match &function.body[at].op {
                Op::Call { callee, .. } => match callee {
                    Callee::Direct(f) => calls.direct.push(f.index()),
                    Callee::Indirect { targets, .. } => {
                        calls.unbounded = true;
                        let targets = targets.iter().flatten();
                        calls.listed.extend(targets.map(|f| f.index()));
                    }
                },
                Op::Alloca { .. } => calls.unbounded = true,
                _ => {}
            }
        }
        for list in [&mut calls.direct, &mut calls.listed] {
            list.sort_unstable();
            list.dedup();
        }
        calls
    }

    fn all(&self) -> Vec<usize> {
        let mut all = self.direct.clone();
        all.extend(&self.listed);
        all
    }
}

/// The instructions of a body that the compiler emits: all but dead text after a jump.
pub fn reached(function: &Function) -> impl Iterator<Item = usize> + '_ {
    let mut leader = vec![false; function.body.len() + 1];
    for inst in &function.body {
        match &inst.op {
            Op::Bra { target, .. } => leader[*target as usize] = true,
            Op::BrxIdx { targets, .. } => {
                targets.iter().for_each(|t| leader[*t as usize] = true);
            }
            _ => {}
        }
    }
    let mut open = true;
    function
        .body
        .iter()
        .enumerate()
        .filter_map(move |(i, inst)| {
            open |= leader[i];
            let reached = open;
            let leaves = matches!(
                inst.op,
                Op::Bra { .. } | Op::BrxIdx { .. } | Op::Exit | Op::Ret { .. } | Op::Trap
            );
            if leaves && inst.guard.is_none() {
                open = false;
            }
            reached.then_some(i)
        })
}

/// What [`chains`] finds.
#[derive(Clone, Debug, Default)]
pub struct Chains {
    /// For each node the weight of the heaviest chain from it on. Of a cycle every node is counted
    /// once: a least for those who are on one or reach one.
    pub weight: Vec<u64>,
    /// Whether a node can reach itself.
    pub cyclic: Vec<bool>,
    /// All nodes, callees before their callers.
    pub order: Vec<usize>,
}

/// The heaviest chains of a graph, by Tarjan's algorithm with a stack of its own.
pub fn chains(callees: &[Vec<usize>], weight_of: impl Fn(usize) -> u64) -> Chains {
    const NEW: usize = usize::MAX;
    let n = callees.len();
    let mut found = Chains {
        weight: vec![0; n],
        cyclic: vec![false; n],
        order: Vec::with_capacity(n),
    };
    let (mut number, mut low) = (vec![NEW; n], vec![0; n]);
    let mut open = vec![false; n];
    let mut component = Vec::new();
    let mut next = 0;
    for root in 0..n {
        if number[root] != NEW {
            continue;
        }
        let mut path = vec![(root, 0)];
        while let Some(&mut (f, ref mut at)) = path.last_mut() {
            if *at == 0 && number[f] == NEW {
                (number[f], low[f]) = (next, next);
                next += 1;
                open[f] = true;
                component.push(f);
            }
            if let Some(&c) = callees[f].get(*at) {
                *at += 1;
                if number[c] == NEW {
                    path.push((c, 0));
                } else if open[c] {
                    low[f] = low[f].min(number[c]);
                }
                continue;
            }
            path.pop();
            if let Some(&(caller, _)) = path.last() {
                low[caller] = low[caller].min(low[f]);
            }
            if low[f] == number[f] {
                let start = component.iter().rposition(|&c| c == f).unwrap_or(0);
                let members = component.split_off(start);
                found.close(&members, callees, &weight_of);
                members.iter().for_each(|&m| open[m] = false);
            }
        }
    }
    found
}

impl Chains {
    /// Takes a component whose callees outside have all been taken.
    fn close(
        &mut self,
        members: &[usize],
        callees: &[Vec<usize>],
        weight_of: &impl Fn(usize) -> u64,
    ) {
        let mut own = 0u64;
        let mut below = 0u64;
        for &m in members {
            own = own.saturating_add(weight_of(m));
            self.cyclic[m] = members.len() > 1 || callees[m].contains(&m);
            // Members of the same component are 0 until the loop below.
            below = callees[m]
                .iter()
                .map(|&c| self.weight[c])
                .fold(below, u64::max);
        }
        for &m in members {
            self.weight[m] = own.saturating_add(below);
        }
        self.order.extend(members);
    }
}

#[cfg(test)]
#[path = "calls_tests.rs"]
mod tests;
