//! Addresses: which window they are in, and where that is on the host.
//!
//! Every access is checked once for the whole group where its address is uniform or affine.

use cranelift_codegen::ir::{InstBuilder, Type, Value, types};
use mica_kernel::BlockContext;
use mica_ptx::ast::{AddrBase, Address, ScalarType, Space, VarId};
use std::mem::offset_of;

use super::inside::KnownMemory;
use super::{Emit, V, fixed};
use crate::CompileError;
use crate::unit::{Class, VarPlace, WRITES_PARAM};

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

/// What one access asks for.
#[derive(Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) bytes: u32,
    pub(crate) align: u32,
    pub(crate) write: bool,
}

impl Emit<'_, '_> {
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
        let host = self.resolve(space, addr, ask)?;
        if self.src.recheck {
            self.recheck_host(&host, ask.bytes, self.window_of(space) == Window::Params);
        }
        Ok(host)
    }

    /// The window that an access ends up in: a variable knows where it is.
    pub(crate) fn accessed(&self, space: Space, addr: &Address) -> Window {
        let unit = &self.plan.unit;
        let place = match addr.base {
            AddrBase::Var(var) => {
                unit.var_place(self.src.module, self.src.layout, self.instance, var)
            }
            _ => return self.window_of(space),
        };
        match place {
            VarPlace::Local(_) => Window::Local,
            VarPlace::Shared(_) => Window::Shared,
            VarPlace::KernelParam(_) => Window::Params,
            _ => self.window_of(space),
        }
    }

    fn resolve(&mut self, space: Space, addr: &Address, ask: Ask) -> Result<Host, CompileError> {
        let unit = &self.plan.unit;
        let to_params = match addr.base {
            AddrBase::Var(var) => {
                let place = unit.var_place(self.src.module, self.src.layout, self.instance, var);
                space == Space::Param && matches!(place, VarPlace::KernelParam(_))
            }
            _ => self.window_of(space) == Window::Params,
        };
        if ask.write && to_params {
            return Err(self.refuse(WRITES_PARAM));
        }
        let mut space = space;
        let value = match addr.base {
            AddrBase::Var(var) => {
                let place = unit.var_place(self.src.module, self.src.layout, self.instance, var);
                if !self.src.memcheck
                    && let Some(host) = self.var_host(space, var, place, addr.offset, ask)?
                {
                    return Ok(host);
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

    /// Where an access to a variable goes that needs no check; `None` when it needs one.
    fn var_host(
        &mut self,
        space: Space,
        var: VarId,
        place: VarPlace,
        offset: i64,
        ask: Ask,
    ) -> Result<Option<Host>, CompileError> {
        let v = self.src.module.var(var);
        let Ok(offset) = u64::try_from(offset) else {
            return Ok(None);
        };
        let bytes = u64::from(ask.bytes);
        let aligned = v.align >= ask.align
            && (v.offset.wrapping_add(offset)).is_multiple_of(u64::from(ask.align));
        if !aligned || offset.saturating_add(bytes) > v.size || v.is_dynamic_shared() {
            return Ok(None);
        }
        let (memory, start) = match place {
            VarPlace::Local(o) => (KnownMemory::Frame(0), o),
            VarPlace::KernelParam(o) if space == Space::Param => (KnownMemory::Params, o),
            VarPlace::KernelParam(o) => (KnownMemory::ParamsDevice, o),
            VarPlace::Shared(o) => (KnownMemory::Shared, o),
            VarPlace::Global(i) => (KnownMemory::Global(i), 0),
            VarPlace::None => return Ok(None),
        };
        let at = start + offset;
        // What is declared larger than it is, or belongs to another kernel, is checked like any address.
        if !self.is_inside(memory, at, bytes) {
            return Ok(None);
        }
        if let (KnownMemory::Frame(_), 2..) = (memory, self.lanes) {
            let lanes = (0..self.lanes).map(|l| self.place(KnownMemory::Frame(l), at, bytes));
            return Ok(Some(Host::Lanes(lanes.collect::<Result<_, _>>()?)));
        }
        let (p, o) = self.place(memory, at, bytes)?;
        Ok(Some(Host::One(p, o)))
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
        let hull = self.hull(offset, ask, by_register);
        let (skip, hull) = (hull.is_none(), hull.unwrap_or_default());
        let span = hull.span();
        let place = |e: &mut Self, x: Value, lane: usize| {
            let host = match e.window_base(window, lane) {
                Some(base) => e.b.ins().iadd(base, x),
                None => x,
            };
            match near(offset) {
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
                    let low = hull.low.wrapping_add(reach.min(0));
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

/// An offset that an address can have in an instruction, with room for what is added for each element.
pub(crate) fn near(offset: i64) -> Option<i32> {
    i32::try_from(offset)
        .ok()
        .filter(|o| o.unsigned_abs() < 1 << 30)
}

/// Most bytes of a vector that other blocks see whole or not at all, where the instruction has an order. PTX does not
/// promise that; GPUs do it, and single-pass scans rely on it.
pub(crate) const WHOLE_BYTES: u32 = 16;

pub(crate) fn mem_type(ty: ScalarType) -> Type {
    match ty.bytes() {
        1 => types::I8,
        2 => types::I16,
        4 => types::I32,
        8 => types::I64,
        _ => types::I128,
    }
}
