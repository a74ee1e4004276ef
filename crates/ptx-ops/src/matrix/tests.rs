use super::*;
use mica_ptx::ast::{Layout, Operand, RegId, Rounding, Shape};

fn inst(shape: (u16, u16, u16), a: ScalarType, c: ScalarType, regs: [usize; 4]) -> Mma {
    Mma {
        shape: Shape {
            m: shape.0,
            n: shape.1,
            k: shape.2,
        },
        a_layout: Layout::Row,
        b_layout: Layout::Col,
        d_ty: c,
        a_ty: a,
        b_ty: a,
        c_ty: c,
        op: if a == ScalarType::B1 {
            MmaOp::XorPopc
        } else {
            MmaOp::MulAdd
        },
        sat: false,
        round: Rounding::Rn,
        d: vec![RegId(0); regs[0]],
        a: vec![Operand::Imm(0); regs[1]],
        b: vec![Operand::Imm(0); regs[2]],
        c: vec![Operand::Imm(0); regs[3]],
        sparse: None,
    }
}

/// Fills fragments from matrices, runs, and reads D back, then compares with plain loops.
fn check(plan: &MmaPlan, encode: impl Fn(i64) -> u64, encode_c: impl Fn(i64) -> u64) {
    let (m, n, k) = (plan.a.rows as i64, plan.b.cols as i64, plan.k as i64);
    let small = |x: i64| x.rem_euclid(3) - 1;
    let unsigned = |x: i64| {
        if plan.a.ty == ScalarType::B1 {
            x.rem_euclid(2)
        } else {
            small(x)
        }
    };
    let a = |g: i64, r: i64, c: i64| unsigned(r * 7 + c * 3 + g);
    let b = |g: i64, r: i64, c: i64| unsigned(r * 5 + c * 11 + g * 2);
    let c0 = |g: i64, r: i64, c: i64| r - c + g;
    let mut lanes = [LaneOperands::default(); 32];
    let fill =
        |f: &Fragment, lane: usize, out: &mut LaneRegisters, e: &dyn Fn(i64, i64, i64) -> u64| {
            for i in 0..f.per_lane {
                let flat = u32::from(f.places[lane * f.per_lane as usize + i as usize]);
                let (group, rest) = (flat / (f.rows * f.cols), flat % (f.rows * f.cols));
                let bits = e(
                    i64::from(group),
                    i64::from(rest / f.cols),
                    i64::from(rest % f.cols),
                );
                f.insert(out, i, bits);
            }
        };
    for (lane, operands) in lanes.iter_mut().enumerate() {
        fill(&plan.a, lane, &mut operands.a, &|g, r, c| {
            encode(a(g, r, c))
        });
        fill(&plan.b, lane, &mut operands.b, &|g, r, c| {
            encode(b(g, r, c))
        });
        fill(&plan.c, lane, &mut operands.c, &|g, r, c| {
            encode_c(c0(g, r, c))
        });
    }
    let out = plan.run(&lanes);
    let bit = plan.op == MmaOp::XorPopc;
    let mut seen = 0;
    for (lane, registers) in out.iter().enumerate() {
        for e in 0..plan.d.per_lane {
            let flat = i64::from(plan.d.places[lane * plan.d.per_lane as usize + e as usize]);
            let (g, r, c) = (flat / (m * n), flat / n % m, flat % n);
            let product = |x: i64| {
                let (p, q) = (a(g, r, x), b(g, x, c));
                if bit { p ^ q } else { p * q }
            };
            let expected = c0(g, r, c) + (0..k).map(product).sum::<i64>();
            assert_eq!(
                plan.d.extract(registers, e),
                encode_c(expected),
                "lane {lane} element {e}"
            );
            seen += 1;
        }
    }
    assert!(seen >= m * n);
}

fn half(x: i64) -> u64 {
    from_f64(float::F16, x as f64)
}
fn single(x: i64) -> u64 {
    from_f64(float::F32, x as f64)
}
fn word(x: i64) -> u64 {
    x as u32 as u64
}

#[test]
fn every_dense_shape_multiplies() {
    use ScalarType::*;
    let run = |inst: Mma, encode: &dyn Fn(i64) -> u64, encode_c: &dyn Fn(i64) -> u64| {
        check(&MmaPlan::mma(&inst).expect("supported"), encode, encode_c);
    };
    run(inst((16, 8, 8), F16, F32, [4, 2, 1, 4]), &half, &single);
    run(inst((16, 8, 16), F16, F32, [4, 4, 2, 4]), &half, &single);
    run(inst((16, 8, 16), F16, F16, [2, 4, 2, 2]), &half, &half);
    run(inst((8, 8, 4), F16, F32, [8, 2, 2, 8]), &half, &single);
    run(inst((8, 8, 4), F16, F16, [4, 2, 2, 4]), &half, &half);
    let bf16 = |x: i64| from_f64(float::BF16, x as f64);
    run(inst((16, 8, 16), Bf16, F32, [4, 4, 2, 4]), &bf16, &single);
    run(inst((16, 8, 8), Tf32, F32, [4, 4, 2, 4]), &single, &single);
    run(inst((16, 8, 4), Tf32, F32, [4, 2, 1, 4]), &single, &single);
    let double = |x: i64| (x as f64).to_bits();
    run(inst((8, 8, 4), F64, F64, [2, 1, 1, 2]), &double, &double);
    run(inst((16, 8, 16), F64, F64, [4, 8, 4, 4]), &double, &double);
    let byte = |x: i64| x as u8 as u64;
    run(inst((8, 8, 16), S8, S32, [2, 1, 1, 2]), &byte, &word);
    run(inst((16, 8, 16), S8, S32, [4, 2, 1, 4]), &byte, &word);
    run(inst((16, 8, 32), S8, S32, [4, 4, 2, 4]), &byte, &word);
    let nibble = |x: i64| x as u64 & 15;
    run(inst((8, 8, 32), S4, S32, [2, 1, 1, 2]), &nibble, &word);
    run(inst((16, 8, 64), S4, S32, [4, 4, 2, 4]), &nibble, &word);
    let e4m3 = |x: i64| from_f64(float::E4M3, x as f64);
    run(inst((16, 8, 32), E4m3, F32, [4, 4, 2, 4]), &e4m3, &single);
    let bit = |x: i64| x as u64 & 1;
    run(inst((8, 8, 128), B1, S32, [2, 1, 1, 2]), &bit, &word);
    run(inst((16, 8, 256), B1, S32, [4, 4, 2, 4]), &bit, &word);
}

#[test]
fn wmma_shapes_multiply() {
    use ScalarType::*;
    for shape in [(16, 16, 16), (32, 8, 16), (8, 32, 16)] {
        let plan = MmaPlan::wmma(&inst(shape, F16, F32, [8, 8, 8, 8])).expect("supported");
        check(&plan, half, single);
        let plan = MmaPlan::wmma(&inst(shape, F16, F16, [4, 8, 8, 4])).expect("supported");
        check(&plan, half, half);
    }
    let byte = |x: i64| x as u8 as u64;
    check(
        &MmaPlan::wmma(&inst((16, 16, 16), S8, S32, [8, 2, 2, 8])).expect("s8"),
        byte,
        word,
    );
    check(
        &MmaPlan::wmma(&inst((32, 8, 16), S8, S32, [8, 4, 1, 8])).expect("s8"),
        byte,
        word,
    );
    check(
        &MmaPlan::wmma(&inst((16, 16, 8), Tf32, F32, [8, 4, 4, 8])).expect("tf32"),
        single,
        single,
    );
    let double = |x: i64| (x as f64).to_bits();
    check(
        &MmaPlan::wmma(&inst((8, 8, 4), F64, F64, [2, 1, 1, 2])).expect("f64"),
        double,
        double,
    );
}

#[test]
fn documented_places_of_m16n8k16() {
    let a = fragment_a(16, 16, ScalarType::F16);
    let places: Vec<_> = a.lane_places(5).collect();
    // Lane 5: group 1, second in its group.
    assert_eq!(
        places,
        [
            (1, 2),
            (1, 3),
            (9, 2),
            (9, 3),
            (1, 10),
            (1, 11),
            (9, 10),
            (9, 11)
        ]
    );
    let b = fragment_b(8, 16, ScalarType::F16);
    assert_eq!(
        b.lane_places(5).collect::<Vec<_>>(),
        [(2, 1), (3, 1), (10, 1), (11, 1)]
    );
    let c = fragment_c(16, 8, ScalarType::F32);
    assert_eq!(
        c.lane_places(5).collect::<Vec<_>>(),
        [(1, 2), (1, 3), (9, 2), (9, 3)]
    );
}

#[test]
fn integer_sums_saturate_only_when_asked() {
    let mut i = inst((8, 8, 16), ScalarType::S8, ScalarType::S32, [2, 1, 1, 2]);
    let mut lanes = [LaneOperands::default(); 32];
    for lane in &mut lanes {
        lane.a[0] = 0x7f7f_7f7f;
        lane.b[0] = 0x7f7f_7f7f;
        lane.c = [0x7fff_ffff; 8];
    }
    let wrapped = MmaPlan::mma(&i).expect("plan").run(&lanes);
    assert_eq!(
        wrapped[0][0],
        u64::from(0x7fff_ffffu32.wrapping_add(16 * 127 * 127))
    );
    i.sat = true;
    assert_eq!(
        MmaPlan::mma(&i).expect("plan").run(&lanes)[31][1],
        0x7fff_ffff
    );
}

#[test]
fn unknown_shapes_are_refused() {
    assert!(MmaPlan::mma(&inst((16, 8, 12), ScalarType::F16, ScalarType::F32, [4; 4])).is_none());
    assert!(MmaPlan::mma(&inst((16, 8, 16), ScalarType::F16, ScalarType::F64, [4; 4])).is_none());
    assert!(MmaPlan::mma(&inst((16, 8, 16), ScalarType::F16, ScalarType::F32, [1; 4])).is_none());
}

#[test]
fn tiles_transpose() {
    assert_eq!(tile_places(6, false), [(1, 4), (1, 5)]);
    assert_eq!(tile_places(6, true), [(4, 1), (5, 1)]);
    assert_eq!(
        memory_bit_offset(Layout::Col, 20, 3, 2, 16),
        (2 * 20 + 3) * 16
    );
}

#[test]
fn halves_are_widened_as_everywhere() {
    for bits in 0..=0xffffu64 {
        let (got, want) = (super::half(bits), to_f64(crate::float::F16, bits));
        assert!(
            got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
            "{bits:#x} is {got}, not {want}"
        );
    }
}
