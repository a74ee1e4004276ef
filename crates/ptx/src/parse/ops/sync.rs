//! Barriers, fences and warp-wide operations.

use crate::ast::{
    BarRedOp, Op, Operand, ProxyKind, ReduxOp, ScalarType, Scope, Sem, ShflMode, VoteMode,
};
use crate::error::Result;
use crate::parse::Parser;

use ScalarType::*;

/// `bar`, `barrier`.
pub(crate) fn bar(p: &mut Parser<'_>) -> Result<Op> {
    if p.mods.flag("cluster") {
        return bar_cluster(p);
    }
    if p.mods.flag("warp") {
        p.mods.flag("sync");
        p.no_more_mods()?;
        return Ok(Op::BarWarp { mask: p.src(B32)? });
    }
    p.mods.flag("cta");
    let aligned = p.mods.flag("aligned") || p.opcode.text == "bar";
    if p.mods.flag("red") {
        return bar_red(p, aligned);
    }
    let arrive = p.mods.flag("arrive");
    if !arrive && !p.mods.flag("sync") {
        return p.bad_instruction("needs `.sync`, `.arrive` or `.red`");
    }
    p.no_more_mods()?;
    let id = p.src(U32)?;
    let count = if p.accept(b',')? {
        Some(p.src(U32)?)
    } else {
        None
    };
    if arrive && count.is_none() {
        return p.bad_instruction("with `.arrive` needs a count of threads");
    }
    Ok(Op::Bar {
        arrive,
        aligned,
        id,
        count,
    })
}

fn bar_red(p: &mut Parser<'_>, aligned: bool) -> Result<Op> {
    let op = p.mods.take(|m| {
        Some(match m {
            "popc" => BarRedOp::Popc,
            "and" => BarRedOp::And,
            "or" => BarRedOp::Or,
            _ => return None,
        })
    });
    let Some(op) = op else {
        return p.bad_instruction("needs `.popc`, `.and` or `.or`");
    };
    let ty = p.ty_of(if op == BarRedOp::Popc {
        &[U32]
    } else {
        &[Pred]
    })?;
    p.no_more_mods()?;
    let dst = p.dst(ty)?;
    let id = p.next_src(U32)?;
    p.comma()?;
    // The count is optional: a predicate next means it was left out.
    let mut count: Option<Operand> = None;
    if !p.token.is(b'!') && !p.at_pred()? {
        count = Some(p.src(U32)?);
        p.comma()?;
    }
    let pred = p.pred_src()?;
    Ok(Op::BarRed {
        op,
        aligned,
        dst,
        id,
        count,
        pred,
    })
}

impl Parser<'_> {
    /// Whether the register here is a predicate.
    pub(super) fn at_pred(&mut self) -> Result<bool> {
        let Some(super::super::scope::Binding::Reg(r)) = self.lookup(self.token.text) else {
            return Ok(false);
        };
        let regs = self.body.as_ref().map(|b| &b.function.regs);
        Ok(regs
            .and_then(|x| x.get(r.index()))
            .is_some_and(|x| x.ty == Pred))
    }
}

fn bar_cluster(p: &mut Parser<'_>) -> Result<Op> {
    let wait = p.mods.flag("wait");
    if !wait && !p.mods.flag("arrive") {
        return p.bad_instruction("needs `.arrive` or `.wait`");
    }
    let sem = p.mods.take(sem);
    let aligned = p.mods.flag("aligned");
    p.no_more_mods()?;
    Ok(Op::BarCluster { wait, sem, aligned })
}

pub(super) fn sem(name: &str) -> Option<Sem> {
    Some(match name {
        "sc" => Sem::Sc,
        "acq_rel" => Sem::AcqRel,
        "acquire" => Sem::Acquire,
        "release" => Sem::Release,
        "relaxed" => Sem::Relaxed,
        _ => return None,
    })
}

/// `membar`.
pub(crate) fn membar(p: &mut Parser<'_>) -> Result<Op> {
    if p.mods.flag("proxy") {
        return proxy(p);
    }
    let Some(scope) = p.mods.scope() else {
        return p.bad_instruction("needs a scope");
    };
    p.no_more_mods()?;
    Ok(Op::Fence {
        sem: Sem::Sc,
        scope,
    })
}

/// `fence`.
pub(crate) fn fence(p: &mut Parser<'_>) -> Result<Op> {
    if p.mods.flag("proxy") {
        return proxy(p);
    }
    if p.mods.flag("mbarrier_init") {
        p.mods.flag("release");
        p.mods.flag("cluster");
        p.no_more_mods()?;
        return Ok(Op::FenceProxy {
            kind: ProxyKind::MbarrierInit,
        });
    }
    let sem = p.mods.take(sem).unwrap_or(Sem::AcqRel);
    p.mods
        .take(|m| m.starts_with("sync_restrict::").then_some(()));
    let Some(scope) = p.mods.scope() else {
        return p.bad_instruction("needs a scope");
    };
    p.no_more_mods()?;
    Ok(Op::Fence { sem, scope })
}

fn proxy(p: &mut Parser<'_>) -> Result<Op> {
    let kind = p.mods.take(|m| match m {
        "alias" => Some(ProxyKind::Alias),
        "async" | "async::generic" | "async.global" => Some(ProxyKind::Async),
        "async::global" | "async::shared::cta" | "async::shared::cluster" => Some(ProxyKind::Async),
        "tensormap" | "tensormap::generic" => Some(ProxyKind::TensorMap),
        _ => None,
    });
    let Some(kind) = kind else {
        return p.bad_instruction("needs a proxy such as `.async`");
    };
    p.mods.space();
    p.mods.take(sem);
    p.mods
        .take(|m| m.starts_with("sync_restrict::").then_some(()));
    p.mods.scope();
    p.no_more_mods()?;
    if p.token.is(b'[') {
        p.address_in(crate::ast::Space::Generic)?;
        p.comma()?;
        p.const_int("a size")?;
    }
    Ok(Op::FenceProxy { kind })
}

/// `vote`.
pub(crate) fn vote(p: &mut Parser<'_>) -> Result<Op> {
    let sync = p.mods.flag("sync");
    let mode = p.mods.take(|m| {
        Some(match m {
            "all" => VoteMode::All,
            "any" => VoteMode::Any,
            "uni" => VoteMode::Uni,
            "ballot" => VoteMode::Ballot,
            _ => return None,
        })
    });
    let Some(mode) = mode else {
        return p.bad_instruction("needs a mode such as `.all`");
    };
    let ty = p.ty_of(if mode == VoteMode::Ballot {
        &[B32]
    } else {
        &[Pred]
    })?;
    p.no_more_mods()?;
    let dst = p.dst(ty)?;
    let pred = p.next_pred()?;
    let mask = if sync { Some(p.next_src(B32)?) } else { None };
    Ok(Op::Vote {
        mode,
        dst,
        pred,
        mask,
    })
}

/// `match`.
pub(crate) fn match_(p: &mut Parser<'_>) -> Result<Op> {
    let all = p.mods.flag("all");
    if !all && !p.mods.flag("any") {
        return p.bad_instruction("needs `.any` or `.all`");
    }
    p.mods.flag("sync");
    let ty = p.ty_of(&[B32, B64])?;
    p.no_more_mods()?;
    let (dst, pred) = p.dst_and_pred(B32)?;
    let a = p.next_src(ty)?;
    let mask = p.next_src(B32)?;
    Ok(Op::Match {
        all,
        ty,
        dst,
        pred,
        a,
        mask,
    })
}

/// `activemask`.
pub(crate) fn activemask(p: &mut Parser<'_>) -> Result<Op> {
    p.ty_of(&[B32])?;
    p.no_more_mods()?;
    Ok(Op::Activemask { dst: p.dst(B32)? })
}

/// `redux`.
pub(crate) fn redux(p: &mut Parser<'_>) -> Result<Op> {
    p.mods.flag("sync");
    let op = p.mods.take(|m| {
        Some(match m {
            "add" => ReduxOp::Add,
            "min" => ReduxOp::Min,
            "max" => ReduxOp::Max,
            "and" => ReduxOp::And,
            "or" => ReduxOp::Or,
            "xor" => ReduxOp::Xor,
            _ => return None,
        })
    });
    let Some(op) = op else {
        return p.bad_instruction("needs an operation such as `.add`");
    };
    let abs = p.mods.flag("abs");
    let nan = p.mods.flag("NaN");
    let ty = match op {
        ReduxOp::Add => p.ty_of(&[U32, S32])?,
        ReduxOp::Min | ReduxOp::Max => p.ty_of(&[U32, S32, F32])?,
        _ => p.ty_of(&[B32])?,
    };
    p.no_more_mods()?;
    let (dst, [src]) = p.dst_and_srcs(ty)?;
    let mask = p.next_src(B32)?;
    Ok(Op::Redux {
        op,
        ty,
        abs,
        nan,
        dst,
        src,
        mask,
    })
}

/// `elect`.
pub(crate) fn elect(p: &mut Parser<'_>) -> Result<Op> {
    p.mods.flag("sync");
    p.no_more_mods()?;
    let (dst, pred) = p.dst_and_pred(B32)?;
    let Some(pred) = pred else {
        return p.bad_instruction("needs a predicate");
    };
    let mask = p.next_src(B32)?;
    Ok(Op::Elect { dst, pred, mask })
}

/// `shfl`.
pub(crate) fn shfl(p: &mut Parser<'_>) -> Result<Op> {
    let sync = p.mods.flag("sync");
    let mode = p.mods.take(|m| {
        Some(match m {
            "up" => ShflMode::Up,
            "down" => ShflMode::Down,
            "bfly" => ShflMode::Bfly,
            "idx" => ShflMode::Idx,
            _ => return None,
        })
    });
    let Some(mode) = mode else {
        return p.bad_instruction("needs a mode such as `.idx`");
    };
    p.ty_of(&[B32])?;
    p.no_more_mods()?;
    let (dst, pred) = p.dst_and_pred(B32)?;
    let src = p.next_src(B32)?;
    let lane = p.next_src(B32)?;
    let clamp = p.next_src(B32)?;
    let mask = if sync { Some(p.next_src(B32)?) } else { None };
    Ok(Op::Shfl {
        mode,
        dst,
        pred,
        src,
        lane,
        clamp,
        mask,
    })
}

/// The scope of a barrier operation, the block where none is given.
pub(super) fn scope_or_cta(p: &mut Parser<'_>) -> Scope {
    p.mods.scope().unwrap_or(Scope::Cta)
}
