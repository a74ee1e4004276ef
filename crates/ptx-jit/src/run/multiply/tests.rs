//! Every kind of tile against the plain one, bit by bit, and nothing written beside the sums.

use mica_ptx_ops::multiply::{Multiply, NAN};

use super::{compute, tile::Kind};

/// Nobody asks for the end.
fn go_on() -> Result<(), std::convert::Infallible> {
    Ok(())
}

struct Case {
    rows: u64,
    cols: u64,
    depth: u64,
    /// Distances of a's rows and columns, and of b's and c's rows.
    steps: [u64; 4],
    adds: bool,
}

/// What is in `c` afterwards, with what lies behind it.
fn run(case: &Case, kind: Kind) -> Vec<u32> {
    let value = |i: usize| match i % 37 {
        5 => f32::MIN_POSITIVE / 2.0,
        11 => -0.0,
        i => (i as f32 - 17.0) / 8.0 + i as f32 / 3.0,
    };
    let mut a: Vec<f32> = (0..30_000).map(value).collect();
    let b: Vec<f32> = (0..30_000).map(|i| value(i * 7 + 3)).collect();
    let mut c: Vec<f32> = (0..2000).map(|i| value(i * 5 + 1)).collect();
    if case.rows > 2 {
        a[(2 * case.steps[0]) as usize] = f32::from_bits(0xffc1_2345);
    }
    let sizes = case.rows | case.cols << 16 | case.depth << 32;
    let [a_row, a_col, b_row, c_row] = case.steps;
    let (a, b, to) = (a.as_ptr() as u64, b.as_ptr() as u64, c.as_mut_ptr() as u64);
    let words = [a, b, to, sizes, a_row, a_col, b_row, c_row];
    let call = Multiply::of_words(words, case.adds).expect("small enough");
    assert!(call.a.bytes().max(call.b.bytes()).max(call.c.bytes()) <= 120_000);
    // SAFETY: all elements are in the vectors.
    unsafe { compute(&call, kind, go_on) }.unwrap();
    c.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn all_kinds_of_tiles_give_the_same_bits() {
    assert_eq!(Kind::all().last(), Some(Kind::Plain));
    let mut cases = 0;
    for rows in [1, 2, 3, 5, 6, 7, 8, 11, 12, 13, 31] {
        for cols in [1, 8, 9, 16, 17, 31, 32, 33] {
            for (depth, a) in [
                (0, (3, 1)),
                (1, (2, 1)),
                (5, (9, 1)),
                (33, (1, 40)),
                (20, (31, 3)),
                (300, (1, 19)),
            ] {
                let adds = (rows + cols) % 2 == 1;
                let steps = [a.0, a.1, cols + 3, cols + 5];
                let case = Case {
                    rows,
                    cols,
                    depth,
                    steps,
                    adds,
                };
                let wanted = run(&case, Kind::Plain);
                for kind in Kind::all() {
                    assert_eq!(
                        run(&case, kind),
                        wanted,
                        "{kind:?} {rows}x{cols}x{depth} {steps:?}"
                    );
                }
                cases += usize::from(wanted.contains(&NAN));
            }
        }
    }
    assert!(cases > 60, "{cases} cases with a NaN");
}

#[test]
fn the_plain_kind_computes_the_product() {
    let a = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let b = [7.0_f32, 8.0, 9.0, 10.0, 11.0, 12.0];
    let mut c = [1.0_f32; 4];
    let sizes = 2 | 2 << 16 | 3 << 32;
    let to = c.as_mut_ptr() as u64;
    let words = [a.as_ptr() as u64, b.as_ptr() as u64, to, sizes, 3, 1, 2, 2];
    for kind in Kind::all() {
        for (adds, wanted) in [
            (false, [58.0, 64.0, 139.0, 154.0]),
            (true, [116.0, 128.0, 278.0, 308.0]),
        ] {
            let call = Multiply::of_words(words, adds).expect("small enough");
            // SAFETY: the arrays have all elements.
            unsafe { compute(&call, kind, go_on) }.unwrap();
            assert_eq!(c, wanted);
        }
    }
}
