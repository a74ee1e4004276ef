//! `mbarrier`: barriers in memory that count arrivals and bytes.

use crate::ast::{Address, MbarrierOp, MbarrierPhase, Op, ScalarType, Scope, Sem, Space};
use crate::error::Result;
use crate::parse::Parser;
use crate::parse::operand::Width;

use super::sync::{scope_or_cta, sem};

use ScalarType::*;

/// `mbarrier`.
pub(crate) fn mbarrier(p: &mut Parser<'_>) -> Result<Op> {
    // PTX 9.4 has barriers that report errors, in a layout of their own.
    let reports = |m: &str| {
        m.starts_with("phase_type::") || m.starts_with("layout::v1") || m == "check_layout"
    };
    if p.mods.all().iter().any(|m| reports(m.text)) {
        return p.unsupported();
    }
    p.mods.flag("layout::v0");
    // The operation is the first modifier, so `.expect_tx` after `.arrive` is not taken for it.
    let action = match p.mods.take(kind) {
        Some(Kind::PendingCount) => return pending_count(p),
        Some(Kind::InMemory(action)) => action,
        None => return p.bad_instruction("needs an operation such as `.init`"),
    };
    let mods = Modifiers::take(p)?;
    let scope = mods.scope;
    let (addr, op) = match action {
        Action::Init => {
            let addr = p.memory_in(Space::Shared)?;
            let count = p.next_src(B32)?;
            (addr, MbarrierOp::Init { count })
        }
        Action::Inval => (p.memory_in(Space::Shared)?, MbarrierOp::Inval),
        Action::ExpectTx => {
            let addr = p.memory_in(Space::Shared)?;
            let bytes = p.next_src(B32)?;
            (addr, MbarrierOp::ExpectTx { scope, bytes })
        }
        Action::CompleteTx => {
            let addr = p.memory_in(Space::Shared)?;
            let bytes = p.next_src(B32)?;
            (addr, MbarrierOp::CompleteTx { scope, bytes })
        }
        Action::Arrive => arrive(p, &mods, false)?,
        Action::ArriveDrop => arrive(p, &mods, true)?,
        Action::TestWait => wait(p, &mods, false)?,
        Action::TryWait => wait(p, &mods, true)?,
    };
    let space = mods.space;
    Ok(Op::Mbarrier { space, addr, op })
}

/// What follows the operation's name.
struct Modifiers {
    no_complete: bool,
    expect_tx: bool,
    parity: bool,
    sem: Option<Sem>,
    space: Space,
    scope: Scope,
}

impl Modifiers {
    fn take(p: &mut Parser<'_>) -> Result<Self> {
        let mods = Self {
            no_complete: p.mods.flag("noComplete"),
            expect_tx: p.mods.flag("expect_tx"),
            parity: p.mods.flag("parity"),
            sem: p.mods.take(sem),
            space: p.space_of(&[Space::Shared, Space::SharedCluster])?,
            scope: scope_or_cta(p),
        };
        p.ty_of(&[B64])?;
        p.no_more_mods()?;
        Ok(mods)
    }
}

/// `mbarrier.arrive`, and `mbarrier.arrive_drop` with `drop`.
fn arrive(p: &mut Parser<'_>, mods: &Modifiers, drop: bool) -> Result<(Address, MbarrierOp)> {
    let mut dst = None;
    if !p.token.is(b'[') {
        dst = p.opt_dst(B64, Width::Exact)?;
        p.comma()?;
    }
    let addr = p.memory_in(Space::Shared)?;
    let last = if p.accept(b',')? {
        Some(p.src(B32)?)
    } else {
        None
    };
    if mods.expect_tx && last.is_none() {
        return p.bad_instruction("needs the bytes to expect");
    }
    let (count, expect_tx) = match mods.expect_tx {
        true => (None, last),
        false => (last, None),
    };
    let op = MbarrierOp::Arrive {
        drop,
        no_complete: mods.no_complete,
        expect_tx,
        sem: mods.sem.unwrap_or(Sem::Release),
        scope: mods.scope,
        dst,
        count,
    };
    Ok((addr, op))
}

/// `mbarrier.test_wait`, and `mbarrier.try_wait` with `blocking`.
fn wait(p: &mut Parser<'_>, mods: &Modifiers, blocking: bool) -> Result<(Address, MbarrierOp)> {
    let dst = p.dst(Pred)?;
    p.comma()?;
    let addr = p.memory_in(Space::Shared)?;
    let phase = match mods.parity {
        true => MbarrierPhase::Parity(p.next_src(B32)?),
        false => MbarrierPhase::State(p.next_src(B64)?),
    };
    let timeout_ns = if blocking && p.accept(b',')? {
        Some(p.src(B32)?)
    } else {
        None
    };
    let op = MbarrierOp::Wait {
        blocking,
        sem: mods.sem.unwrap_or(Sem::Acquire),
        scope: mods.scope,
        dst,
        phase,
        timeout_ns,
    };
    Ok((addr, op))
}

/// `mbarrier.pending_count`.
fn pending_count(p: &mut Parser<'_>) -> Result<Op> {
    p.ty_of(&[B64])?;
    p.no_more_mods()?;
    let dst = p.dst(B32)?;
    let state = p.next_src(B64)?;
    Ok(Op::MbarrierPendingCount { dst, state })
}

enum Kind {
    /// Reads a state that is in a register.
    PendingCount,
    /// Does something to a barrier.
    InMemory(Action),
}

enum Action {
    Init,
    Inval,
    Arrive,
    ArriveDrop,
    ExpectTx,
    CompleteTx,
    TestWait,
    TryWait,
}

fn kind(name: &str) -> Option<Kind> {
    Some(Kind::InMemory(match name {
        "init" => Action::Init,
        "inval" => Action::Inval,
        "arrive" => Action::Arrive,
        "arrive_drop" => Action::ArriveDrop,
        "expect_tx" => Action::ExpectTx,
        "complete_tx" => Action::CompleteTx,
        "test_wait" => Action::TestWait,
        "try_wait" => Action::TryWait,
        "pending_count" => return Some(Kind::PendingCount),
        _ => return None,
    }))
}
