//! Places static shared variables.
//!
//! Each shared variable has one offset for the whole module, so code of device functions does not
//! depend on which kernel called it:
//! ```text
//! 0 ─ reserved ─ variables that device functions or several kernels use ─ common ─ each kernel's own ─►
//! ```
//! The first part is the system's, in modules that ask for it. A kernel that cannot reach a use of the common
//! variables has its own right after it. Dynamic shared memory
//! follows each kernel's static part.

use std::collections::{HashMap, HashSet};

use crate::ast::{Callee, FuncId, Inst, Module, Op, RelocTarget, Space, VarId};
use crate::visit::Ref;

/// What one function mentions.
#[derive(Default)]
struct Mentions {
    shared: Vec<VarId>,
    dynamic: bool,
    calls: Vec<usize>,
    /// Calls something that cannot be listed.
    indirect: bool,
}

/// Who uses a shared variable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum User {
    Kernel(usize),
    Many,
}

/// Fills in offsets and sizes; the error names the variable that did not fit in 4 GiB.
pub(crate) fn place_shared(module: &mut Module) -> Result<(), String> {
    let reserved = module.reserved_shared_bytes;
    let has_shared = module.vars.iter().any(|v| v.space == Space::Shared);
    if !has_shared {
        place_only_reserved(module);
        return Ok(());
    }
    let mentions: Vec<Mentions> = module
        .functions
        .iter()
        .map(|f| mentions(module, &f.body))
        .collect();
    let users = users(module, &mentions);
    let dynamic_align = module
        .vars
        .iter()
        .filter(|v| v.is_dynamic_shared())
        .map(|v| v.align)
        .fold(16, u32::max);

    let mut common = u64::from(reserved);
    for (id, user) in &users {
        if *user == User::Many {
            common = place(module, *id, common)?;
        }
    }
    module.common_shared_bytes = common as u32;

    let many: HashSet<VarId> = users
        .iter()
        .filter(|(_, u)| *u == User::Many)
        .map(|(id, _)| *id)
        .collect();
    let uses_common = reaching(&mentions, |m| m.shared.iter().any(|v| many.contains(v)));
    let uses_dynamic = reaching(&mentions, |m| m.dynamic);
    let mut own: HashMap<usize, Vec<VarId>> = HashMap::new();
    for (id, user) in &users {
        if let User::Kernel(k) = user {
            own.entry(*k).or_default().push(*id);
        }
    }
    for k in 0..module.functions.len() {
        if !module.functions[k].is_kernel {
            continue;
        }
        let mut end = if uses_common[k] {
            common
        } else {
            u64::from(reserved)
        };
        for id in own.remove(&k).unwrap_or_default() {
            end = place(module, id, end)?;
        }
        let function = &mut module.functions[k];
        function.shared_bytes = end as u32;
        function.dynamic_shared_offset = (end as u32).next_multiple_of(dynamic_align);
        function.uses_dynamic_shared = uses_dynamic[k];
    }
    Ok(())
}

/// Places the system's part in a module without shared variables.
fn place_only_reserved(module: &mut Module) {
    let reserved = module.reserved_shared_bytes;
    for f in &mut module.functions {
        f.dynamic_shared_offset = reserved;
        if f.is_kernel {
            f.shared_bytes = reserved;
        }
    }
}

/// Puts a variable at the next aligned place after `end`.
fn place(module: &mut Module, id: VarId, end: u64) -> Result<u64, String> {
    let var = &mut module.vars[id.index()];
    var.offset = end.next_multiple_of(u64::from(var.align));
    let end = var.offset.saturating_add(var.size);
    // Room is left for the alignment of what follows.
    if end > u64::from(u32::MAX) - (1 << 21) {
        return Err(var.name.clone());
    }
    Ok(end)
}

/// Every static shared variable and who uses it, in order of declaration.
fn users(module: &Module, mentions: &[Mentions]) -> Vec<(VarId, User)> {
    let mut user_of: HashMap<VarId, User> = HashMap::new();
    for (f, m) in mentions.iter().enumerate() {
        let me = if module.functions[f].is_kernel {
            User::Kernel(f)
        } else {
            User::Many
        };
        for v in &m.shared {
            let user = user_of.entry(*v).or_insert(me);
            if *user != me {
                *user = User::Many;
            }
        }
    }
    // An address in an initializer can be used by anyone.
    for v in &module.vars {
        for r in v.init.iter().flat_map(|i| &i.relocs) {
            if let RelocTarget::Var(target) = r.target {
                user_of.insert(target, User::Many);
            }
        }
    }
    let mut list = Vec::new();
    for (i, v) in module.vars.iter().enumerate() {
        if v.space != Space::Shared || v.is_dynamic_shared() {
            continue;
        }
        let id = VarId(i as u32);
        let owner = v.owner.map(FuncId::index);
        let unused = match owner {
            Some(f) if module.functions.get(f).is_some_and(|f| f.is_kernel) => User::Kernel(f),
            _ => User::Many,
        };
        list.push((id, user_of.get(&id).copied().unwrap_or(unused)));
    }
    list
}

fn mentions(module: &Module, body: &[Inst]) -> Mentions {
    let mut m = Mentions::default();
    let mut seen = HashSet::new();
    let mut var = |m: &mut Mentions, id: VarId| {
        let v = &module.vars[id.index()];
        if v.space == Space::Shared && seen.insert(id) {
            if v.is_dynamic_shared() {
                m.dynamic = true;
            } else {
                m.shared.push(id);
            }
        }
    };
    for inst in body {
        if let Op::Call {
            callee: Callee::Indirect { targets: None, .. },
            ..
        } = &inst.op
        {
            m.indirect = true;
        }
        inst.op.visit(&mut |r| match r {
            Ref::Var(v) => var(&mut m, v),
            Ref::Func(f) => m.calls.push(f.index()),
            Ref::Reg(..) => {}
        });
    }
    m.calls.sort_unstable();
    m.calls.dedup();
    m
}

/// Which functions can reach one of `marked`, by calls or by having their address taken. A call
/// through a pointer may reach any function. Linear in the size of the call graph.
fn reaching(mentions: &[Mentions], marked: impl Fn(&Mentions) -> bool) -> Vec<bool> {
    let mut callers: Vec<Vec<usize>> = vec![Vec::new(); mentions.len()];
    for (f, m) in mentions.iter().enumerate() {
        for &callee in &m.calls {
            callers[callee].push(f);
        }
    }
    let any = mentions.iter().any(&marked);
    let mut reaches: Vec<bool> = mentions
        .iter()
        .map(|m| marked(m) || m.indirect && any)
        .collect();
    let mut work: Vec<usize> = (0..mentions.len()).filter(|f| reaches[*f]).collect();
    while let Some(f) = work.pop() {
        for &caller in &callers[f] {
            if !std::mem::replace(&mut reaches[caller], true) {
                work.push(caller);
            }
        }
    }
    reaches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(list: &[usize]) -> Mentions {
        Mentions {
            calls: list.to_vec(),
            ..Mentions::default()
        }
    }

    #[test]
    fn reaching_follows_calls_cycles_and_pointers() {
        let dynamic = Mentions {
            dynamic: true,
            ..Mentions::default()
        };
        let pointer = Mentions {
            indirect: true,
            ..Mentions::default()
        };
        // 0 -> 1 -> 2 (marked), 3 -> 4 -> 3, 5 calls through a pointer.
        let graph = [
            calls(&[1]),
            calls(&[2]),
            dynamic,
            calls(&[4]),
            calls(&[3]),
            pointer,
        ];
        let reached = reaching(&graph, |m| m.dynamic);
        assert_eq!(reached, [true, true, true, false, false, true]);
        assert_eq!(reaching(&graph, |m| m.dynamic && m.indirect), [false; 6]);
    }
}
