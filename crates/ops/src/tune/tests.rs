use std::cell::Cell;

use super::*;

const KEY: Key = Key {
    sizes: [64, 64, 64, 1],
    dtype: DType::F32,
    out: DType::F32,
    has_epilogue: false,
    is_tf32: false,
    layout: [true, true, true],
};

fn candidates() -> Vec<Variant> {
    vec![Variant::Rows(12), Variant::Rows(8), Variant::Tile]
}

/// Chooses with given seconds of each candidate; how many were measured, and the choice.
fn choose(tuner: &Tuner, seconds: [f64; 3]) -> (usize, Variant) {
    let measured = Cell::new(0);
    let choice = tuner.choose(
        KEY,
        || Ok(candidates()),
        |variant| {
            measured.set(measured.get() + 1);
            let at = candidates().iter().position(|other| *other == variant);
            Ok(seconds[at.unwrap()])
        },
    );
    (measured.get(), choice.unwrap())
}

#[test]
fn the_fastest_is_chosen_once_and_kept_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = Some(folder.path().join("below/choices"));
    let tuner = Tuner::new(path.clone(), "card".into());
    assert_eq!(choose(&tuner, [3.0, 1.0, 2.0]), (3, Variant::Rows(8)));
    assert_eq!(choose(&tuner, [1.0, 2.0, 2.0]), (0, Variant::Rows(8)));
    let other = Tuner::new(path.clone(), "card".into());
    assert_eq!(choose(&other, [1.0, 2.0, 2.0]), (0, Variant::Rows(8)));
    // Another device, driver, kernel or setting is measured.
    let moved = Tuner::new(path, "another card".into());
    assert_eq!(choose(&moved, [2.0, 2.0, 1.0]), (3, Variant::Tile));
}

#[test]
fn a_corrupted_file_is_measured_again_and_never_believed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("choices");
    let make = || Tuner::new(Some(path.clone()), "card".into());
    assert_eq!(choose(&make(), [3.0, 1.0, 2.0]).1, Variant::Rows(8));
    let good = std::fs::read(&path).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        std::fs::write(&path, &bad).unwrap();
        let (_, choice) = choose(&make(), [3.0, 1.0, 2.0]);
        assert_eq!(choice, Variant::Rows(8), "byte {at}");
        std::fs::write(&path, &good[..at]).unwrap();
        assert_eq!(
            choose(&make(), [3.0, 1.0, 2.0]).1,
            Variant::Rows(8),
            "cut at {at}"
        );
    }
    std::fs::write(&path, [0xff; 100]).unwrap();
    assert_eq!(choose(&make(), [1.0, 2.0, 3.0]), (3, Variant::Rows(12)));
    // What was measured is found behind the garbage.
    assert_eq!(choose(&make(), [3.0, 3.0, 1.0]), (0, Variant::Rows(12)));
}

#[test]
fn a_kernel_that_is_gone_or_cannot_run_is_not_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("choices");
    let tuner = Tuner::new(Some(path.clone()), "card".into());
    file::add(&path, &tuner.text(&KEY), "a kernel of last year").unwrap();
    assert_eq!(choose(&tuner, [3.0, 2.0, 1.0]), (3, Variant::Tile));
    let tuner = Tuner::new(None, "card".into());
    let choice = tuner.choose(
        KEY,
        || Ok(candidates()),
        |variant| match variant {
            Variant::Tile => Ok(1.0),
            _ => Err(Error::argument("gemm", "no")),
        },
    );
    assert_eq!(choice.unwrap(), Variant::Tile);
}

#[test]
fn several_at_once_leave_a_file_of_whole_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("choices");
    std::thread::scope(|scope| {
        for number in 0..8 {
            let path = &path;
            scope.spawn(move || {
                for round in 0..20 {
                    file::add(path, &format!("{number} {round}"), "label").unwrap();
                }
            });
        }
    });
    let text = std::fs::read_to_string(&path).unwrap();
    for (number, round) in (0..8).flat_map(|n| (0..20).map(move |r| (n, r))) {
        let key = format!("{number} {round}");
        assert_eq!(file::find_in(&text, &key).as_deref(), Some("label"));
    }
}

#[test]
fn near_sizes_share_a_bucket_that_is_not_smaller() {
    for size in 1..5000 {
        let rounded = bucket(size) as usize;
        assert!(
            rounded >= size && rounded * 2 < size * 3 + 3,
            "{size} {rounded}"
        );
        assert_eq!(bucket(rounded) as usize, rounded);
    }
}
