//! What training in mixed precision needs: parameters in f32 with copies in a 16-bit type, a scale of
//! the loss that keeps gradients representable, and the AdamW step.

use crate::rows::check_shapes;
use crate::{DType, Error, Expr, Ops, Reduction, Result, Tensor};

/// A parameter: its f32 values, the copy that products use, and AdamW's moments.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// The values.
    pub master: Tensor,
    /// The values in the type that is computed in; the same tensor where that is f32.
    pub value: Tensor,
    first: Tensor,
    second: Tensor,
}

/// AdamW's settings.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// Step size.
    pub rate: f32,
    /// Decay of the mean of gradients.
    pub beta1: f32,
    /// Decay of the mean of their squares.
    pub beta2: f32,
    /// Added to the root of the mean of squares.
    pub epsilon: f32,
    /// Decay of the parameters.
    pub decay: f32,
}

impl Default for AdamW {
    fn default() -> Self {
        Self {
            rate: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            decay: 0.01,
        }
    }
}

/// A factor of the loss that doubles while gradients stay finite and halves when one does not.
#[derive(Clone, Copy, Debug)]
pub struct LossScale {
    /// The factor now.
    pub factor: f32,
    /// Whether the factor may double: it began above 1.
    grows: bool,
    /// Steps without an infinite gradient since the factor changed.
    good: u32,
}

/// Steps without an infinite gradient after which the factor doubles.
const GROWTH_STEPS: u32 = 200;
/// The factor does not grow past this.
const LARGEST_FACTOR: f32 = 65536.0;

impl LossScale {
    /// Begins with a factor; 1 for bf16 and f32, which need none.
    pub fn new(factor: f32) -> Self {
        Self {
            factor,
            grows: factor > 1.0,
            good: 0,
        }
    }

    /// Records whether all gradients of a step were finite. Returns whether the step is to be taken.
    pub fn update(&mut self, all_finite: bool) -> bool {
        if !all_finite {
            self.factor = (self.factor / 2.0).max(1.0);
            self.good = 0;
            return false;
        }
        self.good += 1;
        if self.good >= GROWTH_STEPS {
            self.good = 0;
            if self.grows && self.factor < LARGEST_FACTOR {
                self.factor = (self.factor * 2.0).min(LARGEST_FACTOR);
            }
        }
        true
    }
}

impl Ops {
    /// A parameter with normally distributed values of a deviation, computed with in `dtype`.
    ///
    /// # Errors
    /// If the virtual GPU has no memory left.
    pub fn parameter(
        &self,
        shape: &[usize],
        dtype: DType,
        seed: (u64, u64),
        (mean, deviation): (f32, f32),
    ) -> Result<Parameter> {
        let master = self.normal(shape, DType::F32, seed, (mean, deviation))?;
        let value = match dtype {
            DType::F32 => master.clone(),
            dtype => self.cast(&master, dtype)?,
        };
        Ok(Parameter {
            value,
            first: self.zeros(shape, DType::F32)?,
            second: self.zeros(shape, DType::F32)?,
            master,
        })
    }

    /// Whether all elements of all tensors are finite; waits for them.
    ///
    /// # Errors
    /// What went wrong in the stream.
    pub fn all_finite(&self, tensors: &[&Tensor]) -> Result<bool> {
        for tensor in tensors {
            // 0 · x is 0 for a finite x, NaN otherwise.
            let zero = self.map(&(Expr::input(0) * 0.0), &[tensor], &[], DType::F32)?;
            let sum = self.values(&self.reduce_all(&zero, Reduction::Sum)?)?;
            if sum.iter().any(|sum| *sum != 0.0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// One AdamW step, number `step` from 1 on, with a gradient that is `gradient_scale` times too large;
    /// one kernel that also renews the copy.
    ///
    /// # Errors
    /// If the gradient does not have the parameter's shape, or the step is 0.
    pub fn adamw(
        &self,
        parameter: &Parameter,
        gradient: &Tensor,
        settings: &AdamW,
        step: u32,
        gradient_scale: f32,
    ) -> Result<()> {
        check_shapes(
            "adamw",
            ["the gradient", "the parameter"],
            gradient,
            &parameter.master,
        )?;
        if step == 0 {
            return Err(Error::argument(
                "adamw",
                "step 0: steps are counted from 1 on",
            ));
        }
        let [p, m, v, g] = [0, 1, 2, 3].map(Expr::input);
        let scalar = Expr::scalar;
        let g = g * scalar(0);
        let m = m * scalar(1) + g.clone() * (1.0 - scalar(1));
        let v = v * scalar(2) + g.clone() * g * (1.0 - scalar(2));
        let change = m.clone() * scalar(3) / ((v.clone() * scalar(4)).sqrt() + scalar(5));
        let p = p * scalar(7) - change * scalar(6);
        let (beta1, beta2) = (settings.beta1, settings.beta2);
        let bias = |beta: f32| 1.0 / (1.0 - beta.powi(step as i32));
        let scalars = [
            1.0 / gradient_scale,
            beta1,
            beta2,
            bias(beta1),
            bias(beta2),
            settings.epsilon,
            settings.rate,
            1.0 - settings.rate * settings.decay,
        ];
        let inputs = [
            &parameter.master,
            &parameter.first,
            &parameter.second,
            gradient,
        ];
        let mut outputs = vec![
            (&p, &parameter.master),
            (&m, &parameter.first),
            (&v, &parameter.second),
        ];
        if parameter.value.dtype() != DType::F32 {
            outputs.push((&p, &parameter.value));
        }
        self.map_into_as("adamw", &outputs, &inputs, &scalars)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loss_scale_halves_after_an_infinite_gradient_and_grows_back() {
        let mut scale = LossScale::new(1024.0);
        assert!(!scale.update(false));
        assert_eq!(scale.factor, 512.0);
        for _ in 0..GROWTH_STEPS {
            assert!(scale.update(true));
        }
        assert_eq!(scale.factor, 1024.0);
        (0..20).for_each(|_| assert!(!scale.update(false)));
        assert_eq!(scale.factor, 1.0);
        (0..GROWTH_STEPS).for_each(|_| assert!(scale.update(true)));
        assert_eq!(scale.factor, 2.0, "a factor of 1 grows back");
        let mut none = LossScale::new(1.0);
        (0..GROWTH_STEPS).for_each(|_| assert!(none.update(true)));
        assert_eq!(none.factor, 1.0, "bf16 and f32 need no factor");
    }

    #[test]
    fn a_step_of_adamw_is_the_reference_step() {
        let device = mica::Device::software().unwrap();
        let vgpu = mica::Vgpu::builder()
            .memory(16 << 20)
            .build(&device)
            .unwrap();
        let ops = Ops::new(&vgpu).unwrap();
        let parameter = ops
            .parameter(&[5], DType::BF16, (1, 2), (0.0, 1.0))
            .unwrap();
        let before = ops.values(&parameter.master).unwrap();
        let gradient = ops
            .tensor(&[5], DType::F32, &[2.0, -4.0, 0.0, 8.0, 1.0])
            .unwrap();
        let settings = AdamW::default();
        ops.adamw(&parameter, &gradient, &settings, 1, 2.0).unwrap();
        let after = ops.values(&parameter.master).unwrap();
        for (at, sign) in [1.0, -1.0, 0.0, 1.0, 1.0].into_iter().enumerate() {
            // The first step is the rate, whatever the gradient's size.
            let want = before[at] * (1.0 - 1e-5) - 1e-3 * sign;
            assert!(
                (after[at] - want).abs() < 1e-6,
                "{at}: {} {want}",
                after[at]
            );
        }
        let copy = ops.values(&parameter.value).unwrap();
        assert!(
            copy.iter()
                .zip(&after)
                .all(|(copy, p)| (copy - p).abs() <= p.abs() / 128.0)
        );
        assert!(ops.all_finite(&[&gradient]).unwrap());
        let bad = ops.tensor(&[2], DType::F32, &[1.0, f32::INFINITY]).unwrap();
        assert!(!ops.all_finite(&[&gradient, &bad]).unwrap());
    }
}
