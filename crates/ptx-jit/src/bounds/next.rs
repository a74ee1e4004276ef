//! How far the memory that the next block accesses is from this block's.
//!
//! The distance is the derivative of the access's address by the block's index, as a sum of products of what is the
//! same in the whole launch. It serves to prefetch, so it may be wrong: that loops begin anew in each block is assumed, and
//! that nothing wraps.

use super::{BoundsProof, Id, Node, Width};
use crate::unit::Place;

/// What is the same in the whole launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Factor {
    /// A kernel parameter: its offset, bits, and whether it is signed.
    Param(u64, u32, bool),
    BlockExtent(usize),
    GridExtent(usize),
}

/// A product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Product {
    pub(crate) number: i64,
    pub(crate) factors: Vec<Factor>,
}

/// Longer sums and products are not worth their computation.
const MOST: usize = 4;
/// Nodes that are looked at for one access.
const MOST_NODES: u32 = 1000;

type Sum = Vec<Product>;

/// What was found on the way.
#[derive(Default)]
struct Way {
    nodes: u32,
    /// A block's accesses lie in several rows.
    has_rows: bool,
}

impl Way {
    fn step(&mut self) -> Option<()> {
        self.nodes += 1;
        (self.nodes <= MOST_NODES).then_some(())
    }
}

impl BoundsProof {
    /// The distance to what the next block accesses at `place`, as a sum; `None` where it is not known, or nothing, or
    /// where a block's accesses lie in one row, which the processor foresees.
    pub(crate) fn to_next_block(&self, place: Place) -> Option<Vec<Product>> {
        let address = *self.places.get(&place)?;
        let mut way = Way::default();
        let sum = self.grows(address, &mut way)?;
        (way.has_rows && !sum.is_empty()).then_some(sum)
    }

    /// How much a node grows from block to block.
    fn grows(&self, id: Id, way: &mut Way) -> Option<Sum> {
        way.step()?;
        match *self.nodes.get(id as usize)? {
            Node::Thread(dim) => {
                way.has_rows |= dim > 0;
                Some(Vec::new())
            }
            Node::Const(_) | Node::Param { .. } => Some(Vec::new()),
            Node::BlockExtent(_) | Node::GridExtent(_) => Some(Vec::new()),
            Node::Block(0) => Some(number(1)),
            Node::Block(_) => Some(Vec::new()),
            Node::Add(a, b) => added(self.grows(a, way)?, self.grows(b, way)?, 1),
            Node::Sub(a, b) => added(self.grows(a, way)?, self.grows(b, way)?, -1),
            Node::Mul(a, b) => {
                let (by_a, by_b) = (self.grows(a, way)?, self.grows(b, way)?);
                let first = self.scaled(by_a, b, way)?;
                added(first, self.scaled(by_b, a, way)?, 1)
            }
            Node::Read(a, _) | Node::Known(a, ..) => self.grows(a, way),
            Node::Counter { first, step, .. } => {
                // Rounds over the whole grid: the next block is far behind.
                let step = self.fixed(step, way)?;
                let over_grid = |f: &Factor| matches!(f, Factor::GridExtent(_));
                let strides = step.iter().any(|p| p.factors.iter().any(over_grid));
                way.has_rows = true;
                (!strides).then(|| self.grows(first, way)).flatten()
            }
        }
    }

    fn scaled(&self, sum: Sum, by: Id, way: &mut Way) -> Option<Sum> {
        match sum.is_empty() {
            true => Some(sum),
            false => multiplied(&sum, &self.fixed(by, way)?),
        }
    }

    /// A node that is the same in the whole launch.
    fn fixed(&self, id: Id, way: &mut Way) -> Option<Sum> {
        way.step()?;
        let factor = |f| {
            let factors = vec![f];
            Some(vec![Product { number: 1, factors }])
        };
        match *self.nodes.get(id as usize)? {
            Node::Const(x) => Some(number(i64::try_from(x).ok()?)),
            Node::Param { offset, width } => {
                let Width { bits, signed } = width;
                factor(Factor::Param(offset, bits, signed))
            }
            Node::BlockExtent(dim) => factor(Factor::BlockExtent(dim)),
            Node::GridExtent(dim) => factor(Factor::GridExtent(dim)),
            Node::Add(a, b) => added(self.fixed(a, way)?, self.fixed(b, way)?, 1),
            Node::Sub(a, b) => added(self.fixed(a, way)?, self.fixed(b, way)?, -1),
            Node::Mul(a, b) => multiplied(&self.fixed(a, way)?, &self.fixed(b, way)?),
            Node::Read(a, _) | Node::Known(a, ..) => self.fixed(a, way),
            Node::Thread(_) | Node::Block(_) | Node::Counter { .. } => None,
        }
    }
}

fn number(number: i64) -> Sum {
    let factors = Vec::new();
    match number {
        0 => Vec::new(),
        _ => vec![Product { number, factors }],
    }
}

fn added(mut a: Sum, b: Sum, sign: i64) -> Option<Sum> {
    for product in b {
        let number = product.number.checked_mul(sign)?;
        match a.iter_mut().find(|p| p.factors == product.factors) {
            Some(same) => same.number = same.number.checked_add(number)?,
            None => a.push(Product { number, ..product }),
        }
    }
    a.retain(|p| p.number != 0);
    (a.len() <= MOST).then_some(a)
}

fn multiplied(a: &Sum, b: &Sum) -> Option<Sum> {
    let mut made = Vec::new();
    for x in a {
        for y in b {
            let factors = [&x.factors[..], &y.factors[..]].concat();
            if factors.len() > MOST {
                return None;
            }
            let number = x.number.checked_mul(y.number)?;
            made = added(made, vec![Product { number, factors }], 1)?;
        }
    }
    Some(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use mica_ptx::ast::Op;
    use mica_ptx_ops::layout::ModuleLayout;

    /// What is found of the one global load of a kernel with parameters `a`, a pointer, and `n`.
    fn of(body: &str) -> Option<Vec<Product>> {
        let text = format!(
            ".version 7.0\n.target sm_80\n.address_size 64\n\
             .visible .entry k(.param .u64 a, .param .u32 n)\n{{\n\
             .reg .b32 %r<20>;\n.reg .b64 %rd<20>;\n.reg .f32 %f<4>;\n.reg .pred %p<4>;\n\
             ld.param.u64 %rd1, [a];\nld.param.u32 %r1, [n];\n{body}\nret;\n}}\n"
        );
        let module = mica_ptx::parse(text.as_bytes()).expect("parses");
        let layout = ModuleLayout::new(&module).expect("a layout");
        let plan = Plan::build(&module, &layout, layout.kernel_functions[0]).expect("a plan");
        let is_load = |p: &&Place| {
            let op = &plan.unit.inst(&module, **p).op;
            matches!(op, Op::Ld { .. })
        };
        let mut loads: Vec<_> = plan.proof.places.keys().filter(is_load).collect();
        let (load, None) = (
            loads.pop().expect("an address that is followed"),
            loads.pop(),
        ) else {
            panic!("several loads");
        };
        plan.proof.to_next_block(*load)
    }

    /// A loop over a row, from `first` on.
    fn row(first: &str, step: &str) -> String {
        format!(
            "{first}\n{step}\n\
             loop:\nmul.wide.s32 %rd3, %r5, 4;\nadd.s64 %rd4, %rd1, %rd3;\nadd.s64 %rd5, %rd4, %rd2;\n\
             ld.global.f32 %f1, [%rd5];\nst.global.f32 [%rd1], %f1;\n\
             add.s32 %r5, %r5, %r6;\nsetp.lt.s32 %p1, %r5, %r1;\n@%p1 bra loop;"
        )
    }

    #[test]
    fn a_block_for_each_row_is_a_row_ahead() {
        let first = "mov.u32 %r2, %ctaid.x;\nmul.wide.s32 %rd2, %r2, %r1;\nshl.b64 %rd2, %rd2, 2;\nmov.u32 %r5, %tid.x;";
        let first = first.replace("shl.b64 %rd2, %rd2", "shl.b64 %rd6, %rd2");
        let found = of(&row(&first, "mov.u32 %r6, %ntid.x;").replace("%rd4, %rd2", "%rd4, %rd6"));
        let n = Factor::Param(8, 32, true);
        let (number, factors) = (4, vec![n]);
        assert_eq!(found, Some(vec![Product { number, factors }]));
    }

    #[test]
    fn rounds_over_the_whole_grid_have_no_next_block() {
        let first = "mov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %ntid.x;\nmov.u32 %r4, %tid.x;\n\
                     mad.lo.s32 %r5, %r2, %r3, %r4;\nmov.u64 %rd2, 0;";
        let step = "mov.u32 %r7, %nctaid.x;\nmul.lo.s32 %r6, %r7, %r3;";
        assert_eq!(of(&row(first, step)), None);
    }

    #[test]
    fn one_row_is_left_to_the_processor() {
        let found = of(
            "mov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %ntid.x;\nmov.u32 %r4, %tid.x;\n\
                        mad.lo.s32 %r5, %r2, %r3, %r4;\nmul.wide.s32 %rd2, %r5, 4;\n\
                        add.s64 %rd3, %rd1, %rd2;\nld.global.f32 %f1, [%rd3];\nst.global.f32 [%rd1], %f1;",
        );
        assert_eq!(found, None);
    }
}
