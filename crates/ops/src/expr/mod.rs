//! Elementwise expressions: a chain of operations becomes one kernel that reads each input once and
//! writes each output once.
//!
//! ```
//! use mica_ops::{DType, Expr, Ops};
//!
//! # fn main() -> Result<(), mica_ops::Error> {
//! # let device = mica::Device::software()?;
//! # let vgpu = mica::Vgpu::builder().memory(64 << 20).build(&device)?;
//! let ops = Ops::new(&vgpu)?;
//! let (x, y) = (Expr::input(0), Expr::input(1));
//! let a = ops.tensor(&[2, 2], DType::F32, &[1.0, 2.0, 3.0, 4.0])?;
//! let row = ops.tensor(&[2], DType::F32, &[10.0, 20.0])?;
//! // relu(y - x²), the row repeated for each row of a: one kernel.
//! let result = ops.map(&(y - x.clone() * x).relu(), &[&a, &row], &[], DType::F32)?;
//! assert_eq!(ops.values(&result)?, [9.0, 16.0, 1.0, 4.0]);
//! # Ok(())
//! # }
//! ```

mod functions;
mod launch;
mod ptx;
#[cfg(test)]
mod tests;

/// Operations with one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Unary {
    Neg,
    Abs,
    /// `2^x`.
    Exp2,
    /// Logarithm to the base 2.
    Log2,
    Sqrt,
    /// `1 / x`.
    Reciprocal,
    /// `1 / x` within a unit in the last place; 0 where that is below 2^-126.
    NearReciprocal,
}

/// Operations with two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Max,
    Min,
}

/// A value computed from the elements of tensors, in 32-bit floats.
///
/// Made from [`Expr::input`], [`Expr::scalar`] and numbers by `+ - * /` and the methods. A part that is
/// used twice is computed once.
#[derive(Clone, Debug, PartialEq)]
pub struct Expr(pub(crate) Box<Node>);

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    Input(usize),
    Scalar(usize),
    Const(f32),
    Unary(Unary, Expr),
    Binary(Binary, Expr, Expr),
    /// Where the first is more than 0 the second, else (also for NaN) the third.
    Where(Expr, Expr, Expr),
}

impl Expr {
    fn new(node: Node) -> Self {
        Self(Box::new(node))
    }

    /// The element of the input with this number.
    pub fn input(number: usize) -> Self {
        Self::new(Node::Input(number))
    }

    /// The scalar with this number: given with each launch, so that another value needs no other kernel.
    pub fn scalar(number: usize) -> Self {
        Self::new(Node::Scalar(number))
    }

    fn unary(self, operation: Unary) -> Self {
        Self::new(Node::Unary(operation, self))
    }

    fn binary(self, operation: Binary, other: impl Into<Self>) -> Self {
        Self::new(Node::Binary(operation, self, other.into()))
    }

    /// The larger of two values; NaN if either is.
    pub fn max(self, other: impl Into<Self>) -> Self {
        self.binary(Binary::Max, other)
    }

    /// The smaller of two values; NaN if either is.
    pub fn min(self, other: impl Into<Self>) -> Self {
        self.binary(Binary::Min, other)
    }

    /// The absolute value.
    pub fn abs(self) -> Self {
        self.unary(Unary::Abs)
    }

    /// The square root.
    pub fn sqrt(self) -> Self {
        self.unary(Unary::Sqrt)
    }

    /// `1 / x`.
    pub fn reciprocal(self) -> Self {
        self.unary(Unary::Reciprocal)
    }

    /// `e^x`, within a relative 1e-5.
    pub fn exp(self) -> Self {
        (self * std::f32::consts::LOG2_E).unary(Unary::Exp2)
    }

    /// The natural logarithm, within 1e-6 + 1e-6 of the value.
    pub fn ln(self) -> Self {
        self.unary(Unary::Log2) * std::f32::consts::LN_2
    }

    /// `yes` where this is more than 0, else (also where this is NaN) `no`.
    pub fn where_positive(self, yes: impl Into<Self>, no: impl Into<Self>) -> Self {
        Self::new(Node::Where(self, yes.into(), no.into()))
    }
}

impl From<f32> for Expr {
    fn from(value: f32) -> Self {
        Self::new(Node::Const(value))
    }
}

macro_rules! operators {
    ($($name:ident $method:ident),*) => {$(
        impl<T: Into<Expr>> std::ops::$name<T> for Expr {
            type Output = Expr;
            fn $method(self, other: T) -> Expr {
                self.binary(Binary::$name, other)
            }
        }
        impl std::ops::$name<Expr> for f32 {
            type Output = Expr;
            fn $method(self, other: Expr) -> Expr {
                Expr::from(self).binary(Binary::$name, other)
            }
        }
    )*};
}
operators!(Add add, Sub sub, Mul mul, Div div);

impl std::ops::Neg for Expr {
    type Output = Expr;
    fn neg(self) -> Expr {
        self.unary(Unary::Neg)
    }
}
