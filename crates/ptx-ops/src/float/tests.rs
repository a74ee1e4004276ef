use super::*;

const ALL: [Rounding; 4] = [
    Rounding::Nearest,
    Rounding::Zero,
    Rounding::Down,
    Rounding::Up,
];

fn f(x: f32) -> u64 {
    u64::from(x.to_bits())
}

fn with(rounding: Rounding) -> Modes {
    Modes::rounded(rounding)
}

/// The software path, even for nearest.
fn soft_fma(format: Format, r: Rounding, a: u64, b: u64, c: u64) -> u64 {
    Value::unpack(format, a)
        .times(Value::unpack(format, b))
        .plus(Value::unpack(format, c), r)
        .pack(format, r)
}

fn soft(format: Format, value: Value) -> u64 {
    value.pack(format, Rounding::Nearest)
}

struct Lcg(u64);
impl Lcg {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        self.0 ^ self.0 >> 29
    }
}

#[test]
fn directed_roundings_bracket_a_third() {
    let (one, three) = (f(1.0), f(3.0));
    assert_eq!(div(F32, with(Rounding::Down), one, three), 0x3eaaaaaa);
    assert_eq!(div(F32, with(Rounding::Up), one, three), 0x3eaaaaab);
    assert_eq!(div(F32, with(Rounding::Nearest), one, three), 0x3eaaaaab);
    assert_eq!(div(F32, with(Rounding::Zero), f(-1.0), three), 0xbeaaaaaa);
    assert_eq!(div(F32, with(Rounding::Down), f(-1.0), three), 0xbeaaaaab);
}

#[test]
fn addition_of_a_tiny_value_moves_only_toward_its_direction() {
    let tiny = 1; // the smallest subnormal
    assert_eq!(add(F32, with(Rounding::Up), f(1.0), tiny), 0x3f800001);
    assert_eq!(add(F32, with(Rounding::Down), f(1.0), tiny), 0x3f800000);
    assert_eq!(
        add(F32, with(Rounding::Zero), f(1.0), tiny | 0x8000_0000),
        0x3f7fffff
    );
    assert_eq!(
        add(F32, with(Rounding::Up), f(1.0), tiny | 0x8000_0000),
        0x3f800000
    );
}

#[test]
fn exact_cancellation_gives_plus_zero_except_when_rounding_down() {
    for r in ALL {
        let zero = if r == Rounding::Down { 0x8000_0000 } else { 0 };
        assert_eq!(add(F32, with(r), f(1.5), f(-1.5)), zero, "{r:?}");
    }
}

#[test]
fn overflow_goes_to_infinity_or_the_largest_by_direction() {
    let big = u64::from(f32::MAX.to_bits());
    assert_eq!(add(F32, with(Rounding::Nearest), big, big), 0x7f800000);
    assert_eq!(add(F32, with(Rounding::Zero), big, big), 0x7f7fffff);
    assert_eq!(add(F32, with(Rounding::Down), big, big), 0x7f7fffff);
    assert_eq!(
        mul(F32, with(Rounding::Up), big, big | 0x8000_0000),
        0xff7fffff
    );
    assert_eq!(
        mul(F32, with(Rounding::Down), big, big | 0x8000_0000),
        0xff800000
    );
}

#[test]
fn nans_are_canonical_and_saturation_turns_them_into_zero() {
    let nan = 0x7fc0_1234;
    assert_eq!(add(F32, Modes::default(), nan, f(1.0)), 0x7fff_ffff);
    assert_eq!(add(F16, Modes::default(), 0x7e00, 0x3c00), 0x7fff);
    assert_eq!(
        add(
            F32,
            Modes {
                sat: true,
                ..Modes::default()
            },
            nan,
            f(1.0)
        ),
        0
    );
    assert_eq!(
        add(
            F32,
            Modes {
                sat: true,
                ..Modes::default()
            },
            f(2.0),
            f(1.0)
        ),
        f(1.0)
    );
    assert_eq!(
        add(
            F32,
            Modes {
                sat: true,
                ..Modes::default()
            },
            f(-2.0),
            f(1.0)
        ),
        0
    );
    let inf = f(f32::INFINITY);
    assert_eq!(sub(F32, Modes::default(), inf, inf), 0x7fff_ffff);
    assert_eq!(mul(F32, Modes::default(), inf, 0), 0x7fff_ffff);
}

#[test]
fn flush_to_zero_applies_to_operands_and_results() {
    let ftz = Modes {
        ftz: true,
        ..Modes::default()
    };
    assert_eq!(add(F32, ftz, 1, 1), 0);
    assert_eq!(add(F32, Modes::default(), 1, 1), 2);
    assert_eq!(mul(F32, ftz, f(1.0e-20), f(-1.0e-20)), 0x8000_0000);
    assert_eq!(mul(F32, ftz, 0x8000_0001, f(1.0)), 0x8000_0000);
}

#[test]
fn flushing_comes_before_rounding() {
    // As an H200 does: just below the smallest normal, and rounding up to it without `.ftz`.
    let ftz = Modes {
        ftz: true,
        ..Modes::default()
    };
    let (smallest, below_one, half) = (0x0080_0000, 0x3f7f_ffff, 0x3f00_0000);
    assert_eq!(mul(F32, Modes::default(), smallest, below_one), smallest);
    assert_eq!(mul(F32, ftz, smallest, below_one), 0);
    assert_eq!(mul(F32, ftz, 0x80ff_ffff, half), 0x8000_0000);
    assert_eq!(fma(F32, ftz, smallest, below_one, 0), 0);
    assert_eq!(div(F32, ftz, 0x00ff_ffff, 0x4000_0000), 0);
    assert_eq!(rcp(F32, ftz, 0x7e80_0001), 0);
    assert_eq!(mul(F32, ftz, smallest, 0x3f80_0000), smallest);
    assert_eq!(
        fma(F32, ftz, 0x00ff_ffff, 0x3f80_0000, 0x807f_ffff),
        0x00ff_ffff
    );
}

#[test]
fn software_path_agrees_with_the_processor_for_nearest() {
    let mut rng = Lcg(7);
    for _ in 0..200_000 {
        // Exponents near each other, so that cancellation and alignment both happen.
        let mut one = || (rng.next() & 0x807f_ffff) | (100 + rng.next() % 60) << 23;
        let (a, b, c) = (one(), one(), one());
        let fused =
            f32::from_bits(a as u32).mul_add(f32::from_bits(b as u32), f32::from_bits(c as u32));
        assert_eq!(soft_fma(F32, Rounding::Nearest, a, b, c), f(fused));
        let quotient = f32::from_bits(a as u32) / f32::from_bits(b as u32);
        assert_eq!(soft(F32, exact_quotient(F32, a, b)), f(quotient));
        let root = f32::from_bits(a as u32 & 0x7fff_ffff).sqrt();
        assert_eq!(soft(F32, exact_root(F32, a & 0x7fff_ffff)), f(root));
    }
    for _ in 0..200_000 {
        let mut one = || (rng.next() & 0x800f_ffff_ffff_ffff) | (960 + rng.next() % 130) << 52;
        let (a, b, c) = (one(), one(), one());
        let (x, y, z) = (f64::from_bits(a), f64::from_bits(b), f64::from_bits(c));
        assert_eq!(
            soft_fma(F64, Rounding::Nearest, a, b, c),
            x.mul_add(y, z).to_bits()
        );
        assert_eq!(soft(F64, exact_quotient(F64, a, b)), (x / y).to_bits());
        let positive = a & !(1 << 63);
        assert_eq!(
            soft(F64, exact_root(F64, positive)),
            f64::from_bits(positive).sqrt().to_bits()
        );
    }
}

#[test]
fn whole_range_bits_agree_with_the_processor() {
    let mut rng = Lcg(99);
    for _ in 0..200_000 {
        let (a, b, c) = (rng.next() >> 32, rng.next() >> 32, rng.next() >> 32);
        let fused =
            f32::from_bits(a as u32).mul_add(f32::from_bits(b as u32), f32::from_bits(c as u32));
        if fused.is_nan() {
            assert_eq!(soft_fma(F32, Rounding::Nearest, a, b, c), F32.nan());
        } else {
            assert_eq!(soft_fma(F32, Rounding::Nearest, a, b, c), f(fused));
        }
    }
}

#[test]
fn half_precision_fma_rounds_once() {
    // 1 + 2^-10 squared is 1 + 2^-9 + 2^-20; adding 2^-11 - 2^-20 lands exactly on a tie.
    let a = 0x3c01;
    assert_eq!(fma(F16, Modes::default(), a, a, 0), 0x3c02);
    assert_eq!(
        fma(F16, Modes::default(), a, a, 0x1000),
        0x3c03,
        "just above the tie goes up"
    );
    assert_eq!(mul(F16, Modes::default(), 0x7bff, 0x4000), 0x7c00);
    assert_eq!(
        add(BF16, Modes::default(), 0x3f80, 0x3b80),
        0x3f80,
        "tie to even"
    );
}

#[test]
fn min_and_max_follow_their_nan_variants() {
    let nan = 0x7fc0_0000;
    let plain = MinMax::default();
    let strict = MinMax { nan: true, ..plain };
    assert_eq!(min(F32, plain, nan, f(2.0)), f(2.0));
    assert_eq!(max(F32, plain, nan, nan), 0x7fff_ffff);
    assert_eq!(min(F32, strict, nan, f(2.0)), 0x7fff_ffff);
    assert_eq!(min(F32, plain, 0, 0x8000_0000), 0x8000_0000);
    assert_eq!(max(F32, plain, 0x8000_0000, 0), 0);
    let xor = MinMax {
        xorsign_abs: true,
        ..plain
    };
    assert_eq!(max(F32, xor, f(-3.0), f(2.0)), f(-3.0));
    assert_eq!(min(F32, xor, f(-3.0), f(-2.0)), f(2.0));
}

#[test]
fn eight_bit_formats_have_their_own_extremes() {
    assert_eq!(from_f64(E4M3, 448.0), 0x7e);
    assert_eq!(from_f64(E4M3, 1.0), 0x38);
    assert_eq!(to_f64(E4M3, 0x7e), 448.0);
    assert!(to_f64(E4M3, 0x7f).is_nan());
    assert_eq!(from_f64(E5M2, 57344.0), 0x7b);
    assert_eq!(to_f64(E5M2, 0x7c), f64::INFINITY);
    assert_eq!(to_f64(E4M3, 1), 2f64.powi(-9));
}

#[test]
fn integral_rounding_keeps_signs_of_zero() {
    assert_eq!(round_integral(F32, Rounding::Nearest, f(2.5)), f(2.0));
    assert_eq!(round_integral(F32, Rounding::Nearest, f(3.5)), f(4.0));
    assert_eq!(round_integral(F32, Rounding::Zero, f(-0.75)), 0x8000_0000);
    assert_eq!(round_integral(F32, Rounding::Down, f(-0.25)), f(-1.0));
    assert_eq!(round_integral(F32, Rounding::Up, f(1e20)), f(1e20));
}
