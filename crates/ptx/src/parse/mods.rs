//! An instruction's modifiers, taken one by one until none is left.

use crate::ast::{CacheHints, CacheOp, Evict, Rounding, ScalarType, Scope, Space};
use crate::error::{Error, Result};
use crate::lexer::Token;

use super::Parser;

/// The modifiers of the current instruction and which of them have been understood.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mods<'a> {
    all: Vec<Token<'a>>,
    taken: u64,
}

/// More modifiers than any instruction has; also the width of `taken`.
const MAX_MODIFIERS: usize = 32;

pub(crate) fn scalar_type(name: &str) -> Option<ScalarType> {
    use ScalarType::*;
    Some(match name {
        "pred" => Pred,
        "b1" => B1,
        "b8" => B8,
        "b16" => B16,
        "b32" => B32,
        "b64" => B64,
        "b128" => B128,
        "u2" => U2,
        "u4" => U4,
        "u8" => U8,
        "u16" => U16,
        "u32" => U32,
        "u64" => U64,
        "s2" => S2,
        "s4" => S4,
        "s8" => S8,
        "s16" => S16,
        "s32" => S32,
        "s64" => S64,
        "u16x2" => U16x2,
        "s16x2" => S16x2,
        "f16" => F16,
        "f16x2" => F16x2,
        "bf16" => Bf16,
        "bf16x2" => Bf16x2,
        "tf32" => Tf32,
        "f32" => F32,
        "f32x2" => F32x2,
        "f64" => F64,
        "e4m3" => E4m3,
        "e5m2" => E5m2,
        "e4m3x2" => E4m3x2,
        "e5m2x2" => E5m2x2,
        "e2m1x2" => E2m1x2,
        "e2m3x2" => E2m3x2,
        "e3m2x2" => E3m2x2,
        "ue8m0x2" => Ue8m0x2,
        "texref" => TexRef,
        "samplerref" => SamplerRef,
        "surfref" => SurfRef,
        _ => return None,
    })
}

pub(crate) fn space(name: &str) -> Option<Space> {
    Some(match name {
        "global" => Space::Global,
        "shared" | "shared::cta" => Space::Shared,
        "shared::cluster" => Space::SharedCluster,
        "local" => Space::Local,
        "const" => Space::Const,
        "param" | "param::entry" | "param::func" => Space::Param,
        "tex" => Space::Tex,
        _ => return None,
    })
}

fn scope(name: &str) -> Option<Scope> {
    Some(match name {
        "cta" => Scope::Cta,
        "cluster" => Scope::Cluster,
        "gpu" | "gl" => Scope::Gpu,
        "sys" => Scope::Sys,
        _ => return None,
    })
}

fn rounding(name: &str) -> Option<Rounding> {
    Some(match name {
        "rn" => Rounding::Rn,
        "rz" => Rounding::Rz,
        "rm" => Rounding::Rm,
        "rp" => Rounding::Rp,
        _ => return None,
    })
}

fn evict(name: &str) -> Option<Evict> {
    Some(match name {
        "evict_normal" => Evict::Normal,
        "evict_unchanged" => Evict::Unchanged,
        "evict_first" => Evict::First,
        "evict_last" => Evict::Last,
        "no_allocate" => Evict::NoAllocate,
        _ => return None,
    })
}

impl<'a> Mods<'a> {
    pub(crate) fn clear(&mut self) {
        self.all.clear();
        self.taken = 0;
    }

    /// Adds a modifier; `false` when there are too many.
    pub(crate) fn push(&mut self, token: Token<'a>) -> bool {
        self.all.push(token);
        self.all.len() <= MAX_MODIFIERS
    }

    pub(crate) fn all(&self) -> &[Token<'a>] {
        &self.all
    }

    /// Takes the first modifier left for which `f` has a meaning.
    pub(crate) fn take<T>(&mut self, f: impl Fn(&str) -> Option<T>) -> Option<T> {
        for (i, token) in self.all.iter().enumerate() {
            if self.taken & (1 << i) != 0 {
                continue;
            }
            if let Some(value) = f(token.text) {
                self.taken |= 1 << i;
                return Some(value);
            }
        }
        None
    }

    /// Takes a modifier by name.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        self.take(|m| (m == name).then_some(())).is_some()
    }

    /// Whether a modifier is there, without taking it.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.all.iter().any(|m| m.text == name)
    }

    pub(crate) fn space(&mut self) -> Option<Space> {
        self.take(space)
    }

    pub(crate) fn scope(&mut self) -> Option<Scope> {
        self.take(scope)
    }

    pub(crate) fn rounding(&mut self) -> Option<Rounding> {
        self.take(rounding)
    }

    pub(crate) fn opt_type(&mut self) -> Option<ScalarType> {
        self.take(scalar_type)
    }

    /// `.v2`, `.v4`, `.v8`; 1 without.
    pub(crate) fn vector(&mut self) -> usize {
        self.take(|m| match m {
            "v2" => Some(2),
            "v4" => Some(4),
            "v8" => Some(8),
            _ => None,
        })
        .unwrap_or(1)
    }

    /// Cache operators and eviction hints; the policy operand comes later. The flag says whether
    /// `.L2::cache_hint` asks for one.
    pub(crate) fn cache(&mut self) -> (CacheHints, bool) {
        let mut hints = CacheHints {
            op: self.take(|m| {
                Some(match m {
                    "ca" => CacheOp::Ca,
                    "cg" => CacheOp::Cg,
                    "cs" => CacheOp::Cs,
                    "lu" => CacheOp::Lu,
                    "cv" => CacheOp::Cv,
                    "wb" => CacheOp::Wb,
                    "wt" => CacheOp::Wt,
                    _ => return None,
                })
            }),
            ..CacheHints::default()
        };
        hints.l1 = self.take(|m| m.strip_prefix("L1::").and_then(evict));
        hints.l2 = self.take(|m| m.strip_prefix("L2::").and_then(evict));
        hints.l2_prefetch = self.take(|m| match m {
            "L2::64B" => Some(64),
            "L2::128B" => Some(128),
            "L2::256B" => Some(256),
            _ => None,
        });
        (hints, self.flag("L2::cache_hint"))
    }
}

impl Parser<'_> {
    /// The instruction's type.
    pub(super) fn ty(&mut self) -> Result<ScalarType> {
        match self.mods.opt_type() {
            Some(ty) => Ok(ty),
            None => self.bad_instruction("needs a type"),
        }
    }

    /// The instruction's type, which must be one of these.
    pub(super) fn ty_of(&mut self, allowed: &[ScalarType]) -> Result<ScalarType> {
        let ty = self.ty()?;
        if allowed.contains(&ty) {
            return Ok(ty);
        }
        self.bad_instruction(format!("does not take type `{ty}`"))
    }

    /// Fails when a modifier was not understood.
    pub(super) fn no_more_mods(&self) -> Result<()> {
        for (i, token) in self.mods.all.iter().enumerate() {
            if self.mods.taken & (1 << i) == 0 {
                return Err(Error::UnknownModifier {
                    at: self.at(token),
                    opcode: self.opcode.text.into(),
                    modifier: crate::lexer::shorten(token.text),
                });
            }
        }
        Ok(())
    }

    /// The state space of an instruction, one of these, else generic.
    pub(super) fn space_of(&mut self, spaces: &[Space]) -> Result<Space> {
        match self.mods.space() {
            None => Ok(Space::Generic),
            Some(space) if spaces.contains(&space) => Ok(space),
            Some(space) => self.bad_instruction(format!("has no operand in `{space}`")),
        }
    }

    pub(super) fn bad_instruction<T>(&self, problem: impl Into<String>) -> Result<T> {
        Err(Error::BadInstruction {
            at: self.at(&self.opcode),
            opcode: self.opcode.text.into(),
            problem: problem.into(),
        })
    }
}
