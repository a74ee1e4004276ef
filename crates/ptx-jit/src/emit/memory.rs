//! Addresses: which window they are in, and what is checked together.
//!
//! Every access is checked once for the whole group where its address is uniform or affine. Accesses
//! of one block that share a base register are checked together by the first of them: if their hull
//! is not inside the window, one of them is not.

use cranelift_codegen::ir::{InstBuilder, Type, Value, types};
use mica_kernel::BlockContext;
use mica_ptx::ast::{AddrBase, Address, Op, ScalarType, Space, VarId};
use mica_ptx::visit::Access as Touch;
use std::collections::HashMap;
use std::mem::offset_of;

use super::{Emit, V, fixed};
use crate::CompileError;
use crate::liveness::visit_step;
use crate::unit::{BlockId, Class, Reg, Step, VarPlace};

/// What an address is relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Window {
    Arena,
    Shared,
    Local,
    Params,
}

/// Where an access goes on the host.
pub(crate) enum Host {
    One(Value, i32),
    Affine(Value, i32, i64),
    Lanes(Vec<(Value, i32)>),
}

/// Which checks of a block are done where.
#[derive(Default)]
pub(crate) struct Merged {
    /// The step being emitted.
    pub(crate) at: usize,
    /// By step: the hull to check there, or none when an earlier step did.
    plan: HashMap<usize, Option<Hull>>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hull {
    pub(crate) low: i64,
    pub(crate) high: i64,
    pub(crate) align: u32,
}

/// What one access asks for.
#[derive(Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) bytes: u32,
    pub(crate) align: u32,
    pub(crate) write: bool,
}

impl Emit<'_, '_> {
    /// Finds accesses of a block that can be checked together.
    pub(crate) fn plan_checks(&mut self, id: BlockId) {
        if self.src.memcheck {
            return;
        }
        let unit = &self.plan.unit;
        let module = self.src.module;
        let block = &unit.blocks[id as usize];
        let mut open: HashMap<(Reg, Window, u32), (usize, Hull)> = HashMap::new();
        let mut plan: HashMap<usize, Option<Hull>> = HashMap::new();
        for (at, step) in block.steps.iter().enumerate() {
            if let Step::Inst(i) = step {
                let op = &unit.func(module, block.instance).body[*i as usize].op;
                let found = match op {
                    Op::Ld {
                        space,
                        ty,
                        addr,
                        dst,
                        ..
                    } => Some((space, ty, addr, dst.len())),
                    Op::St {
                        space,
                        ty,
                        addr,
                        src,
                        ..
                    } => Some((space, ty, addr, src.len())),
                    _ => None,
                };
                if let Some((space, ty, addr, n)) = found {
                    let bytes = ty.bytes() * n as u32;
                    if let (AddrBase::Reg(r), Some(w)) = (addr.base, mergeable(*space)) {
                        let key = (unit.reg(block.instance, r), w, bytes);
                        let end = addr.offset.saturating_add(i64::from(bytes));
                        let fits = addr.offset.unsigned_abs() < 1 << 24;
                        match open.get_mut(&key) {
                            Some((leader, hull))
                                if fits && (addr.offset - hull.low) % i64::from(bytes) == 0 =>
                            {
                                hull.low = hull.low.min(addr.offset);
                                hull.high = hull.high.max(end);
                                plan.insert(*leader, Some(*hull));
                                plan.insert(at, None);
                            }
                            None if fits => {
                                let hull = Hull {
                                    low: addr.offset,
                                    high: end,
                                    align: bytes,
                                };
                                open.insert(key, (at, hull));
                            }
                            _ => {}
                        }
                    }
                }
            }
            visit_step(unit, module, block.instance, *step, &mut |r, a| {
                if a == Touch::Def {
                    open.retain(|k, _| k.0 != r);
                }
            });
        }
        self.merged.plan = plan;
    }

    // ---- addresses ---------------------------------------------------------------------------

    /// A variable's address in its own space.
    pub(crate) fn var_address(&mut self, var: VarId, offset: i64) -> Result<V, CompileError> {
        let place = self
            .plan
            .unit
            .var_place(self.src.module, self.src.layout, self.instance, var);
        Ok(V::U(match place {
            VarPlace::KernelParam(o) | VarPlace::Shared(o) => self.i64(o as i64 + offset),
            VarPlace::Local(o) => {
                let at = self.i64(o as i64 + offset);
                if !self.plan.unit.has_calls() {
                    return Ok(V::U(at));
                }
                let sp = self.read(self.plan.unit.sp);
                let sp = self.lane(&sp, Class::B64, 0);
                self.b.ins().iadd(at, sp)
            }
            VarPlace::Global(i) => {
                let p = self.field(types::I64, offset_of!(BlockContext, globals));
                let p = self.b.ins().load(types::I64, fixed(), p, (i * 8) as i32);
                self.add_imm(p, offset)
            }
            VarPlace::None => {
                let name = self.src.module.var(var).name.clone();
                return Err(self.refuse(&format!("the address of `{name}`")));
            }
        }))
    }

    pub(crate) fn window_base(&mut self, w: Window, lane: usize) -> Option<Value> {
        match w {
            Window::Arena => None,
            Window::Shared => Some(self.field(types::I64, offset_of!(BlockContext, shared_base))),
            Window::Params => Some(self.field(types::I64, offset_of!(BlockContext, params))),
            Window::Local => Some(self.local_base(lane)),
        }
    }

    fn window_of(&self, space: Space) -> Window {
        match space {
            Space::Shared | Space::SharedCluster => Window::Shared,
            Space::Local => Window::Local,
            Space::Param => {
                if self
                    .plan
                    .unit
                    .func(self.src.module, self.instance)
                    .is_kernel
                {
                    Window::Params
                } else {
                    Window::Local
                }
            }
            _ => Window::Arena,
        }
    }

    /// Resolves and checks an address.
    pub(crate) fn access(
        &mut self,
        space: Space,
        addr: &Address,
        ask: Ask,
    ) -> Result<Host, CompileError> {
        let unit = &self.plan.unit;
        let mut space = space;
        let value = match addr.base {
            AddrBase::Var(var) => {
                let v = self.src.module.var(var);
                let place = unit.var_place(self.src.module, self.src.layout, self.instance, var);
                let inside = addr.offset >= 0
                    && (addr.offset as u64).saturating_add(u64::from(ask.bytes)) <= v.size
                    && (v.offset + addr.offset as u64).is_multiple_of(u64::from(ask.align))
                    && v.align >= ask.align;
                if inside && !self.src.memcheck && !v.is_dynamic_shared() {
                    return self.var_host(space, var, place, addr.offset);
                }
                space = match (space, place) {
                    (Space::Param, VarPlace::Local(_)) | (Space::Generic, VarPlace::Local(_)) => {
                        Space::Local
                    }
                    (Space::Generic, VarPlace::Shared(_)) => Space::Shared,
                    (s, _) => s,
                };
                self.var_address(var, 0)?
            }
            AddrBase::Absolute => V::U(self.i64(0)),
            AddrBase::Reg(r) => {
                let class = self.class_of(r);
                let v = self.read(self.reg(r));
                match (v, class) {
                    (V::X(vs), Class::B32)
                        if self.window_of(space) == Window::Shared && !self.src.memcheck =>
                    {
                        return Ok(self.shared_lanes(&vs, addr.offset, ask));
                    }
                    // Wrapping lanes are outside shared memory, so the check sees them.
                    (V::A(x, s), Class::B32) if self.window_of(space) == Window::Shared => {
                        V::A(self.b.ins().sextend(types::I64, x), s)
                    }
                    (v, Class::B32) if self.window_of(space) != Window::Arena => {
                        self.sign_extend32(v)
                    }
                    (v, class) => self.resize(v, class, Class::B64),
                }
            }
        };
        let window = self.window_of(space);
        self.check_value(
            window,
            value,
            addr.offset,
            ask,
            matches!(addr.base, AddrBase::Reg(_)),
        )
    }

    fn var_host(
        &mut self,
        space: Space,
        var: VarId,
        place: VarPlace,
        offset: i64,
    ) -> Result<Host, CompileError> {
        Ok(match place {
            VarPlace::Local(o) => {
                let at = o + offset as u64;
                if self.lanes == 1 {
                    Host::One(self.frame_address(0, at), 0)
                } else {
                    Host::Lanes(
                        (0..self.lanes)
                            .map(|l| (self.frame_address(l, at), 0))
                            .collect(),
                    )
                }
            }
            VarPlace::KernelParam(o) => {
                let field = if space == Space::Param {
                    offset_of!(BlockContext, params)
                } else {
                    offset_of!(BlockContext, params_device)
                };
                Host::One(self.field(types::I64, field), (o as i64 + offset) as i32)
            }
            VarPlace::Shared(o) => {
                let p = self.field(types::I64, offset_of!(BlockContext, shared_base));
                Host::One(p, (o as i64 + offset) as i32)
            }
            VarPlace::Global(_) | VarPlace::None => match self.var_address(var, offset)? {
                V::U(p) => Host::One(p, 0),
                _ => return Err(self.refuse("the address of a variable")),
            },
        })
    }

    /// What has to be checked here, if neither an earlier step nor the launch's proof did.
    pub(crate) fn hull(&self, offset: i64, ask: Ask, by_register: bool) -> Option<Hull> {
        let place = self.plan.slow.get(self.site as usize).map(|s| s.place);
        if self.src.proven && place.is_some_and(|p| self.plan.proof.covers(p)) {
            return None;
        }
        let merged = self.merged.plan.get(&self.merged.at).copied();
        match merged.filter(|_| by_register) {
            Some(planned) => planned,
            None => Some(Hull {
                low: offset,
                high: offset.wrapping_add(i64::from(ask.bytes)),
                align: ask.align,
            }),
        }
    }

    /// Checks `value + offset` in a window and gives the host address.
    pub(crate) fn check_value(
        &mut self,
        window: Window,
        value: V,
        offset: i64,
        ask: Ask,
        by_register: bool,
    ) -> Result<Host, CompileError> {
        let value = match value {
            V::U(x) => V::U(self.int(x)),
            v => v,
        };
        let (skip, hull) = match self.hull(offset, ask, by_register) {
            Some(h) => (false, h),
            None => (true, Hull::default()),
        };
        let span = (hull.high - hull.low) as u64;
        let small = i32::try_from(offset).ok();
        let place = |e: &mut Self, x: Value, lane: usize| {
            let host = match e.window_base(window, lane) {
                Some(base) => e.b.ins().iadd(base, x),
                None => x,
            };
            match small {
                Some(o) => (host, o),
                None => (e.add_imm(host, offset), 0),
            }
        };
        match value {
            V::U(x) if window != Window::Local || self.lanes == 1 => {
                if !skip {
                    self.check(window, &[(x, 0)], hull.low, span, hull.align, 0, ask);
                }
                let (h, o) = place(self, x, 0);
                Ok(Host::One(h, o))
            }
            V::A(x, stride)
                if window != Window::Local
                    && stride % i64::from(ask.align) == 0
                    && stride.unsigned_abs() < 1 << 20 =>
            {
                if !skip {
                    let reach = stride.wrapping_mul(self.lanes as i64 - 1);
                    let low = hull.low + reach.min(0);
                    let span = span + reach.unsigned_abs();
                    self.check(window, &[(x, 0)], low, span, hull.align, stride, ask);
                }
                let (h, o) = place(self, x, 0);
                Ok(Host::Affine(h, o, stride))
            }
            v => {
                let lanes: Vec<(Value, usize)> = (0..self.lanes)
                    .map(|l| (self.lane(&v, Class::B64, l), l))
                    .collect();
                if !skip && !self.check_vectors(window, &v, hull, ask) {
                    self.check(window, &lanes, hull.low, span, hull.align, 0, ask);
                }
                Ok(Host::Lanes(
                    lanes.iter().map(|(x, l)| place(self, *x, *l)).collect(),
                ))
            }
        }
    }
}

fn mergeable(space: Space) -> Option<Window> {
    match space {
        Space::Generic | Space::Global | Space::Const => Some(Window::Arena),
        Space::Shared | Space::SharedCluster => Some(Window::Shared),
        _ => None,
    }
}

pub(crate) fn mem_type(ty: ScalarType) -> Type {
    match ty.bytes() {
        1 => types::I8,
        2 => types::I16,
        4 => types::I32,
        8 => types::I64,
        _ => types::I128,
    }
}
