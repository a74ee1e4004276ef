//! `mbarrier`: barriers in memory that count arrivals and bytes.

use crate::ast::{MbarrierOp, MbarrierPhase, Op, ScalarType, Sem, Space};
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
    let Some(kind) = p.mods.take(mbarrier_kind) else {
        return p.bad_instruction("needs an operation such as `.init`");
    };
    if kind == Kind::PendingCount {
        p.ty_of(&[B64])?;
        p.no_more_mods()?;
        let dst = p.dst(B32)?;
        let state = p.next_src(B64)?;
        return Ok(Op::MbarrierPendingCount { dst, state });
    }
    let no_complete = p.mods.flag("noComplete");
    let expect_tx = p.mods.flag("expect_tx");
    let parity = p.mods.flag("parity");
    let sem_given = p.mods.take(sem);
    let space = p.space_of(&[Space::Shared, Space::SharedCluster])?;
    let scope = scope_or_cta(p);
    p.ty_of(&[B64])?;
    p.no_more_mods()?;
    let (addr, op) = match kind {
        Kind::Init => {
            let addr = p.memory_in(Space::Shared)?;
            (
                addr,
                MbarrierOp::Init {
                    count: p.next_src(B32)?,
                },
            )
        }
        Kind::Inval => (p.memory_in(Space::Shared)?, MbarrierOp::Inval),
        Kind::ExpectTx => {
            let addr = p.memory_in(Space::Shared)?;
            (
                addr,
                MbarrierOp::ExpectTx {
                    scope,
                    bytes: p.next_src(B32)?,
                },
            )
        }
        Kind::CompleteTx => {
            let addr = p.memory_in(Space::Shared)?;
            (
                addr,
                MbarrierOp::CompleteTx {
                    scope,
                    bytes: p.next_src(B32)?,
                },
            )
        }
        Kind::Arrive | Kind::ArriveDrop => {
            let mut dst = None;
            if !p.token.is(b'[') {
                dst = p.opt_dst(B64, Width::Exact)?;
                p.comma()?;
            }
            let addr = p.memory_in(Space::Shared)?;
            let count = if p.accept(b',')? {
                Some(p.src(B32)?)
            } else {
                None
            };
            let (count, expect) = if expect_tx {
                (None, count)
            } else {
                (count, None)
            };
            if expect_tx && expect.is_none() {
                return p.bad_instruction("needs the bytes to expect");
            }
            let op = MbarrierOp::Arrive {
                drop: kind == Kind::ArriveDrop,
                no_complete,
                expect_tx: expect,
                sem: sem_given.unwrap_or(Sem::Release),
                scope,
                dst,
                count,
            };
            (addr, op)
        }
        _ => {
            let dst = p.dst(Pred)?;
            p.comma()?;
            let addr = p.memory_in(Space::Shared)?;
            let phase = if parity {
                MbarrierPhase::Parity(p.next_src(B32)?)
            } else {
                MbarrierPhase::State(p.next_src(B64)?)
            };
            let blocking = kind == Kind::TryWait;
            let timeout_ns = if blocking && p.accept(b',')? {
                Some(p.src(B32)?)
            } else {
                None
            };
            let sem = sem_given.unwrap_or(Sem::Acquire);
            (
                addr,
                MbarrierOp::Wait {
                    blocking,
                    sem,
                    scope,
                    dst,
                    phase,
                    timeout_ns,
                },
            )
        }
    };
    Ok(Op::Mbarrier { space, addr, op })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Init,
    Inval,
    Arrive,
    ArriveDrop,
    ExpectTx,
    CompleteTx,
    TestWait,
    TryWait,
    PendingCount,
}

/// The operation is the first modifier, so `.expect_tx` after `.arrive` is not taken for it.
fn mbarrier_kind(name: &str) -> Option<Kind> {
    Some(match name {
        "init" => Kind::Init,
        "inval" => Kind::Inval,
        "arrive" => Kind::Arrive,
        "arrive_drop" => Kind::ArriveDrop,
        "expect_tx" => Kind::ExpectTx,
        "complete_tx" => Kind::CompleteTx,
        "test_wait" => Kind::TestWait,
        "try_wait" => Kind::TryWait,
        "pending_count" => Kind::PendingCount,
        _ => return None,
    })
}
