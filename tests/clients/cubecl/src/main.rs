//! What a program written with cubecl does: kernels in Rust, generic over the element, with vectors, shared memory, planes and
//! atomics, compiled when they are first launched; results compared with the same loops on the processor.

use cubecl::cuda::{CudaDevice, CudaRuntime};
use cubecl::prelude::*;

type Client = ComputeClient<CudaRuntime>;

fn values(count: usize, seed: u32) -> Vec<f32> {
    let next = |x: &u32| Some(x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    let numbers =
        std::iter::successors(Some(seed), next).map(|x| (x >> 8) as f32 / 16_777_216.0 - 0.5);
    numbers.take(count).collect()
}

fn close(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (at, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(
            (got - want).abs() <= tolerance * (1.0 + want.abs()),
            "{what} {at}: {got} is not {want}"
        );
    }
    println!("{what}");
}

#[cube(launch)]
fn silu<F: Float>(input: &Array<F>, output: &mut Array<F>) {
    if ABSOLUTE_POS < input.len() {
        let x = input[ABSOLUTE_POS];
        output[ABSOLUTE_POS] = x / (F::new(1.0) + F::exp(F::new(0.0) - x));
    }
}

fn elementwise(client: &Client) {
    let count = 10_007;
    let x = values(count, 1);
    let input = client.create_from_slice(f32::as_bytes(&x));
    let output = client.empty(4 * count);
    silu::launch::<f32, CudaRuntime>(
        client,
        CubeCount::Static(count.div_ceil(256) as u32, 1, 1),
        CubeDim::new_1d(256),
        unsafe { ArrayArg::from_raw_parts(input, count) },
        unsafe { ArrayArg::from_raw_parts(output.clone(), count) },
    );
    let got = client.read_one_unchecked(output);
    let want: Vec<f32> = x.iter().map(|x| x / (1.0 + (-x).exp())).collect();
    close("elementwise", f32::from_bytes(&got), &want, 1e-6);
}

/// A tile of 16 x 16 for each cube, through shared memory.
#[cube(launch)]
fn product<F: Float>(a: &Array<F>, b: &Array<F>, c: &mut Array<F>, #[comptime] size: usize) {
    let mut left = SharedMemory::<F>::new(256usize);
    let mut right = SharedMemory::<F>::new(256usize);
    let x = UNIT_POS_X as usize;
    let y = UNIT_POS_Y as usize;
    let row = CUBE_POS_Y as usize * 16 + y;
    let col = CUBE_POS_X as usize * 16 + x;
    let mut sum = F::new(0.0);
    for tile in 0..size / 16 {
        left[y * 16 + x] = a[row * size + tile * 16 + x];
        right[y * 16 + x] = b[(tile * 16 + y) * size + col];
        sync_cube();
        for k in 0..16 {
            sum += left[y * 16 + k] * right[k * 16 + x];
        }
        sync_cube();
    }
    c[row * size + col] = sum;
}

fn multiply(client: &Client) {
    let size = 64;
    let (a, b) = (values(size * size, 2), values(size * size, 3));
    let [left, right] = [&a, &b].map(|x| client.create_from_slice(f32::as_bytes(x)));
    let to = client.empty(4 * size * size);
    let tiles = (size / 16) as u32;
    product::launch::<f32, CudaRuntime>(
        client,
        CubeCount::Static(tiles, tiles, 1),
        CubeDim::new_2d(16, 16),
        unsafe { ArrayArg::from_raw_parts(left, size * size) },
        unsafe { ArrayArg::from_raw_parts(right, size * size) },
        unsafe { ArrayArg::from_raw_parts(to.clone(), size * size) },
        size,
    );
    let got = client.read_one_unchecked(to);
    let want: Vec<f32> = (0..size * size)
        .map(|at| {
            (0..size)
                .map(|k| a[at / size * size + k] * b[k * size + at % size])
                .sum()
        })
        .collect();
    close(
        "product through shared memory",
        f32::from_bytes(&got),
        &want,
        1e-5,
    );
}

#[cube(launch)]
fn sums<F: Float>(input: &Array<F>, output: &mut Array<F>) {
    let sum = plane_sum(input[ABSOLUTE_POS]);
    if UNIT_POS_X == 0 {
        output[CUBE_POS_X as usize] = sum;
    }
}

fn planes(client: &Client) {
    let x = values(32 * 40, 4);
    let input = client.create_from_slice(f32::as_bytes(&x));
    let output = client.empty(4 * 40);
    sums::launch::<f32, CudaRuntime>(
        client,
        CubeCount::Static(40, 1, 1),
        CubeDim::new_1d(32),
        unsafe { ArrayArg::from_raw_parts(input, x.len()) },
        unsafe { ArrayArg::from_raw_parts(output.clone(), 40) },
    );
    let got = client.read_one_unchecked(output);
    let want: Vec<f32> = x.chunks(32).map(|x| x.iter().sum()).collect();
    close("sums over planes", f32::from_bytes(&got), &want, 1e-5);
}

#[cube(launch)]
fn histogram(input: &Array<u32>, counts: &mut Array<Atomic<u32>>) {
    if ABSOLUTE_POS < input.len() {
        counts[input[ABSOLUTE_POS] as usize].fetch_add(1u32);
    }
}

fn atomics(client: &Client) {
    let input: Vec<u32> = values(20_000, 5)
        .iter()
        .map(|x| ((x + 0.5) * 64.0) as u32)
        .collect();
    let from = client.create_from_slice(u32::as_bytes(&input));
    let to = client.create_from_slice(u32::as_bytes(&[0; 64]));
    histogram::launch::<CudaRuntime>(
        client,
        CubeCount::Static(input.len().div_ceil(128) as u32, 1, 1),
        CubeDim::new_1d(128),
        unsafe { ArrayArg::from_raw_parts(from, input.len()) },
        unsafe { ArrayArg::from_raw_parts(to.clone(), 64) },
    );
    let got = client.read_one_unchecked(to);
    let mut want = [0_u32; 64];
    input.iter().for_each(|x| want[*x as usize] += 1);
    assert_eq!(u32::from_bytes(&got), want);
    println!("atomics");
}

fn main() {
    let client = CudaRuntime::client(&CudaDevice::default());
    elementwise(&client);
    multiply(&client);
    planes(&client);
    atomics(&client);
    println!("ok");
}
