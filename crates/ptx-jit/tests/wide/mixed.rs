//! Random kernels made of blocks that are nothing but float arithmetic, with all that can come between
//! such blocks: barriers, shuffles, branches of whole groups and of single lanes, loops, guarded
//! instructions, memory, and arithmetic of other kinds.

use crate::common::Rng;
use crate::{ONE, TWO};
use std::fmt::Write;

/// Uniformities of blocks of threads: whole groups, partial ones, none at all, rows.
pub(crate) const SHAPES: [(u32, u32); 8] = [
    (64, 1),
    (32, 1),
    (16, 2),
    (8, 3),
    (33, 1),
    (48, 1),
    (3, 1),
    (1, 1),
];
/// Floats that each thread loads and stores.
pub(crate) const OWN: usize = 8;
/// Words that each thread stores.
pub(crate) const OUT: usize = OWN + 2;

/// A function that is one wide block.
const WANDER: &str = ".func (.reg .f32 %r) wander(.reg .f32 %a, .reg .f32 %b)\n{\n\
    .reg .f32 %x, %y;\n fma.rn.f32 %x, %a, %b, 0f3f800000; mul.f32 %y, %x, 0f3f400000;\n\
    fma.rn.f32 %x, %y, %x, %b; add.f32 %y, %y, %x; div.rn.f32 %x, %y, %a; fma.rn.f32 %y, %x, %x, %y;\n\
    sqrt.rn.f32 %x, %y; sub.f32 %r, %x, %y; ret;\n}\n";
/// What no wide block holds. `D` and `A` stand for registers.
const OTHER: [&str; 32] = [
    "min.f32 D, A, A;",
    "max.NaN.f32 D, A, A;",
    "abs.f32 D, A;",
    "neg.f32 D, A;",
    "add.rz.f32 D, A, A;",
    "fma.rm.f32 D, A, A, A;",
    "add.sat.f32 D, A, A;",
    "add.ftz.f32 D, A, A;",
    "div.full.f32 D, A, A;",
    "sin.approx.f32 D, A;",
    "ex2.approx.f32 D, A;",
    "lg2.approx.f32 D, A;",
    "tanh.approx.f32 D, A;",
    "mov.f32 D, A;",
    "mov.f32 D, 0f7fc12345;",
    "setp.lt.f32 %p, A, A; selp.f32 D, A, A, %p;",
    "cvt.rn.f16.f32 %h, A; cvt.f32.f16 D, %h;",
    "cvt.f64.f32 %d, A; fma.rn.f64 %d, %d, %d, %d; cvt.rn.f32.f64 D, %d;",
    "mov.b32 %r0, A; xor.b32 %r1, %r1, %r0;",
    "cvt.rzi.s32.f32 %r1, A; mad.lo.s32 %r1, %r1, 3, %r0;",
    "cvt.rn.f32.s32 D, %r1;",
    "copysign.f32 D, A, A;",
    "add.f32 %r0, A, A;",
    "mul.f32 D, %r0, A;",
    "setp.gt.f32 %p, A, A; @%p add.f32 D, A, A;",
    "st.global.f32 [%out], A; ld.global.f32 D, [%out]; add.f32 D, D, 0f00000000;",
    "st.shared.f32 [%mine], A; ld.shared.f32 D, [%mine]; mul.f32 D, D, 0f3f800000;",
    "set.lt.f32.f32 D, A, A;",
    "slct.f32.f32 D, A, A, A;",
    "cvt.rpi.f32.f32 D, A;",
    "call (D), wander, (A, A);",
    "call (D), wander, (A, A);",
];

const ROW: &str = "mov.u32 %y, %tid.y; mov.u32 %w, %ntid.x; mad.lo.u32 %x, %y, %w, %t;";

struct Made {
    rng: Rng,
    text: String,
    labels: usize,
    loops: usize,
    /// Floats that stay, and that do not.
    own: usize,
    passing: usize,
    /// Those of the latter that this block has written.
    written: Vec<usize>,
    /// Whether integers stay, too, and whether blocks of arithmetic load what all threads share.
    integers: bool,
    loads: bool,
    /// The threads may have parted here.
    parted: bool,
}

impl Made {
    fn float(&mut self) -> String {
        match self.rng.next(5) {
            0..=2 if !self.written.is_empty() => format!("%t{}", self.rng.pick(&self.written)),
            _ => format!("%f{}", self.rng.next(self.own)),
        }
    }

    fn result(&mut self) -> String {
        match self.rng.next(3) {
            0 => format!("%f{}", self.rng.next(self.own)),
            _ => {
                let t = self.rng.next(self.passing);
                self.written.push(t);
                format!("%t{t}")
            }
        }
    }

    fn source(&mut self) -> String {
        match self.rng.next(9) {
            0 => format!("%u{}", self.rng.next(4)),
            1 => format!("0f{:08x}", (self.rng.next(9) as f32 / 4.0 - 1.1).to_bits()),
            _ => self.float(),
        }
    }

    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "  {line}");
    }

    fn label(&mut self) -> String {
        self.labels += 1;
        format!("L{}", self.labels)
    }

    fn arithmetic(&mut self) {
        let most = if self.rng.one_in(6) { 70 } else { 18 };
        let steps = 6 + self.rng.next(most);
        // Now and then values stay from one block to the next.
        if !self.rng.one_in(40) {
            self.written.clear();
        }
        for _ in 0..steps {
            let (a, b, c) = (self.source(), self.float(), self.source());
            let d = self.result();
            // What stays is read before it is written, or all before it would be dead.
            if d.starts_with("%f") {
                let op = self.rng.pick(&TWO);
                match self.rng.next(3) {
                    0 => self.line(&format!("fma.rn.f32 {d}, {a}, {b}, {d};")),
                    1 => self.line(&format!("fma.rn.f32 {d}, {d}, {c}, {b};")),
                    _ => self.line(&format!("{op} {d}, {d}, {b};")),
                }
                continue;
            }
            let line = match self.rng.next(24) {
                0..=2 => format!("{} {d}, {b};", self.rng.pick(&ONE)),
                3..=8 => format!("fma.rn.f32 {d}, {a}, {b}, {c};"),
                9 => format!("fma.rn.f32 {d}, {a}, {c}, {b};"),
                10..=14 => format!("{} {d}, {a}, {b};", self.rng.pick(&TWO)),
                15..=18 => format!("{} {d}, {b}, {a};", self.rng.pick(&TWO)),
                // What all threads share, in between.
                19 if !self.parted => {
                    format!("{} %u3, %u{}, %u1;", self.rng.pick(&TWO), self.rng.next(4))
                }
                20 if !self.parted && self.loads => "sqrt.rn.f32 %u2, %u1;".into(),
                21 if self.loads => {
                    format!("ld.global.f32 %u0, [%from+{}];", 4 * self.rng.next(16))
                }
                // Whole groups branch by it.
                22 if !self.parted => format!("add.u32 %i, %i, {};", self.rng.next(90)),
                _ => format!("mul.f32 {d}, {b}, {b};"),
            };
            self.line(&line);
        }
    }

    fn other(&mut self) {
        for _ in 0..1 + self.rng.next(4) {
            let template = self.rng.pick(&OTHER);
            if template.contains("%r") && !self.integers {
                continue;
            }
            let mut line = String::new();
            // Wide blocks write registers that nothing but arithmetic writes: most results pass by another.
            let direct = self.rng.one_in(40);
            let mut name = (!direct).then(|| "%l".to_string());
            for (i, word) in template.split(' ').enumerate() {
                let word = match word.trim_matches(['(', ')', ',', ';']) {
                    // An instruction that reads its result again means the same register.
                    "D" => {
                        let name = name.get_or_insert_with(|| self.result());
                        word.replace('D', name)
                    }
                    "A" => word.replace('A', &self.float()),
                    _ => word.into(),
                };
                line += if i == 0 { "" } else { " " };
                line += &word;
            }
            self.line(&line);
            if !direct && template.contains('D') {
                let d = self.result();
                let old = if d.starts_with("%f") {
                    &d
                } else {
                    "0f3f800000"
                };
                self.line(&format!("mul.f32 {d}, %l, {old};"));
            }
        }
    }

    /// Ends a block, in most ways there are.
    fn end(&mut self) {
        let (d, a) = (self.float(), self.float());
        let l = self.label();
        let line = match self.rng.next(if self.parted { 3 } else { 9 }) {
            0 => format!("setp.ne.u32 %q, %i, 77; @%q bra {l}; mul.f32 {d}, {d}, {a}; {l}:"),
            1 => format!("setp.gt.f32 %p, {d}, {a}; @%p mul.f32 {d}, {d}, {a};"),
            2 => format!("bra {l}; {l}:"),
            3 => format!("shfl.sync.bfly.b32 %l, {a}, 5, 31, -1; mul.f32 {d}, %l, {a};"),
            4 => format!("shfl.sync.idx.b32 %l|%p, {a}, 0, 31, -1; sub.f32 {d}, {d}, %l;"),
            5 => format!("match.any.sync.b32 %r0, {a}, -1;"),
            6 => "bar.warp.sync -1;".into(),
            _ => "bar.sync 0;".into(),
        };
        self.line(&line);
    }

    fn some(&mut self, depth: usize) {
        for _ in 0..1 + self.rng.next(3) {
            match self.rng.next(20) {
                0..=9 => {
                    self.end();
                    self.arithmetic();
                    self.end();
                }
                10 | 11 => self.other(),
                12..=15 if depth > 0 => {
                    let (head, n) = (self.label(), self.loops);
                    self.loops += 1;
                    self.line(&format!("mov.u32 %n{n}, 0; {head}:"));
                    if self.rng.one_in(2) {
                        self.arithmetic();
                    } else {
                        self.some(depth - 1);
                    }
                    let times = 1 + self.rng.next(3);
                    self.line(&format!(
                        "add.u32 %n{n}, %n{n}, 1; setp.lt.u32 %q, %n{n}, {times}; @%q bra {head};"
                    ));
                }
                16 | 17 if depth > 0 => {
                    let (els, join) = (self.label(), self.label());
                    self.line(&format!(
                        "and.b32 %r2, %i, 1; setp.eq.u32 %q, %r2, 0; @%q bra {els};"
                    ));
                    self.written.clear();
                    self.some(depth - 1);
                    self.written.clear();
                    self.line(&format!("bra {join}; {els}:"));
                    self.some(depth - 1);
                    self.written.clear();
                    self.line(&format!("{join}:"));
                }
                18 if depth > 0 => {
                    let (a, b, join) = (self.float(), self.float(), self.label());
                    let parted = std::mem::replace(&mut self.parted, true);
                    self.line(&format!("setp.geu.f32 %p, {a}, {b}; @%p bra {join};"));
                    self.written.clear();
                    self.some(depth - 1);
                    self.written.clear();
                    self.line(&format!("{join}:"));
                    self.parted = parted;
                }
                _ => {
                    self.end();
                    self.arithmetic();
                }
            }
        }
    }
}

/// A kernel `k(from, to)`, for blocks of one row or more.
pub(crate) fn program(rng: Rng, rows: bool) -> String {
    let mut made = Made {
        rng,
        text: String::new(),
        labels: 0,
        loops: 0,
        own: 1,
        passing: 1,
        written: Vec::new(),
        integers: false,
        loads: false,
        parted: false,
    };
    // Few values that stay make room for more lanes, many that do not for spills.
    made.own = 1 + made.rng.next(4);
    made.integers = made.rng.one_in(4);
    made.loads = made.rng.one_in(4);
    let most = if made.rng.one_in(3) { 20 } else { 6 };
    made.passing = 1 + made.rng.next(most);
    for i in 0..made.own {
        made.line(&format!("ld.global.f32 %l, [%own+{}];", 4 * i));
        // What comes from memory may be any NaN, and only what is computed is PTX's own.
        made.line(&format!("mul.f32 %f{i}, %l, 0f3fc00000;"));
    }
    made.line("ld.global.f32 %u0, [%from]; ld.global.f32 %u1, [%from+8];");
    made.line("mul.f32 %u2, %u0, 0f40200000; add.f32 %u3, %u1, %u0;");
    made.line("bar.sync 0;");
    made.some(2);
    made.end();
    made.arithmetic();
    made.some(2);
    made.line("bar.sync 0;");
    for i in 0..made.own {
        made.line(&format!("st.global.f32 [%out+{}], %f{i};", 4 * i));
    }
    for i in 0..if made.integers { 2 } else { 0 } {
        made.line(&format!("st.global.b32 [%out+{}], %r{i};", 4 * (OWN + i)));
    }
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n{WANDER}\
         .visible .entry k(.param .u64 from, .param .u64 to)\n{{\n\
         .reg .f32 %l, %f<{OWN}>, %t<{passing}>, %u<4>;\n.reg .b64 %from, %own, %to, %out;\n\
         .reg .b32 %i, %x, %t, %y, %w, %base, %mine, %r<3>, %n<{loops}>;\n.reg .pred %p, %q;\n.reg .f64 %d;\n\
         .reg .b16 %h;\n.shared .align 4 .b8 tile[512];\n\
         ld.param.u64 %from, [from]; ld.param.u64 %to, [to];\n\
         mov.u32 {first}, %tid.x; {row}\n mov.u32 %base, tile; mad.lo.u32 %mine, %x, 4, %base;\n\
         mad.wide.u32 %own, %x, {from_bytes}, %from; mad.wide.u32 %out, %x, {to_bytes}, %to;\n\
         mov.u32 %i, 3; mov.u32 %r0, %x; mov.u32 %r1, %x;\n{body}  ret;\n}}\n",
        first = if rows { "%t" } else { "%x" },
        row = if rows { ROW } else { "" },
        passing = made.passing,
        loops = made.loops + 1,
        from_bytes = 4 * OWN,
        to_bytes = 4 * OUT,
        body = made.text,
    )
}
