//! Launches of fused elementwise kernels.

use mica::{Grid, KernelParam};

use super::ptx::{NAME, Shape, kernel};
use super::{Expr, Node};
use crate::{DType, Error, Ops, Result, Tensor};

/// Threads of a block.
const THREADS: u32 = 256;

/// The parameter block: 64-bit words.
struct Words(Vec<u64>);

impl KernelParam for Words {
    fn put(&self, bytes: &mut Vec<u8>) {
        self.0
            .iter()
            .for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
    }
}

/// The shape that all shapes can be repeated to.
fn common_shape(tensors: &[&Tensor]) -> Result<Vec<usize>> {
    let rank = tensors
        .iter()
        .map(|tensor| tensor.rank())
        .max()
        .unwrap_or(0);
    let mut shape = vec![1; rank];
    for tensor in tensors {
        let missing = rank - tensor.rank();
        let before = shape.clone();
        for (axis, size) in tensor.shape().iter().enumerate() {
            let place = &mut shape[missing + axis];
            if *place == 1 {
                *place = *size;
            } else if *size != 1 && *size != *place {
                return Err(Error::Shape {
                    operation: "map",
                    left_name: "an input",
                    left: tensor.shape().to_vec(),
                    right_name: "the inputs before it",
                    right: before,
                    rule: "each axis, counted from the last, is equal or 1",
                });
            }
        }
    }
    Ok(shape)
}

/// Joins neighbouring axes that all inputs walk through without a jump. Returns sizes and strides.
fn joined(shape: &[usize], inputs: &[Tensor]) -> (Vec<usize>, Vec<Vec<usize>>) {
    let mut sizes: Vec<usize> = Vec::new();
    let mut strides: Vec<Vec<usize>> = vec![Vec::new(); inputs.len()];
    for axis in (0..shape.len()).filter(|axis| shape[*axis] != 1) {
        let joins = !sizes.is_empty()
            && (inputs.iter().zip(&strides)).all(|(input, strides)| {
                strides.last() == Some(&(input.strides()[axis] * shape[axis]))
            });
        if let (true, Some(size)) = (joins, sizes.last_mut()) {
            *size *= shape[axis];
            for (input, strides) in inputs.iter().zip(&mut strides) {
                strides.pop();
                strides.push(input.strides()[axis]);
            }
        } else {
            sizes.push(shape[axis]);
            for (input, strides) in inputs.iter().zip(&mut strides) {
                strides.push(input.strides()[axis]);
            }
        }
    }
    (sizes, strides)
}

/// Steps of an expression for each element.
fn steps(expr: &Expr) -> u64 {
    match &*expr.0 {
        Node::Input(_) | Node::Scalar(_) | Node::Const(_) => 0,
        Node::Unary(_, x) => 1 + steps(x),
        Node::Binary(_, x, y) => 1 + steps(x) + steps(y),
        Node::Where(x, y, z) => 1 + steps(x) + steps(y) + steps(z),
    }
}

/// The largest numbers of inputs and scalars that an expression names, plus one.
fn names(expr: &Expr) -> (usize, usize) {
    let both = |x: (usize, usize), y: (usize, usize)| (x.0.max(y.0), x.1.max(y.1));
    match &*expr.0 {
        Node::Input(number) => (number + 1, 0),
        Node::Scalar(number) => (0, number + 1),
        Node::Const(_) => (0, 0),
        Node::Unary(_, x) => names(x),
        Node::Binary(_, x, y) => both(names(x), names(y)),
        Node::Where(x, y, z) => both(names(x), both(names(y), names(z))),
    }
}

impl Ops {
    /// Computes an expression for each element of its inputs, which are repeated where they are
    /// smaller, into a new tensor.
    ///
    /// # Errors
    /// If shapes do not fit each other, or the expression names an input or a scalar that is not there.
    pub fn map(
        &self,
        expr: &Expr,
        inputs: &[&Tensor],
        scalars: &[f32],
        dtype: DType,
    ) -> Result<Tensor> {
        self.map_as("map", expr, inputs, scalars, dtype)
    }

    /// [`Ops::map`] for an operation of another name.
    pub(super) fn map_as(
        &self,
        operation: &'static str,
        expr: &Expr,
        inputs: &[&Tensor],
        scalars: &[f32],
        dtype: DType,
    ) -> Result<Tensor> {
        let out = self.unset(&common_shape(inputs)?, dtype)?;
        self.map_into_as(operation, &[(expr, &out)], inputs, scalars)?;
        Ok(out)
    }

    /// Computes several expressions of the same inputs in one kernel, into dense tensors that are there
    /// already. An output may be one of the inputs, but not another view of an input's memory.
    ///
    /// # Errors
    /// If shapes do not fit each other, or an expression names an input or a scalar that is not there.
    pub fn map_into(
        &self,
        outputs: &[(&Expr, &Tensor)],
        inputs: &[&Tensor],
        scalars: &[f32],
    ) -> Result<()> {
        self.map_into_as("map", outputs, inputs, scalars)
    }

    /// [`Ops::map_into`] for an operation of another name.
    pub(crate) fn map_into_as(
        &self,
        operation: &'static str,
        outputs: &[(&Expr, &Tensor)],
        inputs: &[&Tensor],
        scalars: &[f32],
    ) -> Result<()> {
        let Some((_, first)) = outputs.first() else {
            return Ok(());
        };
        let mut all = (inputs.iter().copied()).chain(outputs.iter().map(|(_, tensor)| *tensor));
        if all.any(|tensor| tensor.dtype() == DType::I4) {
            let message = "elements of i4: cast them to i8 first";
            return Err(Error::argument("map", message));
        }
        for (expr, tensor) in outputs {
            let (wants_inputs, wants_scalars) = names(expr);
            if wants_inputs > inputs.len() || wants_scalars > scalars.len() {
                let message = format!(
                    "the expression names {wants_inputs} inputs and {wants_scalars} scalars; {} and {} were given",
                    inputs.len(),
                    scalars.len()
                );
                return Err(Error::argument("map", message));
            }
            if tensor.shape() != first.shape() || !tensor.is_dense() {
                return Err(Error::Shape {
                    operation: "map",
                    left_name: "an output",
                    left: tensor.shape().to_vec(),
                    right_name: "the first output",
                    right: first.shape().to_vec(),
                    rule: "outputs are dense and have the same shape",
                });
            }
        }
        let shape = first.shape();
        let repeated = inputs.iter().map(|input| input.broadcast(shape));
        let repeated = repeated.collect::<Result<Vec<Tensor>>>()?;
        if first.is_empty() {
            return Ok(());
        }
        let timed = self.begin(operation, inputs);
        for (expr, tensor) in outputs {
            timed.moves(&[tensor]);
            timed.computes(|| steps(expr).saturating_mul(tensor.len() as u64));
        }
        self.launch_fused(outputs, &repeated, scalars)
    }

    fn launch_fused(
        &self,
        outputs: &[(&Expr, &Tensor)],
        inputs: &[Tensor],
        scalars: &[f32],
    ) -> Result<()> {
        let count = outputs[0].1.len();
        let (sizes, strides) = joined(outputs[0].1.shape(), inputs);
        let is_dense = sizes.is_empty() || strides.iter().all(|strides| strides == &[1]);
        if !is_dense && count > u32::MAX as usize {
            let message = format!(
                "{count} elements with strides; at most {} are possible",
                u32::MAX
            );
            return Err(Error::argument("map", message));
        }
        let types: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
        let typed: Vec<_> = (outputs.iter())
            .map(|(expr, tensor)| (*expr, tensor.dtype()))
            .collect();
        let mut words = vec![count as u64];
        words.extend(inputs.iter().map(Tensor::address));
        words.extend(outputs.iter().map(|(_, tensor)| tensor.address()));
        words.extend(scalars.iter().map(|scalar| u64::from(scalar.to_bits())));
        if !is_dense {
            words.extend(sizes.iter().map(|size| *size as u64));
            words.extend(strides.iter().flatten().map(|stride| *stride as u64));
        }
        // Cards read 16 bytes at once; the software GPU makes vectors of neighbouring threads.
        let mut addresses = words[1..=inputs.len() + outputs.len()].iter();
        let wide =
            is_dense && !self.is_software && addresses.all(|address| address.is_multiple_of(16));
        let halves = types.iter().chain(typed.iter().map(|(_, dtype)| dtype));
        let per_thread = match (wide, halves.map(|dtype| dtype.size_bytes()).max()) {
            (false, _) => 1,
            (true, Some(1 | 2)) => 8,
            (true, _) => 4,
        };
        let shape = Shape {
            outputs: &typed,
            inputs: &types,
            scalars: scalars.len(),
            axes: if is_dense { 0 } else { sizes.len() },
            per_thread,
            is_card: !self.is_software && self.capability.0 >= 8,
        };
        let whole = count / per_thread * per_thread;
        self.launch_part(&shape, &words, 0, whole)?;
        let rest = Shape {
            per_thread: 1,
            ..shape
        };
        self.launch_part(&rest, &words, whole, count - whole)
    }

    /// Launches elements `first..first + count`; `first` is 0 for strided ones.
    fn launch_part(&self, shape: &Shape, words: &[u64], first: usize, count: usize) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let mut words = words.to_vec();
        words[0] = count as u64;
        let types = (shape.inputs.iter()).chain(shape.outputs.iter().map(|(_, dtype)| dtype));
        for (word, dtype) in words[1..].iter_mut().zip(types) {
            *word += (first * dtype.size_bytes()) as u64;
        }
        let key = format!("{shape:?}");
        let kernel = self.kernels.made(&key, NAME, || kernel(shape))?;
        let grid = Grid::covering(count.div_ceil(shape.per_thread), THREADS);
        Ok(self.stream.launch(&kernel, grid, (Words(words),))?)
    }
}
