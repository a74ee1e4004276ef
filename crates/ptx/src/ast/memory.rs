//! Modifiers of memory operations: spaces, scopes, ordering, caches, completion.
#![allow(
    missing_docs,
    reason = "variants carry their PTX names; what differs is documented"
)]

use super::*;

/// A state space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    Generic,
    Global,
    /// `.shared` and `.shared::cta`.
    Shared,
    /// `.shared::cluster`: any block of the cluster.
    SharedCluster,
    Local,
    Const,
    /// Kernel parameters, device function parameters, and `.param` variables of a body.
    Param,
    /// The legacy `.tex` space of texture variables.
    Tex,
}

impl std::fmt::Display for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Space::Generic => "generic",
            Space::Global => ".global",
            Space::Shared => ".shared",
            Space::SharedCluster => ".shared::cluster",
            Space::Local => ".local",
            Space::Const => ".const",
            Space::Param => ".param",
            Space::Tex => ".tex",
        })
    }
}

/// Who must observe a memory operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    Cta,
    Cluster,
    Gpu,
    Sys,
}

/// How a load or store is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// A plain access.
    Weak,
    /// `.volatile`: relaxed at system scope, never merged or removed.
    Volatile,
    Relaxed(Scope),
    Acquire(Scope),
    Release(Scope),
    /// `.mmio.relaxed.sys`.
    Mmio,
}

/// How an atomic, reduction or barrier operation is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sem {
    Weak,
    Relaxed,
    Acquire,
    Release,
    AcqRel,
    Sc,
}

/// `.ca .cg …`: which cache an access should use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheOp {
    Ca,
    Cg,
    Cs,
    Lu,
    Cv,
    Wb,
    Wt,
}

/// A cache's eviction priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Evict {
    Normal,
    Unchanged,
    First,
    Last,
    NoAllocate,
}

/// Hints that never change a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CacheHints {
    pub op: Option<CacheOp>,
    pub l1: Option<Evict>,
    pub l2: Option<Evict>,
    /// `.L2::64B`, `128B` or `256B`.
    pub l2_prefetch: Option<u16>,
    /// `.L2::cache_hint` with its policy operand.
    pub policy: Option<super::Operand>,
}

/// Who signals that an asynchronous copy is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Completion {
    /// `.mbarrier::complete_tx::bytes`: the barrier at this address.
    Mbarrier(super::Address),
    /// `.bulk_group`.
    BulkGroup,
}

/// The reduction of `cp.reduce.async.bulk`.
pub type BulkReduceOp = AtomOp;
