//! Elementwise expressions.

use pyo3::prelude::*;

/// What is computed for each element; any length of it becomes one kernel.
#[pyclass(module = "mica", frozen, skip_from_py_object)]
#[derive(Clone)]
pub(crate) struct Expr(pub(crate) mica_ops::Expr);

/// An expression or a number.
#[derive(FromPyObject)]
pub(crate) enum Value<'py> {
    Expr(PyRef<'py, Expr>),
    Number(f32),
}

impl Value<'_> {
    fn expr(&self) -> mica_ops::Expr {
        match self {
            Self::Expr(expr) => expr.0.clone(),
            Self::Number(number) => mica_ops::Expr::from(*number),
        }
    }
}

#[pymethods]
impl Expr {
    /// The element of the input with this number.
    #[new]
    fn new(number: usize) -> Self {
        Self(mica_ops::Expr::input(number))
    }

    fn maximum(&self, other: Value<'_>) -> Self {
        Self(self.0.clone().max(other.expr()))
    }

    fn minimum(&self, other: Value<'_>) -> Self {
        Self(self.0.clone().min(other.expr()))
    }

    /// `yes` where this is more than 0, else `no`.
    fn where_positive(&self, yes: Value<'_>, no: Value<'_>) -> Self {
        Self(self.0.clone().where_positive(yes.expr(), no.expr()))
    }

    fn __add__(&self, other: Value<'_>) -> Self {
        Self(self.0.clone() + other.expr())
    }

    fn __radd__(&self, other: Value<'_>) -> Self {
        Self(other.expr() + self.0.clone())
    }

    fn __sub__(&self, other: Value<'_>) -> Self {
        Self(self.0.clone() - other.expr())
    }

    fn __rsub__(&self, other: Value<'_>) -> Self {
        Self(other.expr() - self.0.clone())
    }

    fn __mul__(&self, other: Value<'_>) -> Self {
        Self(self.0.clone() * other.expr())
    }

    fn __rmul__(&self, other: Value<'_>) -> Self {
        Self(other.expr() * self.0.clone())
    }

    fn __truediv__(&self, other: Value<'_>) -> Self {
        Self(self.0.clone() / other.expr())
    }

    fn __rtruediv__(&self, other: Value<'_>) -> Self {
        Self(other.expr() / self.0.clone())
    }

    fn __neg__(&self) -> Self {
        Self(-self.0.clone())
    }

    fn __abs__(&self) -> Self {
        Self(self.0.clone().abs())
    }

    fn sqrt(&self) -> Self {
        Self(self.0.clone().sqrt())
    }

    fn exp(&self) -> Self {
        Self(self.0.clone().exp())
    }

    fn relu(&self) -> Self {
        Self(self.0.clone().relu())
    }

    fn sigmoid(&self) -> Self {
        Self(self.0.clone().sigmoid())
    }

    fn tanh(&self) -> Self {
        Self(self.0.clone().tanh())
    }

    fn erf(&self) -> Self {
        Self(self.0.clone().erf())
    }

    fn gelu(&self) -> Self {
        Self(self.0.clone().gelu())
    }

    fn silu(&self) -> Self {
        Self(self.0.clone().silu())
    }
}
