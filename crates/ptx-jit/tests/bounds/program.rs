//! Makes random kernels: sums, products, conversions, branches, loops, and loads at what comes of them.
#![allow(unreachable_pub, reason = "a module of a test")]

use super::common::Rng;
use std::fmt::Write;

/// Numbers at which something wraps or ends.
pub const WORDS: &[u32] = &[
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    15,
    16,
    31,
    32,
    33,
    63,
    64,
    65,
    127,
    255,
    1 << 16,
    1 << 30,
    0x3fff_ffff,
    0x7fff_fff0,
    0x7fff_ffff,
    1 << 31,
    0xc000_0000,
    0xffff_ff00,
    0xffff_fff0,
    0xffff_fffe,
    0xffff_ffff,
];

/// What is declared and set at some place of the text.
#[derive(Clone, Default)]
struct Scope {
    words: Vec<String>,
    wides: Vec<String>,
}

struct Generator {
    rng: Rng,
    text: String,
    scope: Scope,
    next: usize,
    accesses: usize,
}

impl Generator {
    fn line(&mut self, s: &str) {
        let _ = writeln!(self.text, "\t{s}");
    }

    fn name(&mut self, prefix: &str) -> String {
        self.next += 1;
        format!("%{prefix}{}", self.next)
    }

    /// A register of 32 bits, later ones more often.
    fn reg(&mut self) -> String {
        let n = self.scope.words.len();
        let back = self.rng.next(n).min(self.rng.next(n));
        self.scope.words[n - 1 - back].clone()
    }

    fn word(&mut self) -> String {
        if self.rng.one_in(3) {
            return match self.rng.next(3) {
                0 => format!("{}", self.rng.pick(WORDS)),
                1 => format!("{}", self.rng.next(9)),
                _ => format!("-{}", self.rng.next(9)),
            };
        }
        self.reg()
    }

    fn wide(&mut self) -> String {
        let n = self.scope.wides.len();
        if n == 0 || self.rng.one_in(4) {
            return format!(
                "{}",
                self.rng
                    .pick(&[0i64, 1, 4, -4, 64, 1 << 31, -(1 << 31), 1 << 32])
            );
        }
        let at = self.rng.next(n);
        self.scope.wides[at].clone()
    }

    fn sign(&mut self) -> char {
        self.rng.pick(&['s', 'u'])
    }

    fn arithmetic(&mut self) {
        let d = self.name("r");
        self.compute(&d);
        self.scope.words.push(d);
    }

    fn compute(&mut self, d: &str) {
        let (a, b, c, s) = (self.reg(), self.word(), self.word(), self.sign());
        let n = self.rng.pick(&[0, 1, 2, 3, 5, 16, 30, 31]);
        let w = self.wide();
        let line = match self.rng.next(14) {
            0..=2 => format!("add.{s}32 {d}, {a}, {b};"),
            3 | 4 => format!("sub.{s}32 {d}, {a}, {b};"),
            5 => format!("mul.lo.{s}32 {d}, {a}, {b};"),
            6 | 7 => format!("mad.lo.{s}32 {d}, {a}, {b}, {c};"),
            8 => format!("shl.b32 {d}, {a}, {n};"),
            9 => format!("mov.u32 {d}, {b};"),
            10 if w.starts_with('%') => format!("cvt.u32.u64 {d}, {w};"),
            11 => format!("and.b32 {d}, {a}, {b};"),
            12 => format!("shr.{s}32 {d}, {a}, {n};"),
            _ => format!("min.{s}32 {d}, {a}, {b};"),
        };
        self.line(&line);
    }

    fn arithmetic64(&mut self) {
        let d = self.name("rd");
        let (a, b, w, s) = (self.reg(), self.word(), self.wide(), self.sign());
        let line = match self.rng.next(8) {
            0 => format!("cvt.{}64.{s}32 {d}, {a};", self.sign()),
            1 | 2 => format!("mul.wide.{s}32 {d}, {a}, {b};"),
            3 => format!("mad.wide.{s}32 {d}, {a}, {b}, {w};"),
            4 if w.starts_with('%') => format!("add.s64 {d}, {w}, {};", self.wide()),
            5 if w.starts_with('%') => format!("sub.s64 {d}, {w}, {};", self.wide()),
            6 if w.starts_with('%') => {
                format!("shl.b64 {d}, {w}, {};", self.rng.pick(&[1, 2, 31, 33]))
            }
            7 if w.starts_with('%') => format!("mul.lo.s64 {d}, {w}, {};", self.wide()),
            _ => format!("cvt.{s}64.{s}32 {d}, {a};"),
        };
        self.line(&line);
        self.scope.wides.push(d);
    }

    /// A predicate: of words, of wides, or of two others.
    fn predicate(&mut self, depth: usize) -> String {
        let p = self.name("p");
        let cmp = self
            .rng
            .pick(&["lt", "lt", "le", "gt", "ge", "ge", "eq", "ne"]);
        let (a, b, w, s) = (self.reg(), self.word(), self.wide(), self.sign());
        if depth > 0 && self.rng.one_in(4) {
            let (x, y) = (self.predicate(0), self.predicate(0));
            let op = self.rng.pick(&["and", "or", "xor"]);
            self.line(&format!("{op}.pred {p}, {x}, {y};"));
        } else if w.starts_with('%') && self.rng.one_in(4) {
            let b = self.wide();
            self.line(&format!("setp.{cmp}.{s}64 {p}, {w}, {b};"));
        } else if self.rng.one_in(6) {
            self.line(&format!("setp.{cmp}.{s}32 {p}, {b}, {a};"));
        } else {
            self.line(&format!("setp.{cmp}.{s}32 {p}, {a}, {b};"));
        }
        if self.rng.one_in(16) {
            let q = self.name("p");
            self.line(&format!("setp.{cmp}.{s}32 {p}|{q}, {a}, {b};"));
        }
        p
    }

    fn not(&mut self) -> &'static str {
        self.rng.pick(&["", "!"])
    }

    fn block(&mut self, depth: usize) {
        let outside = self.scope.clone();
        for _ in 0..1 + self.rng.next(4) {
            self.step(depth + 1);
        }
        self.scope = outside;
    }

    fn branch(&mut self, depth: usize) {
        let (p, not) = (self.predicate(1), self.not());
        let label = self.name("S").replace('%', "$");
        self.line(&format!("@{not}{p} bra {label};"));
        self.block(depth);
        let _ = writeln!(self.text, "{label}:");
    }

    fn repeat(&mut self, depth: usize) {
        let outside = self.scope.clone();
        let (c, fuel, p, q) = (
            self.name("r"),
            self.name("r"),
            self.name("p"),
            self.name("p"),
        );
        let label = self.name("L").replace('%', "$");
        let first = self.word();
        let (step, bound) = match self.rng.next(4) {
            0 => (self.word(), self.word()),
            1 => ("1".to_owned(), self.word()),
            _ => (format!("{}", self.rng.pick(&[1, 2, 4, 32])), self.reg()),
        };
        self.line(&format!("mov.u32 {c}, {first};"));
        self.line(&format!("mov.u32 {fuel}, 0;"));
        let _ = writeln!(self.text, "{label}:");
        self.line(&format!("add.u32 {fuel}, {fuel}, 1;"));
        self.line(&format!("setp.gt.u32 {q}, {fuel}, 70;"));
        self.line(&format!("@{q} bra $END;"));
        self.scope.words.push(c.clone());
        self.scope.words.push(c.clone());
        if depth < 2 {
            self.block(depth);
        }
        self.access();
        let (s, t) = (self.sign(), self.sign());
        let early = self.rng.one_in(10);
        let cmp = self.rng.pick(&["lt", "lt", "lt", "lt", "le", "ne", "gt"]);
        let test = format!("setp.{cmp}.{t}32 {p}, {c}, {bound};");
        if early {
            self.line(&test);
        }
        self.line(&format!("add.{s}32 {c}, {c}, {step};"));
        if self.rng.one_in(6) {
            self.access();
        }
        if !early {
            self.line(&test);
        }
        self.line(&format!("@{p} bra {label};"));
        self.scope = outside;
    }

    fn access(&mut self) {
        self.accesses += 1;
        let (w, at) = (self.name("rd"), self.name("rd"));
        let (a, s) = (self.reg(), self.sign());
        let scale: u32 = self.rng.pick(&[1, 2, 4, 4, 4, 8, 16]);
        if self.rng.one_in(4) && !self.scope.wides.is_empty() {
            let x = self.wide();
            self.line(&format!("mov.u64 {w}, {x};"));
        } else if self.rng.one_in(3) {
            let x = self.name("rd");
            self.line(&format!("cvt.{s}64.{s}32 {x}, {a};"));
            self.line(&format!("shl.b64 {w}, {x}, {};", scale.trailing_zeros()));
        } else {
            self.line(&format!("mul.wide.{s}32 {w}, {a}, {scale};"));
        }
        let op = self.rng.pick(&["add", "add", "add", "sub"]);
        self.line(&format!("{op}.s64 {at}, %from, {w};"));
        let offset = match self.rng.next(6) {
            0..=2 => 0,
            3 => 4 * (self.rng.next(9) as i64 - 4),
            4 => self.rng.next(64) as i64 - 32,
            _ => self
                .rng
                .pick(&[128, -128, 1024, -1024, 0x7fff_fffc, -0x8000_0000]),
        };
        let (kind, regs): (&str, &[&str]) = self.rng.pick(&[
            ("u8", &["%t0"][..]),
            ("u16", &["%t0"]),
            ("u32", &["%t0"]),
            ("u32", &["%t0"]),
            ("u32", &["%t0"]),
            ("v2.u32", &["%t0", "%t1"]),
            ("v4.u32", &["%t0", "%t1", "%t2", "%t3"]),
        ]);
        let list = match regs {
            [one] => (*one).to_owned(),
            more => format!("{{{}}}", more.join(", ")),
        };
        self.line(&format!("ld.global.{kind} {list}, [{at}+{offset}];"));
        for r in regs {
            self.line(&format!("mad.lo.u32 %acc, %acc, 31, {r};"));
        }
    }

    /// What real kernels do, one step from the edge: an index, a guard or a loop, an access.
    fn plain(&mut self) {
        let d = self.name("r");
        let line = match self.rng.next(5) {
            0 => format!("mov.u32 {d}, %tx;"),
            1 => format!("add.s32 {d}, %i, %k;"),
            2 => format!("sub.s32 {d}, %i, %k;"),
            3 => format!("add.s32 {d}, %i, {};", self.rng.next(9) as i32 - 4),
            _ => format!("mov.u32 {d}, %i;"),
        };
        self.line(&line);
        self.scope.words = vec![d.clone()];
        for _ in 0..self.rng.next(3) {
            let (p, s) = (self.name("p"), self.sign());
            let than = self.rng.pick(&["%n", "%n", "%k", "0", "32"]);
            let cmp = self.rng.pick(&["lt", "le", "gt", "ge", "ge", "ge"]);
            let (a, b) = if self.rng.one_in(4) {
                (than, &*d)
            } else {
                (&*d, than)
            };
            self.line(&format!("setp.{cmp}.{s}32 {p}, {a}, {b};"));
            let not = self.rng.pick(&["", "", "!"]);
            self.line(&format!("@{not}{p} bra $END;"));
        }
        if self.rng.one_in(2) {
            return self.element(&d);
        }
        let (p, q, fuel) = (self.name("p"), self.name("p"), self.name("r"));
        let step = self.rng.pick(&["1", "2", "32", "%nx", "%k", "-1"]);
        let bound = self.rng.pick(&["%n", "%n", "%n", "%k", "64"]);
        let (s, cmp) = (self.sign(), self.rng.pick(&["lt", "lt", "lt", "le", "ne"]));
        let late = self.rng.one_in(6);
        self.line(&format!("mov.u32 {fuel}, 0;"));
        self.text.push_str("$AGAIN:\n");
        self.line(&format!("add.u32 {fuel}, {fuel}, 1;"));
        self.line(&format!("setp.gt.u32 {q}, {fuel}, 70;"));
        self.line(&format!("@{q} bra $END;"));
        if !late {
            self.element(&d);
        }
        self.line(&format!("add.s32 {d}, {d}, {step};"));
        if late {
            self.element(&d);
        }
        self.line(&format!("setp.{cmp}.{s}32 {p}, {d}, {bound};"));
        self.line(&format!("@{p} bra $AGAIN;"));
    }

    /// Loads `from[index]`.
    fn element(&mut self, index: &str) {
        self.accesses += 1;
        let (w, at, s) = (self.name("rd"), self.name("rd"), self.sign());
        self.line(&format!("mul.wide.{s}32 {w}, {index}, 4;"));
        self.line(&format!("add.s64 {at}, %from, {w};"));
        self.line(&format!("ld.global.u32 %t0, [{at}];"));
        self.line("mad.lo.u32 %acc, %acc, 31, %t0;");
    }

    fn step(&mut self, depth: usize) {
        match self.rng.next(16) {
            0..=4 => self.arithmetic(),
            5 | 6 => self.arithmetic64(),
            7 | 8 => {
                let (p, not) = (self.predicate(1), self.not());
                self.line(&format!("@{not}{p} bra $END;"));
            }
            9 | 10 if depth < 3 => self.branch(depth),
            11 if depth < 3 => self.repeat(depth),
            12 => {
                // Another value, perhaps for some threads only.
                let n = self.scope.words.len();
                let at = self.rng.next(n);
                let d = self.scope.words[at].clone();
                if self.rng.one_in(2) {
                    let (p, not) = (self.predicate(0), self.not());
                    let (a, b) = (self.reg(), self.word());
                    self.line(&format!("@{not}{p} add.s32 {d}, {a}, {b};"));
                } else {
                    self.compute(&d);
                }
            }
            13 if depth == 0 => self.line("bar.sync 0;"),
            _ => self.access(),
        }
    }
}

/// A kernel with accesses.
pub fn program(seed: u64) -> String {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (0..8).for_each(|_| {
        rng.next(2);
    });
    let names = ["%tx", "%ty", "%bx", "%nx", "%n", "%k", "%i"];
    let mut g = Generator {
        rng,
        text: String::new(),
        scope: Scope {
            words: names.map(str::to_owned).to_vec(),
            wides: Vec::new(),
        },
        next: 0,
        accesses: 0,
    };
    if g.rng.one_in(2) {
        g.plain();
    } else {
        for _ in 0..2 + g.rng.next(8) {
            g.step(0);
        }
    }
    if g.accesses == 0 {
        g.access();
    }
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64
.visible .entry k(.param .u64 from, .param .u64 to, .param .u32 n, .param .u32 k)
{{
	.reg .pred %p<{0}>;
	.reg .b32 %r<{0}>;
	.reg .b64 %rd<{0}>;
	.reg .b32 %tx, %ty, %bx, %nx, %n, %k, %i, %row, %own, %acc, %t<4>;
	.reg .b64 %from, %to, %out, %ownw;
	ld.param.u64 %from, [from];
	ld.param.u64 %to, [to];
	ld.param.u32 %n, [n];
	ld.param.u32 %k, [k];
	mov.u32 %tx, %tid.x;
	mov.u32 %ty, %tid.y;
	mov.u32 %bx, %ctaid.x;
	mov.u32 %nx, %ntid.x;
	mad.lo.s32 %i, %bx, %nx, %tx;
	mad.lo.s32 %row, %ty, %nx, %tx;
	mad.lo.s32 %own, %bx, 64, %row;
	mul.wide.u32 %ownw, %own, 4;
	add.s64 %out, %to, %ownw;
	mov.u32 %acc, 1;
{1}$END:
	st.global.u32 [%out], %acc;
	ret;
}}
",
        g.next + 1,
        g.text
    )
}
