//! What vector code does in its own ways, against the interpreter and the scalar version: predicates by
//! their bounds, turns in grid-stride loops, bytes as vectors, plain updates of shared memory, and checks
//! of many addresses at once.

mod common;

use common::{Device, Params, compiled};
use mica_kernel::{BlockOutcome, Dim3, Fault, FaultKind};

const PTX: &str = include_str!("vector.ptx");

fn devices() -> Vec<(u32, Device)> {
    [1, 4, 8, 16]
        .into_iter()
        .map(|lanes| (lanes, compiled(PTX, lanes)))
        .collect()
}

/// Runs a kernel of `(in, out, x, y)` everywhere and gives the interpreter's output, after comparing.
fn everywhere(kernel: &str, grid: u32, block: u32, input: &[u32], x: u32, y: u32) -> Vec<u32> {
    let run = |mut d: Device| {
        let from = d.upload(input);
        let to = d.upload(&vec![0; input.len()]);
        let params = Params::default().u64(from).u64(to).u32(x).u32(y);
        d.run(kernel, grid, block, params);
        d.read(to, input.len())
    };
    let want = run(Device::interpreter(PTX));
    for (lanes, d) in devices() {
        assert_eq!(run(d), want, "{kernel}({x:#x}, {y:#x}) with {lanes} lanes");
    }
    want
}

fn noise(count: usize) -> Vec<u32> {
    let mut x = 0x9e37_79b9u32;
    (0..count)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            x
        })
        .collect()
}

#[test]
fn predicates_are_right_where_lanes_wrap() {
    let input = vec![0; 256];
    for base in [
        0,
        5,
        0x7fff_fff0,
        0x7fff_fffb,
        0x8000_0000,
        0xffff_ffd0,
        0xffff_fffd,
    ] {
        for limit in [0, 7, 33, 0x7fff_fffe, 0x8000_0003, 0xffff_fff0] {
            let out = everywhere("bounds", 1, 96, &input, base, limit);
            let expect = |t: u32| {
                let i = base.wrapping_add(t);
                let mut bits = 0;
                bits |= u32::from((i as i32) < limit as i32);
                bits |= u32::from(i < limit) << 1;
                bits |= u32::from((limit as i32) <= i as i32) << 2;
                bits |= u32::from((i as i32) >= 3 && i < limit) << 3;
                bits |= u32::from((i as i32) < 3 || i >= limit) << 4;
                bits
            };
            let want: Vec<u32> = (0..96).map(expect).collect();
            assert_eq!(out[..96], want[..], "{base:#x} {limit:#x}");
        }
    }
}

#[test]
fn streaming_loops_see_every_element_once() {
    let input: Vec<u32> = noise(6000).iter().map(|x| x & 0xffff).collect();
    for n in [0, 1, 95, 288, 1000, 5003] {
        let out = everywhere("stream", 3, 96, &input, n, 3 * 96);
        let all: u32 = out[..3 * 96].iter().sum();
        assert_eq!(all, input[..n as usize].iter().sum(), "{n} elements");
    }
}

#[test]
fn bytes_and_halves_keep_their_signs() {
    let out = everywhere("narrow", 1, 64, &noise(512), 0, 0);
    assert!(out.iter().any(|x| *x != 0));
}

#[test]
fn updates_of_shared_memory_lose_nothing() {
    everywhere("updates", 1, 128, &noise(512), 0, 0);
}

#[test]
fn roots_are_as_good_as_ptx_asks() {
    let special = [
        0.0,
        -0.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        -1.0,
        1.0,
        4.0,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        f32::from_bits(0x7f_ffff),
        f32::MAX,
    ];
    let mut input: Vec<u32> = special.iter().map(|x: &f32| x.to_bits()).collect();
    input.extend(noise(500));
    let run = |mut d: Device| {
        let from = d.upload(&input);
        let to = d.upload(&[0; 512]);
        let params = Params::default().u64(from).u64(to).u32(0).u32(0);
        d.run("roots", 1, 512, params);
        d.read(to, 512)
    };
    let scalar = run(compiled(PTX, 1));
    for lanes in [4, 8, 16] {
        // A thread's result must not depend on who runs with it.
        assert_eq!(run(compiled(PTX, lanes)), scalar, "{lanes} lanes");
    }
    for (bits, got) in input.iter().zip(&scalar) {
        let x = f64::from(f32::from_bits(*bits));
        let (got, want) = (f64::from(f32::from_bits(*got)), 1.0 / x.sqrt());
        let error = ((got - want) / want).abs();
        let same = (got.is_nan() && want.is_nan()) || got == want;
        assert!(same || error <= 2f64.powf(-22.9), "rsqrt({x:e}) = {got:e}");
    }
    assert_eq!(scalar[0], 0x7f80_0000);
    assert_eq!(scalar[1], 0xff80_0000);
    assert_eq!(scalar[2], 0);
}

fn fault(mut d: Device, kernel: &str, x: u32, y: u32) -> Fault {
    let from = d.upload(&[0; 64]);
    let to = d.upload(&[0; 64]);
    let params = Params::default().u64(from).u64(to).u32(x).u32(y);
    let one = Dim3 { x: 1, y: 1, z: 1 };
    let block = Dim3 { x: 32, y: 1, z: 1 };
    let (outcome, fault) = d.launch(kernel, one, block, 0, params);
    assert_eq!(outcome, BlockOutcome::Faulted);
    fault
}

#[test]
fn one_bad_address_among_many_is_found() {
    // Lane `x` adds `y` to an address that is good otherwise.
    for (kernel, space) in [("gather", "global"), ("pick", "shared")] {
        for (lane, by, kind) in [
            (5, 1 << 30, FaultKind::IllegalAddress),
            (31, 0x8000_0000, FaultKind::IllegalAddress),
            (18, 2, FaultKind::MisalignedAddress),
        ] {
            let want = fault(Device::interpreter(PTX), kernel, lane, by);
            assert_eq!(want.kind, kind as u32);
            assert_eq!(want.thread.x, lane);
            for (lanes, d) in devices() {
                let got = fault(d, kernel, lane, by);
                let told = (got.kind, got.thread.x, got.ptx_line, got.bytes);
                let expected = (want.kind, want.thread.x, want.ptx_line, want.bytes);
                assert_eq!(told, expected, "{space}, lane {lane}, {lanes} lanes");
                if space == "shared" {
                    assert_eq!(got.address, want.address);
                }
            }
        }
    }
}
