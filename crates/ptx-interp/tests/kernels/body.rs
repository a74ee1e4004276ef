// Tests of kernels that nvcc made from `ptx/kernels.cu`. Included by the interpreter's tests, and by the
// compiler's once for each number of lanes; whoever includes it says what `device()` runs `PTX` on.

use crate::common::{Device, Params, dim};
use mica_kernel::{BlockOutcome, Dim3, FaultKind, TextureView, stop};
use mica_ptx_ops::float::{BF16, F16, from_f64};
use std::sync::atomic::Ordering;

const PTX: &str = include_str!("../ptx/kernels.ptx");

fn params() -> Params {
    Params::default()
}

#[test]
fn vector_addition_guards_its_tail() {
    let mut d = device();
    let a: Vec<f32> = (0..100).map(|i| i as f32).collect();
    let (pa, pb) = (d.upload_f32(&a), d.upload_f32(&vec![0.5; 100]));
    let pc = d.upload_f32(&[-1.0; 128]);
    d.run("vadd", 4, 32, params().u64(pa).u64(pb).u64(pc).u32(100));
    let c = d.read_f32(pc, 128);
    assert!((0..100).all(|i| c[i] == i as f32 + 0.5));
    assert!(c[100..].iter().all(|&x| x == -1.0));
}

#[test]
fn block_reduction_uses_shared_memory_and_atomics() {
    let mut d = device();
    let input: Vec<u32> = (0..1000).collect();
    let (pi, po) = (d.upload(&input), d.upload(&[0]));
    d.run("reduce", 4, 256, params().u64(pi).u64(po).u32(1000));
    assert_eq!(d.read(po, 1), [499_500]);
}

#[test]
fn warp_intrinsics() {
    let mut d = device();
    let input: Vec<u32> = (0..32).map(|i| i * 5 + 2).collect();
    let (pi, po) = (d.upload(&input), d.upload(&[0; 128]));
    d.run("warp_sums", 1, 32, params().u64(pi).u64(po));
    let out = d.read(po, 128);
    let odd = (0..32)
        .filter(|&i| input[i] % 2 == 1)
        .fold(0u32, |m, i| m | 1 << i);
    for lane in 0..32 {
        let same = (0..32)
            .filter(|&i| input[i] % 3 == input[lane] % 3)
            .fold(0u32, |m, i| m | 1 << i);
        let sum: u32 = input.iter().sum();
        assert_eq!(out[4 * lane..4 * lane + 4], [sum, odd, same, 157]);
    }
}

#[test]
fn halves_of_a_warp_may_diverge() {
    let mut d = device();
    let po = d.upload(&[0; 32]);
    d.run("divergent", 1, 32, params().u64(po));
    let out = d.read(po, 32);
    let upper = |lane: u32| lane + (0..lane).sum::<u32>();
    for lane in 0..32u32 {
        let expected = match lane {
            0..=15 => 6,
            31 => upper(31),
            lane => upper(lane + 1),
        };
        assert_eq!(out[lane as usize], expected + 32, "lane {lane}");
    }
}

#[test]
fn coalesced_groups_see_who_is_there() {
    let mut d = device();
    let (pc, po) = (d.upload(&[100]), d.upload(&[0; 64]));
    d.run("aggregated", 1, 64, params().u64(pc).u64(po));
    assert_eq!(d.read(pc, 1), [122]);
    let mut ranks: Vec<u32> = d
        .read(po, 64)
        .into_iter()
        .filter(|&x| x != u32::MAX)
        .collect();
    ranks.sort_unstable();
    assert_eq!(ranks, (100..122).collect::<Vec<u32>>());
}

#[test]
fn recursion_and_structs_pass_through_the_stack() {
    let mut d = device();
    let po = d.upload(&[0; 16]);
    d.run("recursion", 1, 12, params().u64(po));
    assert_eq!(d.read(po, 12), [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89]);
    let mut p = params();
    for i in 1..=6 {
        p = p.u32(i);
    }
    p = p.u64(10.5f64.to_bits());
    let p = p.u64(po);
    d.run("structs", 1, 6, p);
    assert_eq!(d.read(po, 6), [23, 25, 27, 29, 31, 33]);
}

#[test]
fn endless_recursion_is_a_fault_not_a_crash() {
    let mut d = device();
    let po = d.upload(&[0; 32]);
    d.local_stride = 256;
    let (outcome, fault) = d.launch("recursion", dim(1), dim(32), 0, params().u64(po));
    assert_eq!(outcome, BlockOutcome::Faulted);
    assert_eq!(fault.kind, FaultKind::LaunchFailed as u32);
    assert_ne!(fault.ptx_line, 0);
}

#[test]
fn function_pointers_in_initialized_tables() {
    let mut d = device();
    let po = d.upload(&[0; 8]);
    d.run("pointers", 1, 8, params().u64(po));
    assert_eq!(d.read(po, 8), [1, 1, 3, 9, 5, 25, 7, 49]);
}

#[test]
fn local_arrays_are_private() {
    let mut d = device();
    let index: Vec<u32> = (0..40).map(|i| i * 7).collect();
    let (pi, po) = (d.upload(&index), d.upload(&[0; 40]));
    d.run("local_array", 1, 40, params().u64(pi).u64(po));
    let out = d.read(po, 40);
    for t in 0..40u32 {
        let i = (t * 7) & 15;
        assert_eq!(out[t as usize], i * i + t);
    }
}

#[test]
fn dynamic_shared_memory_reverses() {
    let mut d = device();
    let po = d.upload(&[0; 100]);
    let (outcome, _) = d.launch("dynamic_shared", dim(1), dim(100), 400, params().u64(po));
    assert_eq!(outcome, BlockOutcome::Done);
    assert_eq!(d.read(po, 100), (0..100).rev().collect::<Vec<u32>>());
}

#[test]
fn too_little_shared_memory_is_an_illegal_address() {
    let mut d = device();
    let po = d.upload(&[0; 100]);
    let (outcome, fault) = d.launch("dynamic_shared", dim(1), dim(100), 200, params().u64(po));
    assert_eq!(outcome, BlockOutcome::Faulted);
    assert_eq!((fault.kind, fault.thread.x, fault.is_write), (700, 50, 1));
}

#[test]
fn constants_and_initialized_pointers() {
    let mut d = device();
    let po = d.upload(&[0; 8]);
    d.run("constants", 1, 8, params().u64(po));
    assert_eq!(d.read(po, 8), [1, 10, 100, 1000, 1, 10, 100, 1000]);
    assert_eq!(d.read(d.global("counter"), 1), [13]);
}

#[test]
fn printing_asserting_and_the_heap_go_to_the_device() {
    let mut d = device();
    d.run("prints", 1, 1, params().u32(42));
    let printed = d.host.printed.lock().expect("lock").clone();
    assert_eq!(printed[0].0, "x is %d\n");
    assert_eq!(d.read(printed[0].1, 1), [42]);
    d.run("asserts", 1, 1, params().u32(3));
    let (outcome, fault) = d.launch("asserts", dim(1), dim(1), 0, params().u32(4));
    assert_eq!((outcome, fault.kind), (BlockOutcome::Faulted, 710));
    assert_eq!(d.host.asserted.lock().expect("lock")[0].0, "x == 3");
    let po = d.upload(&[0; 8]);
    d.run("heap", 1, 8, params().u64(po));
    assert_eq!(
        d.read(po, 8),
        (0..8).map(|t| 120 + 16 * t).collect::<Vec<u32>>()
    );
}

#[test]
fn faults_name_thread_address_and_lines() {
    let mut d = device();
    let (outcome, fault) = d.launch("wild", dim(1), dim(4), 0, params().u64(0x10));
    assert_eq!(outcome, BlockOutcome::Faulted);
    assert_eq!(
        (fault.kind, fault.address, fault.bytes, fault.is_write),
        (700, 0x10, 4, 1)
    );
    let source = include_str!("../ptx/kernels.cu")
        .lines()
        .nth(fault.source_line as usize - 1);
    assert!(
        source.is_some_and(|l| l.contains("*p = 1")),
        "line {}",
        fault.source_line
    );
    assert_ne!(fault.ptx_line, 0);
    let at = d.alloc(64);
    let (_, fault) = d.launch("unaligned", dim(1), dim(1), 0, params().u64(at));
    assert_eq!((fault.kind, fault.address), (716, at + 1));
    let (_, fault) = d.launch("traps", dim(1), dim(1), 0, params());
    assert_eq!(fault.kind, 719);
}

#[test]
fn endless_loops_can_be_paused_and_cancelled() {
    let mut d = device();
    let p = d.upload(&[0]);
    d.stop.store(stop::CANCEL, Ordering::SeqCst);
    let (outcome, _) = d.launch("forever", dim(1), dim(33), 0, params().u64(p));
    assert_eq!(outcome, BlockOutcome::Cancelled);
    d.stop.store(stop::PAUSE, Ordering::SeqCst);
    let (outcome, _) = d.launch("forever", dim(1), dim(1), 0, params().u64(p));
    assert_eq!(outcome, BlockOutcome::Cancelled);
    assert_eq!(
        d.host.pauses.load(Ordering::SeqCst),
        2,
        "went on after the first pause"
    );
}

#[test]
fn threads_of_a_warp_can_wait_for_each_other() {
    let mut d = device();
    let (pl, pv) = (d.upload(&[0]), d.upload(&[0]));
    d.run("spin_lock", 1, 64, params().u64(pl).u64(pv));
    assert_eq!(d.read(pv, 1), [192]);
}

fn upload_halves(d: &mut Device, values: &[f64]) -> u64 {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|&x| (from_f64(F16, x) as u16).to_le_bytes())
        .collect();
    let at = d.alloc(bytes.len() as u64);
    d.write_bytes(at, &bytes);
    at
}

#[test]
fn tensor_products_match_plain_loops() {
    let mut d = device();
    let a: Vec<f64> = (0..256).map(|i| f64::from(i % 7 - 3)).collect();
    let b: Vec<f64> = (0..256).map(|i| f64::from(i % 5 - 2)).collect();
    let (pa, pb) = (upload_halves(&mut d, &a), upload_halves(&mut d, &b));
    let pc = d.upload(&[0; 256]);
    d.run("wmma_half", 1, 32, params().u64(pa).u64(pb).u64(pc));
    let c = d.read_f32(pc, 256);
    for i in 0..16 {
        for j in 0..16 {
            let expected: f64 = 1.0 + (0..16).map(|k| a[i * 16 + k] * b[j * 16 + k]).sum::<f64>();
            assert_eq!(f64::from(c[i * 16 + j]), expected);
        }
    }
    d.run("mma_half", 1, 32, params().u64(pa).u64(pb).u64(pc));
    let c = d.read_f32(pc, 128);
    for i in 0..16 {
        for j in 0..8 {
            let expected: f64 = (0..16).map(|k| a[i * 16 + k] * b[k * 8 + j]).sum();
            assert_eq!(f64::from(c[i * 8 + j]), expected, "{i} {j}");
        }
    }
}

#[test]
fn asynchronous_copies_and_barrier_objects() {
    let mut d = device();
    let input: Vec<u32> = (0..256).collect();
    let (pi, po) = (d.upload(&input), d.upload(&[0; 192]));
    d.run("async_copy", 1, 64, params().u64(pi).u64(po));
    let out = d.read(po, 64);
    for t in 0..64u32 {
        assert_eq!(out[t as usize], 4 * 4 * (63 - t) + 6);
    }
    d.run("barrier_object", 1, 64, params().u64(po));
    let out = d.read(po, 192);
    for t in 0..64usize {
        let expected: Vec<u32> = (0..3).map(|phase| 63 - t as u32 + phase).collect();
        assert_eq!(out[3 * t..3 * t + 3], expected);
    }
}

#[test]
fn named_barriers_and_reductions() {
    let mut d = device();
    let po = d.upload(&[0; 128]);
    d.run("named_barriers", 1, 128, params().u64(po));
    let out = d.read(po, 128);
    assert!(out[..64].iter().all(|&x| x == 7110), "{out:?}");
    assert!(out[64..].iter().all(|&x| x == 8110), "{out:?}");
}

#[test]
fn deadlocks_are_faults() {
    let mut d = device();
    let po = d.upload(&[0; 32]);
    let (outcome, fault) = d.launch("mismatched", dim(1), dim(32), 0, params().u64(po));
    assert_eq!((outcome, fault.kind), (BlockOutcome::Faulted, 719));
    assert_ne!(fault.ptx_line, 0);
}

#[test]
fn half_and_bfloat_arithmetic() {
    let mut d = device();
    let a: Vec<f64> = (0..16).map(|i| f64::from(i) * 0.5).collect();
    let b: Vec<f64> = (0..16).map(|i| f64::from(i) - 4.0).collect();
    let (pa, pb) = (upload_halves(&mut d, &a), upload_halves(&mut d, &b));
    let bf: Vec<u8> = a
        .iter()
        .flat_map(|&x| (from_f64(BF16, x) as u16).to_le_bytes())
        .collect();
    let pd = d.alloc(64);
    d.write_bytes(pd, &bf);
    let (pc, pe) = (d.upload(&[0; 8]), d.upload(&[0; 8]));
    let p = params().u64(pa).u64(pb).u64(pc).u64(pd).u64(pe);
    d.run("halves", 1, 8, p);
    let c = d.read_bytes(pc, 32);
    for i in 0..16 {
        let bits = u16::from_le_bytes([c[2 * i], c[2 * i + 1]]);
        let add = if i % 2 == 0 { 1.5 } else { -0.25 };
        assert_eq!(u64::from(bits), from_f64(F16, a[i] * b[i] + add));
    }
    let e = d.read_f32(pe, 8);
    assert!((0..8).all(|i| f64::from(e[i]) == a[i] * a[i]));
}

#[test]
fn textures_are_sampled_and_forged_handles_fault() {
    let mut d = device();
    let texels: Vec<f32> = (0..16).map(|i| i as f32 * 1.5).collect();
    let base = d.upload_f32(&texels);
    let view = TextureView::of_floats(base, Dim3 { x: 4, y: 4, z: 1 });
    d.host.textures.lock().expect("lock").insert(77, view);
    let po = d.upload(&[0; 16]);
    d.run("texture", 1, 16, params().u64(77).u64(po));
    assert_eq!(d.read_f32(po, 16), texels);
    let (outcome, _) = d.launch("texture", dim(1), dim(1), 0, params().u64(78).u64(po));
    assert_eq!(outcome, BlockOutcome::Faulted);
}

#[test]
fn doubles_integers_and_bits() {
    let mut d = device();
    let a = [0.0f64, 1.0, 2.25, 1e10, 1e-10, 12345.678];
    let bytes: Vec<u8> = a.iter().flat_map(|x| x.to_le_bytes()).collect();
    let (pa, po) = (d.alloc(64), d.alloc(64));
    d.write_bytes(pa, &bytes);
    d.run("doubles", 1, 6, params().u64(pa).u64(po));
    let out = d.read_bytes(po, 48);
    for (i, x) in a.iter().enumerate() {
        let got = f64::from_le_bytes(out[8 * i..8 * i + 8].try_into().expect("8 bytes"));
        assert_eq!(got, x.sqrt() + x / 3.0 + x.trunc());
    }
    let words = [1u32, 0x8000_0000, 0xffff_ffff, 0x1234_5678];
    let (pa, po) = (d.upload(&words), d.upload(&[0; 4]));
    d.run("bits", 1, 4, params().u64(pa).u64(po));
    let expected: Vec<u32> = words
        .iter()
        .map(|&x| {
            x.count_ones()
                + x.leading_zeros() * 100
                + (x.trailing_zeros() + 1) * 10000
                + (x.reverse_bits() & 0xff) * 1_000_000
        })
        .collect();
    assert_eq!(d.read(po, 4), expected);
    let longs = [
        0i64,
        -1,
        i64::MAX,
        i64::MIN,
        123_456_789_012,
        -987_654_321_098,
    ];
    let bytes: Vec<u8> = longs.iter().flat_map(|x| x.to_le_bytes()).collect();
    let (pa, po) = (d.alloc(64), d.alloc(64));
    d.write_bytes(pa, &bytes);
    d.run("integers64", 1, 6, params().u64(pa).u64(po));
    let out = d.read_bytes(po, 48);
    for (i, &x) in longs.iter().enumerate() {
        let got = i64::from_le_bytes(out[8 * i..8 * i + 8].try_into().expect("8 bytes"));
        let high = ((i128::from(x) * i128::from(x)) >> 64) as i64;
        let expected = (x / 7)
            .wrapping_add(x % 1000)
            .wrapping_add(high)
            .wrapping_add(x >> 3);
        assert_eq!(got, expected, "{x}");
    }
}

#[test]
fn library_math_is_within_its_bounds() {
    let mut d = device();
    let a = [0.0f32, 0.5, 1.0, -2.5, 10.0, -30.25, 100.0, 1e-3];
    let (pa, po) = (d.upload_f32(&a), d.upload(&[0; 32]));
    d.run("transcendental", 1, 8, params().u64(pa).u64(po));
    let out = d.read_f32(po, 32);
    for (i, &x) in a.iter().enumerate() {
        let x = f64::from(x);
        let expected = [x.sin(), x.exp(), (x.abs() + 1.0).ln(), x.abs().powf(1.5)];
        for (got, want) in out[4 * i..4 * i + 4].iter().zip(expected) {
            // An overflow to infinity is right where the value does not fit.
            let fits = want.abs() <= f64::from(f32::MAX);
            let near = (f64::from(*got) - want).abs() <= want.abs() * 1e-6 + 1e-6;
            assert!(
                near || (!fits && got.is_infinite()),
                "{x}: {got} for {want}"
            );
        }
    }
}

#[test]
fn kernels_and_globals_are_described() {
    let d = device();
    let kernel = |name: &str| {
        let i = d.kernel(name);
        d.module.kernels()[i].clone()
    };
    let vadd = kernel("vadd");
    assert_eq!(vadd.params.len(), 4);
    assert_eq!(
        (vadd.params[3].offset, vadd.params[3].size, vadd.params_len),
        (24, 4, 28)
    );
    assert_eq!(kernel("reduce").static_shared, 1024);
    assert!(kernel("recursion").recursive);
    assert!(!kernel("vadd").recursive);
    assert!(kernel("local_array").local_bytes >= 64);
    let weights = d
        .module
        .globals()
        .iter()
        .find(|g| g.name == "weights")
        .expect("weights");
    assert!(weights.constant && weights.size == 16);
    assert!(d.module.function_address("no_such_function").is_none());
}
