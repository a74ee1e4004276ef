//! The PTX of a fused elementwise kernel.
//!
//! The kernel has one parameter, a block of 64-bit words: the number of outputs' elements, the
//! addresses of inputs and outputs, the scalars (in the low halves), then, for a strided kernel, the
//! sizes of the axes and the strides of each input. Everything is computed in 32-bit floats.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::{Binary, Expr, Node, Unary};
use crate::DType;

/// What distinguishes one kernel from another.
#[derive(Clone, Debug)]
pub(super) struct Shape<'a> {
    pub(super) outputs: &'a [(&'a Expr, DType)],
    pub(super) inputs: &'a [DType],
    pub(super) scalars: usize,
    /// Axes of a strided kernel; 0 for one whose inputs are all dense.
    pub(super) axes: usize,
    /// Elements that a thread computes, 1 or a multiple of 4. More than 1 only for dense ones.
    pub(super) per_thread: usize,
    /// Whether it is for a card of compute capability 8.0 or later: two 16-bit elements are converted at once, sums of
    /// products are rounded once, powers and reciprocals below 2^-126 are 0.
    pub(super) is_card: bool,
}

/// Name of the kernel in its module.
pub(super) const NAME: &str = "fused";

struct Writer {
    body: String,
    floats: usize,
    /// Registers of parts that are computed already, by their description.
    known: HashMap<String, String>,
    is_card: bool,
}

fn constant(value: f32) -> String {
    format!("0f{:08X}", value.to_bits())
}

impl Writer {
    fn float(&mut self) -> String {
        self.floats += 1;
        format!("%f{}", self.floats)
    }

    fn line(&mut self, line: &str) {
        let _ = writeln!(self.body, "\t{line}");
    }

    /// A new register with the result of an instruction that is the same for equal operands.
    fn value(&mut self, instruction: String) -> String {
        if let Some(register) = self.known.get(&instruction) {
            return register.clone();
        }
        let register = self.float();
        self.line(&instruction.replace('$', &register));
        self.known.insert(instruction, register.clone());
        register
    }

    /// The register of an expression; inputs are in `inputs`.
    fn expr(&mut self, expr: &Expr, inputs: &[String]) -> String {
        match &*expr.0 {
            Node::Input(number) => inputs[*number].clone(),
            Node::Scalar(number) => format!("%s{number}"),
            Node::Const(value) => self.value(format!("mov.f32 $, {};", constant(*value))),
            Node::Unary(operation, x) => {
                let x = self.expr(x, inputs);
                let name = match operation {
                    Unary::Neg => "neg.f32",
                    Unary::Abs => "abs.f32",
                    Unary::Exp2 if self.is_card => "ex2.approx.ftz.f32",
                    Unary::Exp2 => "ex2.approx.f32",
                    Unary::Log2 => "lg2.approx.f32",
                    Unary::Sqrt => "sqrt.rn.f32",
                    Unary::NearReciprocal if self.is_card => "rcp.approx.ftz.f32",
                    Unary::Reciprocal | Unary::NearReciprocal => "rcp.rn.f32",
                };
                self.value(format!("{name} $, {x};"))
            }
            Node::Binary(Binary::Add, x, y)
                if self.is_card && (x.factors().or(y.factors())).is_some() =>
            {
                let (product, other) = if y.factors().is_some() {
                    (y, x)
                } else {
                    (x, y)
                };
                self.sum(product, other, inputs)
            }
            Node::Binary(Binary::Sub, x, y) if self.is_card && y.factors().is_some() => {
                self.difference(x, y, inputs)
            }
            Node::Binary(operation, x, y) => {
                let (x, y) = (self.expr(x, inputs), self.expr(y, inputs));
                let name = match operation {
                    Binary::Add => "add.rn.f32",
                    Binary::Sub => "sub.rn.f32",
                    Binary::Mul => "mul.rn.f32",
                    Binary::Div => "div.rn.f32",
                    Binary::Max => return self.extreme("gtu", &x, &y),
                    Binary::Min => return self.extreme("ltu", &x, &y),
                };
                self.value(format!("{name} $, {x}, {y};"))
            }
            Node::Where(x, yes, no) => {
                let x = self.expr(x, inputs);
                let (yes, no) = (self.expr(yes, inputs), self.expr(no, inputs));
                let zero = constant(0.0);
                self.value(format!(
                    "{{ .reg .pred %q; setp.gt.f32 %q, {x}, {zero}; selp.f32 $, {yes}, {no}, %q; }}"
                ))
            }
        }
    }

    /// A product plus another value, rounded once.
    fn sum(&mut self, product: &Expr, other: &Expr, inputs: &[String]) -> String {
        let other = self.expr(other, inputs);
        let Some((x, y)) = product.factors() else {
            let product = self.expr(product, inputs);
            return self.value(format!("add.rn.f32 $, {product}, {other};"));
        };
        let (x, y) = (self.expr(x, inputs), self.expr(y, inputs));
        self.value(format!("fma.rn.f32 $, {x}, {y}, {other};"))
    }

    /// A value less a product, rounded once.
    fn difference(&mut self, from: &Expr, product: &Expr, inputs: &[String]) -> String {
        let from = self.expr(from, inputs);
        let Some((x, y)) = product.factors() else {
            let product = self.expr(product, inputs);
            return self.value(format!("sub.rn.f32 $, {from}, {product};"));
        };
        let (x, y) = (self.expr(x, inputs), self.expr(y, inputs));
        let negated = self.value(format!("neg.f32 $, {x};"));
        self.value(format!("fma.rn.f32 $, {negated}, {y}, {from};"))
    }

    /// The larger or the smaller of two. The comparison is true for a NaN on either side, which chooses
    /// `x`; a NaN of `y` is taken over after it.
    fn extreme(&mut self, compare: &str, x: &str, y: &str) -> String {
        self.value(format!(
            "{{ .reg .pred %q, %n; setp.{compare}.f32 %q, {x}, {y}; selp.f32 $, {x}, {y}, %q; \
             setp.nan.f32 %n, {y}, {y}; @%n mov.f32 $, {y}; }}"
        ))
    }
}

impl Expr {
    /// The factors of a product.
    fn factors(&self) -> Option<(&Expr, &Expr)> {
        match &*self.0 {
            Node::Binary(Binary::Mul, x, y) => Some((x, y)),
            _ => None,
        }
    }
}

/// How an element is loaded: the type of the instruction and of its register.
fn memory_type(dtype: DType) -> (&'static str, &'static str) {
    match dtype {
        DType::F32 => ("f32", "%v"),
        DType::F16 | DType::BF16 => ("b16", "%h"),
        // Elements of 4 bits do not come here.
        DType::I8 | DType::I4 => ("s8", "%h"),
        DType::I32 => ("s32", "%i"),
    }
}

/// A register of the element's memory type.
fn raw(dtype: DType, number: usize) -> String {
    format!("{}{number}", memory_type(dtype).1)
}

impl Writer {
    /// Makes a float of what was loaded.
    fn widen(&mut self, dtype: DType, raw: &str) -> String {
        let float = self.float();
        match dtype {
            DType::F32 => return raw.to_owned(),
            DType::F16 => self.line(&format!("cvt.f32.f16 {float}, {raw};")),
            DType::BF16 => self.line(&format!(
                "{{ .reg .b16 %z; mov.b16 %z, 0; mov.b32 {float}, {{%z, {raw}}}; }}"
            )),
            DType::I8 | DType::I4 => self.line(&format!("cvt.rn.f32.s16 {float}, {raw};")),
            DType::I32 => self.line(&format!("cvt.rn.f32.s32 {float}, {raw};")),
        }
        float
    }

    /// Makes what is stored of a float.
    fn narrow(&mut self, dtype: DType, float: &str, raw: &str) {
        match dtype {
            DType::F32 => self.line(&format!("mov.f32 {raw}, {float};")),
            DType::F16 => self.line(&format!("cvt.rn.f16.f32 {raw}, {float};")),
            // To the nearest even; a NaN becomes one with all bits set.
            DType::BF16 => self.line(&format!(
                "{{ .reg .b32 %a, %b; .reg .b16 %l; .reg .pred %n; mov.b32 %a, {float}; \
                 bfe.u32 %b, %a, 16, 1; add.u32 %b, %b, 32767; add.u32 %a, %a, %b; \
                 mov.b32 {{%l, {raw}}}, %a; setp.nan.f32 %n, {float}, {float}; @%n mov.b16 {raw}, 32767; }}"
            )),
            DType::I8 | DType::I4 => self.line(&format!(
                "{{ .reg .s32 %a; cvt.rni.s32.f32 %a, {float}; max.s32 %a, %a, -128; \
                 min.s32 %a, %a, 127; cvt.u16.u32 {raw}, %a; }}"
            )),
            DType::I32 => self.line(&format!("cvt.rni.s32.f32 {raw}, {float};")),
        }
    }

    /// Loads elements of an input from `%p` into registers of its memory type.
    fn load(&mut self, shape: &Shape, dtype: DType, raws: &mut usize) -> Vec<String> {
        let count = shape.per_thread;
        let registers: Vec<String> = (*raws..*raws + count).map(|at| raw(dtype, at)).collect();
        *raws += count;
        if shape.in_pairs(dtype) {
            let words: Vec<String> = (*raws..*raws + count / 2)
                .map(|at| format!("%i{at}"))
                .collect();
            *raws += count / 2;
            let list = words.join(", ");
            self.line(&format!("ld.global.v{}.b32 {{{list}}}, [%p];", words.len()));
            for (word, pair) in words.iter().zip(registers.chunks(2)) {
                self.line(&format!("mov.b32 {{{}}}, {word};", pair.join(", ")));
            }
            return registers;
        }
        let (ty, size) = (memory_type(dtype).0, dtype.size_bytes());
        for (number, group) in registers.chunks(4).enumerate() {
            let at = number * 4 * size;
            self.line(&match group {
                [one] => format!("ld.global.{ty} {one}, [%p];"),
                _ => format!("ld.global.v4.{ty} {{{}}}, [%p+{at}];", group.join(", ")),
            });
        }
        registers
    }

    /// Stores floats as elements of an output at `%p`.
    fn store(&mut self, shape: &Shape, dtype: DType, floats: &[String], raws: &mut usize) {
        if shape.in_pairs(dtype) {
            let words: Vec<String> = (0..floats.len() / 2)
                .map(|at| format!("%i{}", *raws + at))
                .collect();
            *raws += words.len();
            for (word, pair) in words.iter().zip(floats.chunks(2)) {
                let (low, high) = (&pair[0], &pair[1]);
                self.line(&format!("cvt.rn.{dtype}x2.f32 {word}, {high}, {low};"));
            }
            let list = words.join(", ");
            self.line(&format!("st.global.v{}.b32 [%p], {{{list}}};", words.len()));
            return;
        }
        let registers: Vec<String> = (0..floats.len()).map(|at| raw(dtype, *raws + at)).collect();
        *raws += registers.len();
        for (float, register) in floats.iter().zip(&registers) {
            self.narrow(dtype, float, register);
        }
        let (ty, size) = (memory_type(dtype).0, dtype.size_bytes());
        for (number, group) in registers.chunks(4).enumerate() {
            let at = number * 4 * size;
            self.line(&match group {
                [one] => format!("st.global.{ty} [%p], {one};"),
                _ => format!("st.global.v4.{ty} [%p+{at}], {{{}}};", group.join(", ")),
            });
        }
    }
}

impl Shape<'_> {
    /// Whether elements of a type are loaded, converted and stored two at a time.
    fn in_pairs(&self, dtype: DType) -> bool {
        self.is_card && dtype.size_bytes() == 2 && matches!(self.per_thread, 4 | 8)
    }
}

/// The text of a kernel.
pub(super) fn kernel(shape: &Shape) -> String {
    let mut writer = Writer {
        body: String::new(),
        floats: 0,
        known: HashMap::new(),
        is_card: shape.is_card,
    };
    let words = words(shape);
    if shape.axes > 0 {
        strided_offsets(&mut writer, shape);
    }
    let mut raws = 0;
    let mut loaded: Vec<Vec<String>> = Vec::new();
    for (input, dtype) in shape.inputs.iter().enumerate() {
        writer.line(&format!("ld.param.u64 %p, [args+{}];", 8 * (1 + input)));
        let offset = if shape.axes > 0 {
            format!("%o{input}")
        } else {
            "%first".into()
        };
        let size = dtype.size_bytes();
        writer.line(&format!("mad.lo.u64 %p, {offset}, {size}, %p;"));
        loaded.push(writer.load(shape, *dtype, &mut raws));
    }
    let mut results: Vec<Vec<String>> = vec![Vec::new(); shape.outputs.len()];
    for element in 0..shape.per_thread {
        writer.known.clear();
        let inputs: Vec<String> = (shape.inputs.iter().zip(&loaded))
            .map(|(dtype, raws)| writer.widen(*dtype, &raws[element]))
            .collect();
        for ((expr, _), results) in shape.outputs.iter().zip(&mut results) {
            results.push(writer.expr(expr, &inputs));
        }
    }
    for (output, ((_, dtype), floats)) in shape.outputs.iter().zip(&results).enumerate() {
        let word = 1 + shape.inputs.len() + output;
        let size = dtype.size_bytes();
        writer.line(&format!("ld.param.u64 %p, [args+{}];", 8 * word));
        writer.line(&format!("mad.lo.u64 %p, %first, {size}, %p;"));
        writer.store(shape, *dtype, floats, &mut raws);
    }
    finish(shape, &writer, words, raws)
}

/// Words of the parameter block.
fn words(shape: &Shape) -> usize {
    let strides = shape.axes * (1 + shape.inputs.len());
    1 + shape.inputs.len() + shape.outputs.len() + shape.scalars + strides
}

/// Computes where the element is in each input: `%o0`, `%o1`, ….
fn strided_offsets(writer: &mut Writer, shape: &Shape) {
    let inputs = shape.inputs.len();
    let sizes = 1 + inputs + shape.outputs.len() + shape.scalars;
    for input in 0..inputs {
        writer.line(&format!("mov.u64 %o{input}, 0;"));
    }
    writer.line("cvt.u32.u64 %rest, %first;");
    for axis in (0..shape.axes).rev() {
        writer.line(&format!(
            "ld.param.u32 %size, [args+{}];",
            8 * (sizes + axis)
        ));
        writer.line("div.u32 %above, %rest, %size;");
        writer.line("mul.lo.u32 %size, %above, %size;");
        writer.line("sub.u32 %at, %rest, %size;");
        writer.line("mov.u32 %rest, %above;");
        writer.line("cvt.u64.u32 %wide, %at;");
        for input in 0..inputs {
            let word = sizes + shape.axes * (1 + input) + axis;
            writer.line(&format!("ld.param.u64 %p, [args+{}];", 8 * word));
            writer.line(&format!("mad.lo.u64 %o{input}, %wide, %p, %o{input};"));
        }
    }
}

fn finish(shape: &Shape, writer: &Writer, words: usize, raws: usize) -> String {
    let Shape {
        inputs,
        outputs,
        scalars,
        per_thread,
        ..
    } = shape;
    let architecture = if shape.is_card { 80 } else { 75 };
    let mut text = format!(
        ".version 7.0\n.target sm_{architecture}\n.address_size 64\n\
         .visible .entry {NAME}(.param .align 8 .b8 args[{}])\n{{\n\
         \t.reg .pred %out;\n\t.reg .b64 %p, %first, %count, %wide, %o<{}>;\n\
         \t.reg .b32 %r<4>, %rest, %size, %above, %at;\n\t.reg .f32 %f<{}>, %s<{}>, %v<{raws}>;\n\
         \t.reg .b16 %h<{raws}>;\n\t.reg .b32 %i<{raws}>;\n",
        8 * words,
        inputs.len().max(1),
        writer.floats + 1,
        scalars + 1,
    );
    let _ = write!(
        text,
        "\tld.param.u64 %count, [args];\n\tmov.u32 %r1, %ctaid.x;\n\tmov.u32 %r2, %ntid.x;\n\
         \tmov.u32 %r3, %tid.x;\n\tmad.wide.u32 %first, %r1, %r2, 0;\n\tcvt.u64.u32 %wide, %r3;\n\
         \tadd.u64 %first, %first, %wide;\n\tmul.lo.u64 %first, %first, {per_thread};\n\
         \tsetp.ge.u64 %out, %first, %count;\n\t@%out bra DONE;\n"
    );
    for scalar in 0..*scalars {
        let word = 1 + inputs.len() + outputs.len() + scalar;
        let _ = writeln!(text, "\tld.param.f32 %s{scalar}, [args+{}];", 8 * word);
    }
    text.push_str(&writer.body);
    text.push_str("DONE:\n\tret;\n}\n");
    text
}
