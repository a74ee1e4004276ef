//! Floating point on f32 and f64, rounding to nearest. `directed` does other roundings, `half` f16; what
//! is left goes to the runtime.

use cranelift_codegen::ir::{InstBuilder, Value, condcodes::FloatCC, condcodes::IntCC, types};
use mica_ptx::ast::{FloatBinOp, FloatUnOp, Op, Operand, Precision, RegId, Rounding, ScalarType};

use super::directed::{Exact, Finish};
use super::half::is_half;
use super::{Emit, V};
use crate::CompileError;
use crate::run;
use crate::unit::Class;

fn plain(ty: ScalarType) -> bool {
    matches!(ty, ScalarType::F32 | ScalarType::F64)
}

impl Emit<'_, '_> {
    pub(crate) fn floating(&mut self, op: &Op) -> Result<bool, CompileError> {
        if self.wide_float(op)? {
            return Ok(true);
        }
        match op {
            Op::FloatBin { ty, .. } | Op::Fma { ty, .. } | Op::FloatUn { ty, .. }
                if is_half(*ty) =>
            {
                self.half(op)
            }
            Op::FloatBin {
                ty,
                xorsign_abs: false,
                ..
            } if plain(*ty) => self.float_bin(op),
            Op::Fma {
                ty,
                relu: false,
                oob: false,
                ..
            } if plain(*ty) => self.float_fma(op),
            Op::FloatDiv { ty, .. } if plain(*ty) => self.float_div(op),
            Op::FloatUn { ty, .. } if plain(*ty) => self.float_un(op),
            Op::Copysign { ty, .. } if plain(*ty) => self.copysign(op),
            _ => Ok(false),
        }
    }

    /// Sets `dst` to what `compute` makes of the operands, as floats, lane by lane or as vectors.
    fn map_floats(
        &mut self,
        ty: ScalarType,
        finish: Finish,
        dst: RegId,
        srcs: &[(V, Class)],
        compute: impl Fn(&mut Self, &[Value]) -> Value,
    ) {
        let flush = finish.ftz && ty == ScalarType::F32;
        let f = |e: &mut Self, v: &[Value]| {
            let inputs: Vec<Value> = v.iter().map(|v| e.input(*v, flush)).collect();
            let r = compute(e, &inputs);
            e.output(r, flush, finish.sat)
        };
        let v = self.map(srcs, Class::of(ty), &f, Some(&f));
        self.set_float(dst, v);
    }

    fn get_floats(
        &mut self,
        ty: ScalarType,
        srcs: &[&Operand],
    ) -> Result<Vec<(V, Class)>, CompileError> {
        let class = Class::of(ty);
        let get = |o: &&Operand| self.get_float(o, class).map(|v| (v, class));
        srcs.iter().map(get).collect()
    }

    /// An operation that `compute` rounds to nearest, and that is done in other directions if it is an exact one.
    fn nearest_or_directed(
        &mut self,
        exact: Option<Exact>,
        ty: ScalarType,
        finish: Finish,
        dst: RegId,
        srcs: &[&Operand],
        compute: impl Fn(&mut Self, &[Value]) -> Value,
    ) -> Result<bool, CompileError> {
        if finish.round != Rounding::Rn {
            let directed = |op| self.directed(op, ty, finish, dst, srcs);
            return exact.map_or(Ok(false), directed);
        }
        let srcs = self.get_floats(ty, srcs)?;
        self.map_floats(ty, finish, dst, &srcs, compute);
        Ok(true)
    }

    /// `add sub mul min max`.
    fn float_bin(&mut self, op: &Op) -> Result<bool, CompileError> {
        let Op::FloatBin {
            op,
            ty,
            round,
            ftz,
            sat,
            nan,
            dst,
            a,
            b,
            ..
        } = op
        else {
            return Ok(false);
        };
        let finish = Finish::new(*round, *ftz, *sat);
        let exact = Exact::of(*op);
        self.nearest_or_directed(exact, *ty, finish, *dst, &[a, b], |e, v| {
            e.two_floats(*op, v[0], v[1], *nan)
        })
    }

    fn float_fma(&mut self, op: &Op) -> Result<bool, CompileError> {
        let Op::Fma {
            ty,
            round,
            ftz,
            sat,
            dst,
            a,
            b,
            c,
            ..
        } = op
        else {
            return Ok(false);
        };
        let finish = Finish::new(*round, *ftz, *sat);
        if *round != Rounding::Rn {
            return self.directed(Exact::Fma, *ty, finish, *dst, &[a, b, c]);
        }
        if !self.src.has_fma {
            return Ok(false);
        }
        let mut srcs = self.get_floats(*ty, &[a, b, c])?;
        // The instruction overwrites its first operand: better not a broadcast that other
        // vectors of the group use too.
        if matches!(srcs[0].0, V::U(_)) {
            srcs.swap(0, 1);
        }
        self.map_floats(*ty, finish, *dst, &srcs, |e, v| {
            e.b.ins().fma(v[0], v[1], v[2])
        });
        Ok(true)
    }

    fn float_div(&mut self, op: &Op) -> Result<bool, CompileError> {
        let Op::FloatDiv {
            ty,
            prec,
            ftz,
            dst,
            a,
            b,
        } = op
        else {
            return Ok(false);
        };
        let Precision::Ieee(round) = *prec else {
            // Approximate division has its own rules for large divisors.
            if *ty == ScalarType::F32 {
                let full = *prec == Precision::Full;
                return self.near_quotient((*ftz, full), *dst, a, b).map(|()| true);
            }
            return self.pure(run::DIV_APPROX, &[a, b], *dst, *ty, *prec, *ftz);
        };
        let finish = Finish::new(round, *ftz, false);
        let exact = Some(Exact::Div);
        self.nearest_or_directed(exact, *ty, finish, *dst, &[a, b], |e, v| {
            e.b.ins().fdiv(v[0], v[1])
        })
    }

    /// `abs neg sqrt rcp rsqrt`, and the functions that the runtime computes.
    fn float_un(&mut self, op: &Op) -> Result<bool, CompileError> {
        let Op::FloatUn {
            op,
            ty,
            prec,
            ftz,
            dst,
            a,
        } = op
        else {
            return Ok(false);
        };
        let nearest = matches!(prec, Precision::Ieee(Rounding::Rn) | Precision::Approx);
        let inline = match op {
            FloatUnOp::Abs | FloatUnOp::Neg => true,
            FloatUnOp::Sqrt | FloatUnOp::Rcp => {
                nearest && (*ty == ScalarType::F32 || *prec != Precision::Approx)
            }
            FloatUnOp::Rsqrt => *ty == ScalarType::F32,
            _ => false,
        };
        if !inline {
            return self.transcendental(*op, *ty, *prec, *ftz, *dst, a);
        }
        let finish = Finish::new(Rounding::Rn, *ftz, false);
        self.nearest_or_directed(None, *ty, finish, *dst, &[a], |e, v| e.one_float(*op, v[0]))
    }

    /// An operation on one float, rounded to nearest.
    fn one_float(&mut self, op: FloatUnOp, a: Value) -> Value {
        match op {
            FloatUnOp::Abs => self.b.ins().fabs(a),
            FloatUnOp::Neg => self.b.ins().fneg(a),
            FloatUnOp::Sqrt => self.b.ins().sqrt(a),
            // The interpreter rounds twice too. AVX-512's estimate and a Newton step
            // were no faster in n-body, and differ in the last bit between machines.
            FloatUnOp::Rsqrt => {
                let s = self.b.ins().sqrt(a);
                let one = self.one_like(s);
                self.b.ins().fdiv(one, s)
            }
            _ => {
                let one = self.one_like(a);
                self.b.ins().fdiv(one, a)
            }
        }
    }

    fn copysign(&mut self, op: &Op) -> Result<bool, CompileError> {
        let Op::Copysign { ty, dst, a, b } = op else {
            return Ok(false);
        };
        let class = Class::of(*ty);
        let x = self.get(a, class)?;
        let y = self.get(b, class)?;
        let f = |e: &mut Self, v: &[Value]| {
            let (a, b) = (e.float(v[0]), e.float(v[1]));
            e.b.ins().fcopysign(b, a)
        };
        let v = self.map(&[(x, class), (y, class)], class, &f, Some(&f));
        self.set(*dst, v);
        Ok(true)
    }

    /// An operation on two floats, rounded to nearest.
    pub(crate) fn two_floats(&mut self, op: FloatBinOp, a: Value, b: Value, nan: bool) -> Value {
        match op {
            FloatBinOp::Add => self.b.ins().fadd(a, b),
            FloatBinOp::Sub => self.b.ins().fsub(a, b),
            FloatBinOp::Mul => self.b.ins().fmul(a, b),
            FloatBinOp::Min => self.min_max(a, b, true, nan),
            FloatBinOp::Max => self.min_max(a, b, false, nan),
        }
    }

    /// A transcendental function of f32; most by a direct call.
    fn transcendental(
        &mut self,
        op: FloatUnOp,
        ty: ScalarType,
        prec: Precision,
        ftz: bool,
        dst: mica_ptx::ast::RegId,
        a: &mica_ptx::ast::Operand,
    ) -> Result<bool, CompileError> {
        if ty != ScalarType::F32 || prec != Precision::Approx {
            return Ok(false);
        }
        let helper = match op {
            FloatUnOp::Sin | FloatUnOp::Cos if self.src.has_fma => {
                let quarters = u32::from(op == FloatUnOp::Cos);
                return self.sine(ftz, quarters, dst, a).map(|()| true);
            }
            FloatUnOp::Sin => run::SIN,
            FloatUnOp::Cos => run::COS,
            FloatUnOp::Lg2 => run::LG2,
            FloatUnOp::Ex2 if self.src.has_fma => return self.ex2(ftz, dst, a).map(|()| true),
            FloatUnOp::Ex2 => run::EX2,
            FloatUnOp::Tanh => run::TANH,
            _ => return Ok(false),
        };
        self.pure(helper, &[a], dst, ty, prec, ftz)
    }

    /// Calls a runtime function of values; the last argument says `ftz`, and `full` for division.
    fn pure(
        &mut self,
        helper: usize,
        srcs: &[&Operand],
        dst: RegId,
        ty: ScalarType,
        prec: Precision,
        ftz: bool,
    ) -> Result<bool, CompileError> {
        if ty != ScalarType::F32 || matches!(prec, Precision::Ieee(_)) {
            return Ok(false);
        }
        let mode = i64::from(ftz) | i64::from(prec == Precision::Full) << 1;
        self.values(helper, srcs, dst, mode)
    }

    /// Calls a runtime function of f32 values and a mode.
    fn values(
        &mut self,
        helper: usize,
        srcs: &[&Operand],
        dst: RegId,
        mode: i64,
    ) -> Result<bool, CompileError> {
        let vs = self.get_floats(ScalarType::F32, srcs)?;
        let v = self.map(
            &vs,
            Class::B32,
            &|e, v| {
                let mut args: Vec<Value> = Vec::new();
                for x in v {
                    let x = e.int(*x);
                    args.push(e.b.ins().uextend(types::I64, x));
                }
                args.push(e.i64(mode));
                let r = e.call(helper, &args);
                e.b.ins().ireduce(types::I32, r)
            },
            None,
        );
        self.set(dst, v);
        Ok(true)
    }

    pub(crate) fn input(&mut self, v: Value, flush: bool) -> Value {
        let v = self.float(v);
        if flush { self.flush(v) } else { v }
    }

    fn output(&mut self, v: Value, flush: bool, sat: bool) -> Value {
        let v = if flush { self.flush(v) } else { v };
        if sat { self.saturate(v) } else { v }
    }

    /// Subnormal f32 become zeros of their sign.
    pub(crate) fn flush(&mut self, v: Value) -> Value {
        let ty = self.ty(v);
        let x = self.int(v);
        if ty.is_vector() {
            let mag = self.vconst32([0x7fff_ffff; 4]);
            let abs = self.b.ins().band(x, mag);
            let min = self.vconst32([0x0080_0000; 4]);
            let tiny = self.b.ins().icmp(IntCC::SignedLessThan, abs, min);
            let clear = self.b.ins().band(tiny, mag);
            let r = self.b.ins().band_not(x, clear);
            return self.cast(r, ty);
        }
        let mag = self.imm(types::I32, 0x7fff_ffff);
        let abs = self.b.ins().band(x, mag);
        let min = self.imm(types::I32, 0x0080_0000);
        let tiny = self.b.ins().icmp(IntCC::SignedLessThan, abs, min);
        let sign = self.imm(types::I32, 0x8000_0000);
        let zero = self.b.ins().band(x, sign);
        let r = self.b.ins().select(tiny, zero, x);
        self.cast(r, ty)
    }

    pub(crate) fn choose(&mut self, c: Value, x: Value, y: Value) -> Value {
        let ty = self.ty(x);
        if ty.is_vector() {
            let ity = if ty.lane_bits() == 64 {
                types::I64X2
            } else {
                types::I32X4
            };
            let (x, y) = (self.cast(x, ity), self.cast(y, ity));
            let c = self.cast(c, ity);
            let r = self.b.ins().bitselect(c, x, y);
            return self.cast(r, ty);
        }
        self.b.ins().select(c, x, y)
    }

    pub(crate) fn constant_like(&mut self, v: Value, x: f64) -> Value {
        match self.ty(v) {
            types::F32 => self.imm(types::F32, u64::from((x as f32).to_bits())),
            types::F64 => self.imm(types::F64, x.to_bits()),
            types::F32X4 => {
                let c = self.vconst32([(x as f32).to_bits(); 4]);
                self.cast(c, types::F32X4)
            }
            _ => {
                let c = self.vconst64([x.to_bits(); 2]);
                self.cast(c, types::F64X2)
            }
        }
    }

    fn one_like(&mut self, v: Value) -> Value {
        self.constant_like(v, 1.0)
    }

    /// Clamps to `[0, 1]`; NaN becomes 0.
    pub(crate) fn saturate(&mut self, v: Value) -> Value {
        let zero = self.constant_like(v, 0.0);
        let one = self.constant_like(v, 1.0);
        let pos = self.b.ins().fcmp(FloatCC::GreaterThan, v, zero);
        let v = self.choose(pos, v, zero);
        let small = self.b.ins().fcmp(FloatCC::LessThan, v, one);
        self.choose(small, v, one)
    }

    /// The first of two where it is smaller, or larger; where they are equal or not ordered, the second.
    pub(crate) fn nearer(&mut self, a: Value, b: Value, min: bool) -> Value {
        let ty = self.ty(a);
        let is = match min {
            true => self.b.ins().fcmp(FloatCC::LessThan, a, b),
            false => self.b.ins().fcmp(FloatCC::LessThan, b, a),
        };
        if !ty.is_vector() {
            return self.b.ins().select(is, a, b);
        }
        // One instruction in this form.
        let is = self.cast(is, ty);
        self.b.ins().bitselect(is, a, b)
    }

    /// Minimum or maximum: a number wins over NaN unless `nan`, and -0 is below +0.
    fn min_max(&mut self, a: Value, b: Value, min: bool, nan: bool) -> Value {
        let r = if !nan && self.ty(a).is_vector() {
            // The processor's own, which takes the second of two zeros: both ways, their signs joined.
            let (x, y) = (self.nearer(a, b, min), self.nearer(b, a, min));
            match min {
                true => self.b.ins().bor(x, y),
                false => self.b.ins().band(x, y),
            }
        } else if min {
            self.b.ins().fmin(a, b)
        } else {
            self.b.ins().fmax(a, b)
        };
        if nan {
            return r;
        }
        let a_nan = self.b.ins().fcmp(FloatCC::Unordered, a, a);
        let r = self.choose(a_nan, b, r);
        let b_nan = self.b.ins().fcmp(FloatCC::Unordered, b, b);
        self.choose(b_nan, a, r)
    }
}
