//! burn on its CUDA backend: every result is compared with plain Rust.

use burn::backend::{Autodiff, Cuda};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData, activation};

/// Numbers that look random and are the same everywhere.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 * 2.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn tensor<B: Backend>(values: &[f32], shape: [usize; 2], device: &B::Device) -> Tensor<B, 2> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), device)
}

fn values<B: Backend>(tensor: Tensor<B, 2>) -> Vec<f32> {
    tensor.into_data().to_vec::<f32>().expect("floats")
}

#[track_caller]
fn same(what: &str, got: &[f32], wanted: &[f32], tolerance: f32) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    for (index, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        assert!(
            (got - wanted).abs() <= tolerance * wanted.abs().max(1.0),
            "{what}: element {index} is {got}, not {wanted}"
        );
    }
    println!("{what}");
}

fn product(a: &[f32], b: &[f32], [m, k, n]: [usize; 3]) -> Vec<f32> {
    let cell = |at: usize| (0..k).map(|p| a[at / n * k + p] * b[p * n + at % n]).sum();
    (0..m * n).map(cell).collect()
}

fn elementwise<B: Backend>(device: &B::Device) {
    let x = numbers(1000, 1);
    let t = tensor::<B>(&x, [10, 100], device);
    let chain = (t.clone() * 2.0 + 1.0).exp().log() - t.clone();
    let wanted: Vec<f32> = x.iter().map(|x| x + 1.0).collect();
    same(
        "a chain of elementwise operations",
        &values(chain),
        &wanted,
        1e-4,
    );
    let wanted: Vec<f32> = x.iter().map(|x| x.max(0.0)).collect();
    same("ReLU", &values(activation::relu(t.clone())), &wanted, 0.0);
    let wanted: Vec<f32> = x.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect();
    same("sigmoid", &values(activation::sigmoid(t)), &wanted, 1e-5);
}

fn reductions<B: Backend>(device: &B::Device) {
    let x = numbers(37 * 53, 2);
    let t = tensor::<B>(&x, [37, 53], device);
    let rows = |f: &dyn Fn(&[f32]) -> f32| x.chunks(53).map(f).collect::<Vec<_>>();
    let sums = rows(&|row| row.iter().sum());
    same("sums of rows", &values(t.clone().sum_dim(1)), &sums, 1e-4);
    let most = rows(&|row| row.iter().copied().fold(f32::MIN, f32::max));
    same("largest of rows", &values(t.clone().max_dim(1)), &most, 0.0);
    let softmax: Vec<f32> = x
        .chunks(53)
        .flat_map(|row| {
            let total: f32 = row.iter().map(|x| x.exp()).sum();
            row.iter().map(move |x| x.exp() / total)
        })
        .collect();
    same(
        "softmax",
        &values(activation::softmax(t, 1)),
        &softmax,
        1e-5,
    );
}

fn products<B: Backend>(device: &B::Device) {
    for [m, k, n] in [[1, 1, 1], [5, 7, 3], [64, 64, 64], [33, 100, 129]] {
        let (a, b) = (numbers(m * k, 3), numbers(k * n, 4));
        let c = tensor::<B>(&a, [m, k], device).matmul(tensor(&b, [k, n], device));
        let wanted = product(&a, &b, [m, k, n]);
        // The library may multiply in TF32.
        same(&format!("product {m}x{k}x{n}"), &values(c), &wanted, 2e-2);
    }
    let a = numbers(12 * 20, 5);
    let turned = tensor::<B>(&a, [12, 20], device).transpose();
    let wanted: Vec<f32> = (0..240).map(|at| a[at % 12 * 20 + at / 12]).collect();
    same("transposition", &values(turned), &wanted, 0.0);
}

/// Gradient descent finds the line that the points were made of.
fn training<B: AutodiffBackend>(device: &B::Device) {
    let x = numbers(256, 6);
    let y: Vec<f32> = x.iter().map(|x| 3.0 * x - 0.5).collect();
    let (x, y) = (
        tensor::<B>(&x, [256, 1], device),
        tensor::<B>(&y, [256, 1], device),
    );
    let mut weight = tensor::<B>(&[0.0], [1, 1], device).require_grad();
    let mut bias = tensor::<B>(&[0.0], [1, 1], device).require_grad();
    let mut losses = Vec::new();
    for _ in 0..200 {
        let error = x.clone().matmul(weight.clone()) + bias.clone() - y.clone();
        let loss = (error.clone() * error).mean();
        losses.push(loss.clone().into_data().to_vec::<f32>().expect("a float")[0]);
        let gradients = loss.backward();
        let step = |parameter: Tensor<B, 2>| {
            let gradient = values(parameter.grad(&gradients).expect("a gradient"));
            let moved = values(parameter)[0] - 0.5 * gradient[0];
            tensor::<B>(&[moved], [1, 1], device).require_grad()
        };
        (weight, bias) = (step(weight), step(bias));
    }
    assert!(
        losses[199] < losses[0] / 1000.0,
        "{} {}",
        losses[0],
        losses[199]
    );
    same("gradient descent: slope", &values(weight), &[3.0], 1e-2);
    same("gradient descent: offset", &values(bias), &[-0.5], 1e-2);
}

fn main() {
    let device = Default::default();
    elementwise::<Cuda>(&device);
    reductions::<Cuda>(&device);
    products::<Cuda>(&device);
    training::<Autodiff<Cuda>>(&device);
    println!("ok");
}
