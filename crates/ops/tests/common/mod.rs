//! What the tests share: a virtual GPU, numbers that look random and are always the same, and the
//! comparison with a reference in f64.
#![allow(dead_code, reason = "each test uses some of it")]

use mica::{Device, SoftwareOptions, Vgpu};
use mica_ops::{DType, Ops, Tensor};

pub(crate) fn ops() -> Ops {
    Ops::new(&vgpu()).unwrap()
}

pub(crate) fn vgpu() -> Vgpu {
    let options = SoftwareOptions {
        memory_bytes: Some(1 << 30),
        ..SoftwareOptions::default()
    };
    let device = Device::software_with(options).unwrap();
    Vgpu::builder().memory(512 << 20).build(&device).unwrap()
}

/// SplitMix64.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Between -1 and 1.
    pub(crate) fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }

    /// A tensor of such values (small integers for integer types), and the values it has after rounding.
    pub(crate) fn tensor(
        &mut self,
        ops: &Ops,
        shape: &[usize],
        dtype: DType,
    ) -> (Tensor, Vec<f64>) {
        let count = shape.iter().product();
        let mut values = self.floats(count);
        if !dtype.is_float() {
            values.iter_mut().for_each(|v| *v = (*v * 127.0).round());
        }
        let tensor = ops.tensor(shape, dtype, &values).unwrap();
        let values = ops.values(&tensor).unwrap();
        (tensor, values.into_iter().map(f64::from).collect())
    }
}

/// The relative size of the last bit of a type.
pub(crate) fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 1.2e-7,
        DType::F16 => 9.8e-4,
        DType::BF16 => 7.8e-3,
        DType::I4 | DType::I8 | DType::I32 => 0.0,
    }
}

/// Compares with a reference: `|got - want| ≤ relative · |want| + absolute`; NaN equals NaN.
pub(crate) fn assert_close(what: &str, got: &[f32], want: &[f64], relative: f64, absolute: f64) {
    assert_eq!(got.len(), want.len(), "{what}: number of elements");
    for (at, (got, want)) in got.iter().zip(want).enumerate() {
        let got = f64::from(*got);
        let same = got == *want || (got.is_nan() && want.is_nan());
        let near = (got - want).abs() <= relative * want.abs() + absolute;
        assert!(
            same || near,
            "{what}: element {at} is {got}, the reference {want}"
        );
    }
}

/// A matrix product in f64: `a` is m × k, `b` is k × n, in row order.
pub(crate) fn product(a: &[f64], b: &[f64], m: usize, n: usize, k: usize) -> Vec<f64> {
    let mut c = vec![0.0; m * n];
    for i in 0..m {
        for p in 0..k {
            for j in 0..n {
                c[i * n + j] += a[i * k + p] * b[p * n + j];
            }
        }
    }
    c
}

pub(crate) fn transposed(a: &[f64], rows: usize, cols: usize) -> Vec<f64> {
    (0..cols * rows)
        .map(|at| a[at % rows * cols + at / rows])
        .collect()
}
