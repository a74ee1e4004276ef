//! Activations and their derivatives as expressions, and the tensor operations made of them.

use super::{Expr, Unary};
use crate::rows::check_shapes;
use crate::{Activation, DType, Ops, Result, Tensor};

impl Expr {
    fn near_reciprocal(self) -> Self {
        self.unary(Unary::NearReciprocal)
    }

    /// `max(x, 0)`; NaN stays NaN.
    pub fn relu(self) -> Self {
        self.max(0.0)
    }

    /// `1 / (1 + e^-x)`.
    pub fn sigmoid(self) -> Self {
        (1.0 + (-self).exp()).near_reciprocal()
    }

    /// The hyperbolic tangent, within 1e-6.
    pub fn tanh(self) -> Self {
        // Past 15 it is 1; the clamp keeps e^2x finite.
        let clamped = self.max(-15.0).min(15.0);
        1.0 - 2.0 * (1.0 + (clamped * 2.0).exp()).near_reciprocal()
    }

    /// The error function, within 2e-6: formula 7.1.26 of Abramowitz and Stegun.
    pub fn erf(self) -> Self {
        let x = self.clone().abs();
        let t = (1.0 + 0.327_591_1 * x.clone()).near_reciprocal();
        let mut sum = Expr::from(1.061_405_4);
        for factor in [-1.453_152, 1.421_413_7, -0.284_496_73, 0.254_829_6] {
            sum = sum * t.clone() + factor;
        }
        let positive = 1.0 - sum * t * (-(x.clone() * x)).exp();
        self.where_positive(positive.clone(), -positive)
    }

    /// `x Φ(x)`, the exact form.
    pub fn gelu(self) -> Self {
        self.clone() * self.normal_below()
    }

    /// Φ(x), the part of the normal distribution below x.
    fn normal_below(self) -> Self {
        0.5 + 0.5 * (self * std::f32::consts::FRAC_1_SQRT_2).erf()
    }

    /// `x / (1 + e^-x)`.
    pub fn silu(self) -> Self {
        self.clone() * self.sigmoid()
    }

    /// An activation of this value.
    pub fn activate(self, activation: Activation) -> Self {
        match activation {
            Activation::None => self,
            Activation::Relu => self.relu(),
            Activation::Gelu => self.gelu(),
            Activation::Silu => self.silu(),
        }
    }

    /// The derivative of an activation at this value.
    pub fn activate_derivative(self, activation: Activation) -> Self {
        match activation {
            Activation::None => Expr::from(1.0),
            Activation::Relu => self.where_positive(1.0, 0.0),
            Activation::Gelu => {
                let density = (self.clone() * self.clone() * -0.5).exp() * 0.398_942_3;
                self.clone().normal_below() + self * density
            }
            Activation::Silu => {
                let sigmoid = self.clone().sigmoid();
                sigmoid.clone() * (1.0 + self * (1.0 - sigmoid))
            }
        }
    }
}

impl Ops {
    /// The sum of two tensors, either repeated along axes where the other is larger.
    ///
    /// # Errors
    /// If the shapes do not fit; both are in the message. The result has the first one's type.
    pub fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let sum = Expr::input(0) + Expr::input(1);
        self.map_as("add", &sum, &[a, b], &[], a.dtype())
    }

    /// The product of two tensors, element by element; as [`Ops::add`].
    ///
    /// # Errors
    /// If the shapes do not fit; both are in the message.
    pub fn mul(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let product = Expr::input(0) * Expr::input(1);
        self.map_as("mul", &product, &[a, b], &[], a.dtype())
    }

    /// A tensor of another type with the same values, rounded to the nearest even; a number that an integer type does not have
    /// becomes the nearest one that it has.
    ///
    /// # Errors
    /// If the virtual GPU has no memory left.
    pub fn cast(&self, tensor: &Tensor, dtype: DType) -> Result<Tensor> {
        if [tensor.dtype(), dtype].contains(&DType::I4) {
            return self.cast_int4(tensor, dtype);
        }
        self.map_as("cast", &Expr::input(0), &[tensor], &[], dtype)
    }

    /// An activation of each element.
    ///
    /// # Errors
    /// If the virtual GPU has no memory left.
    pub fn activate(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        let expr = Expr::input(0).activate(activation);
        self.map_as("activate", &expr, &[x], &[], x.dtype())
    }

    /// The gradient of an activation's input: `dy · act'(x)`.
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn activate_backward(
        &self,
        x: &Tensor,
        dy: &Tensor,
        activation: Activation,
    ) -> Result<Tensor> {
        check_shapes("activate_backward", ["x", "dy"], x, dy)?;
        let expr = Expr::input(1) * Expr::input(0).activate_derivative(activation);
        self.map_as("activate_backward", &expr, &[x, dy], &[], x.dtype())
    }
}
