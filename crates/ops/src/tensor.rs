//! Tensors: memory of a virtual GPU, seen through a type, a shape and strides.

use std::sync::Arc;

use crate::storage::Storage;
use crate::{DType, Error, Result};

/// An array on a virtual GPU, or a view of one. Clones and views share the memory.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub(crate) storage: Arc<Storage>,
    dtype: DType,
    shape: Vec<usize>,
    /// In elements; 0 where one element stands for all along the axis.
    strides: Vec<usize>,
    /// Of the first element, in elements.
    offset: usize,
}

/// Strides of an array without gaps, the last axis contiguous.
pub(crate) fn dense_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis].max(1);
    }
    strides
}

/// Number of elements of a shape. Refuses shapes whose elements or strides could not be counted.
pub(crate) fn count(operation: &'static str, shape: &[usize]) -> Result<usize> {
    // An axis of size 0 leaves no elements, but strides are still products of the other axes.
    let mut axes = shape.iter().map(|axis| (*axis).max(1));
    let product = axes.try_fold(1_usize, |count, axis| count.checked_mul(axis));
    match product.filter(|count| *count < 1 << 48) {
        Some(_) if shape.contains(&0) => Ok(0),
        Some(count) => Ok(count),
        None => {
            let message = format!("{shape:?} has too many elements");
            Err(Error::argument(operation, message))
        }
    }
}

impl Tensor {
    pub(crate) fn dense(storage: Storage, dtype: DType, shape: &[usize]) -> Self {
        Self {
            storage: Arc::new(storage),
            dtype,
            shape: shape.to_vec(),
            strides: dense_strides(shape),
            offset: 0,
        }
    }

    /// A tensor in memory of somebody else.
    pub(crate) fn strided(
        storage: Storage,
        dtype: DType,
        shape: &[usize],
        strides: &[usize],
    ) -> Self {
        Self {
            strides: strides.to_vec(),
            ..Self::dense(storage, dtype, shape)
        }
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Its strides, in elements.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// Its number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Its number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of its first element; of the byte that has it, where two share one.
    pub fn address(&self) -> u64 {
        let units = self.offset / self.dtype.per_unit();
        self.storage.address() + (units * self.dtype.size_bytes()) as u64
    }

    /// Elements from the address to the first element: 1 for one in the upper half of a byte.
    pub(crate) fn first(&self) -> usize {
        self.offset % self.dtype.per_unit()
    }

    /// Whether its elements follow each other without gaps in the order of the axes, from the beginning of a byte.
    pub fn is_dense(&self) -> bool {
        let dense = dense_strides(&self.shape);
        let mut axes = self.shape.iter().zip(&self.strides).zip(&dense);
        let follow = axes.all(|((size, stride), dense)| *size == 1 || stride == dense);
        self.is_empty() || (follow && self.first() == 0)
    }

    fn with(&self, shape: Vec<usize>, strides: Vec<usize>, offset: usize) -> Self {
        Self {
            storage: Arc::clone(&self.storage),
            dtype: self.dtype,
            shape,
            strides,
            offset,
        }
    }

    fn check_axis(&self, operation: &'static str, axis: usize) -> Result<()> {
        if axis < self.rank() {
            return Ok(());
        }
        let message = format!("axis {axis} of a tensor of shape {:?}", self.shape);
        Err(Error::argument(operation, message))
    }

    /// A view with two axes exchanged.
    pub fn swap(&self, first: usize, second: usize) -> Result<Self> {
        self.check_axis("swap", first)?;
        self.check_axis("swap", second)?;
        let mut view = self.clone();
        view.shape.swap(first, second);
        view.strides.swap(first, second);
        Ok(view)
    }

    /// A view of a matrix, or of each matrix of a stack, with rows and columns exchanged.
    pub fn t(&self) -> Result<Self> {
        if self.rank() < 2 {
            let message = format!("a tensor of shape {:?} has no rows and columns", self.shape);
            return Err(Error::argument("t", message));
        }
        self.swap(self.rank() - 2, self.rank() - 1)
    }

    /// A view of elements `start..start + len` along an axis.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Result<Self> {
        self.step(axis, start, len, 1)
    }

    /// A view of every `step`th element along an axis, `len` of them from `start` on.
    pub fn step(&self, axis: usize, start: usize, len: usize, step: usize) -> Result<Self> {
        self.check_axis("narrow", axis)?;
        let size = self.shape[axis];
        let last = len.checked_sub(1).and_then(|last| last.checked_mul(step));
        let fits = match last {
            None => len == 0 && start <= size,
            Some(last) => start.checked_add(last).is_some_and(|last| last < size),
        };
        if !fits || step == 0 {
            return Err(Error::argument(
                "narrow",
                format!(
                    "{len} elements from {start} on in steps of {step} along axis {axis} of {:?}",
                    self.shape
                ),
            ));
        }
        let mut view = self.clone();
        view.shape[axis] = len;
        view.offset += start * view.strides[axis];
        if len > 1 {
            view.strides[axis] *= step;
        }
        Ok(view)
    }

    /// A view with another shape of as many elements.
    ///
    /// # Errors
    /// If the elements are not dense: copy the tensor first.
    pub fn reshape(&self, shape: &[usize]) -> Result<Self> {
        if count("reshape", shape)? != self.len() {
            return Err(Error::Shape {
                operation: "reshape",
                left_name: "the tensor",
                left: self.shape.clone(),
                right_name: "the new shape",
                right: shape.to_vec(),
                rule: "both need as many elements",
            });
        }
        if !self.is_dense() {
            return Err(Error::argument(
                "reshape",
                format!(
                    "shape {:?} with strides {:?} is not dense: copy it first",
                    self.shape, self.strides
                ),
            ));
        }
        Ok(self.with(shape.to_vec(), dense_strides(shape), self.offset))
    }

    /// A view of a larger shape: axes of size 1, and axes that are missing in front, are repeated.
    pub fn broadcast(&self, shape: &[usize]) -> Result<Self> {
        count("broadcast", shape)?;
        let mut strides = vec![0; shape.len()];
        let missing = shape.len().checked_sub(self.rank());
        let mut fits = missing.is_some();
        if let Some(missing) = missing {
            for (axis, size) in self.shape.iter().enumerate() {
                if *size == shape[missing + axis] {
                    strides[missing + axis] = self.strides[axis];
                } else if *size != 1 {
                    fits = false;
                }
            }
        }
        if !fits {
            return Err(Error::Shape {
                operation: "broadcast",
                left_name: "the tensor",
                left: self.shape.clone(),
                right_name: "the shape",
                right: shape.to_vec(),
                rule: "each axis, counted from the last, is equal or 1",
            });
        }
        Ok(self.with(shape.to_vec(), strides, self.offset))
    }
}
