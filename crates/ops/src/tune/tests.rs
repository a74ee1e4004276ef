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
    choose_for(tuner, KEY, seconds)
}

fn choose_for(tuner: &Tuner, key: Key, seconds: [f64; 3]) -> (usize, Variant) {
    let measured = Cell::new(0);
    let choice = tuner.choose(
        key,
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
    for kind in ["gemm", "near"] {
        let text = tuner.text(kind, &KEY);
        file::add(&path, &text, "a_kernel_of_last_year").unwrap();
    }
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
        let rounded = bucket(size);
        assert!(
            rounded >= size && rounded * 2 < size * 3 + 3,
            "{size} {rounded}"
        );
        assert_eq!(bucket(rounded), rounded);
    }
}

/// A product of the group of [`KEY`].
fn near(k: usize) -> Key {
    Key {
        sizes: [64, 64, k, 1],
        ..KEY
    }
}

#[test]
fn a_near_size_compares_those_that_were_nearly_the_fastest() {
    let folder = tempfile::tempdir().unwrap();
    let path = Some(folder.path().join("choices"));
    let tuner = Tuner::new(path.clone(), "card".into());
    assert_eq!(choose(&tuner, [1.4, 1.0, 9.0]), (3, Variant::Rows(8)));
    // The third took nine times the fastest: nobody looks whether it is best here.
    let seconds = [1.0, 1.2, 0.1];
    assert_eq!(
        choose_for(&tuner, near(60), seconds),
        (2, Variant::Rows(12))
    );
    assert_eq!(
        choose_for(&tuner, near(60), seconds),
        (0, Variant::Rows(12))
    );
    assert_eq!(choose(&tuner, seconds), (0, Variant::Rows(8)));
    // Another process knows the group by the file.
    let other = Tuner::new(path, "card".into());
    assert_eq!(
        choose_for(&other, near(60), seconds),
        (0, Variant::Rows(12))
    );
    assert_eq!(
        choose_for(&other, near(59), seconds),
        (2, Variant::Rows(12))
    );
    // Far sizes have a group of their own.
    assert_eq!(choose_for(&other, near(600), seconds), (3, Variant::Tile));
}

#[test]
fn kernels_that_are_nearly_equal_are_measured_again() {
    let tuner = Tuner::new(None, "card".into());
    let mut turns = [0; 3];
    let choice = tuner.choose(
        KEY,
        || Ok(candidates()),
        |variant| {
            let at = candidates().iter().position(|other| *other == variant);
            let at = at.unwrap();
            turns[at] += 1;
            // The second is faster than its first measurement says.
            let seconds = [[1.0, 1.0, 1.0], [1.05, 0.9, 0.95], [1.2, 0.1, 0.1]];
            Ok(seconds[at][turns[at] - 1])
        },
    );
    assert_eq!(choice.unwrap(), Variant::Rows(8));
    assert_eq!(turns, [3, 3, 1]);
}

#[test]
fn sizes_that_change_all_the_time_are_not_measured_all_the_time() {
    let tuner = Tuner::new(None, "card".into());
    let seconds = [1.0, 1.2, 1.4];
    let measured = |k| choose_for(&tuner, near(k), seconds).0;
    let counts: Vec<usize> = (49..65).map(measured).collect();
    assert_eq!(counts.iter().filter(|n| **n > 0).count(), MOST_OF_A_GROUP);
    let far = Key {
        dtype: DType::F16,
        ..KEY
    };
    assert_eq!(choose_for(&tuner, far, seconds).0, 3);
    let full = Key {
        sizes: [64, 63, 64, 1],
        ..KEY
    };
    assert_eq!(
        choose_for(&tuner, full, [2.0, 1.0, 1.0]),
        (0, Variant::Rows(12))
    );
}

#[test]
fn the_kernel_that_keeps_the_gpu_does_so_for_its_time() {
    let device = mica::Device::software().unwrap();
    let vgpu = mica::Vgpu::builder()
        .memory(64 << 20)
        .build(&device)
        .unwrap();
    let kernel = vgpu.load_ptx(HOLD).unwrap().kernel("hold").unwrap();
    let stream = vgpu.default_stream();
    let begun = std::time::Instant::now();
    stream
        .launch(&kernel, Grid::new(1, 1), (3_000_000_u64,))
        .unwrap();
    stream.synchronize().unwrap();
    assert!(begun.elapsed() >= std::time::Duration::from_millis(3));
}

#[test]
fn the_driver_s_version_is_found_in_what_its_module_says() {
    for (text, version) in [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 02:21:04 UTC 2025\nGCC version:  gcc 12.2.0\n",
            "570.86.15",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n",
            "580.65.06",
        ),
        ("\nGCC version: gcc 12.2.0", ""),
        ("1. .2 3.x .", ""),
        ("", ""),
    ] {
        assert_eq!(version_in(text), version, "{text:?}");
    }
}
