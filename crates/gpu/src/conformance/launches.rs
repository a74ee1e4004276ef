//! Launches: shapes, parameters, shared memory, cooperation.

use mica_cuda_abi::CuResult;

use super::session::Args;
use super::{Check, Session, case_list, ensure, refused};
use crate::{Launch, ModuleOptions};

case_list![
    every_thread_of_every_block_runs,
    floats_are_added,
    three_dimensional_shapes_are_numbered_right,
    impossible_shapes_are_refused,
    a_kernels_own_bound_is_kept,
    short_parameters_are_refused,
    kilobytes_of_parameters_arrive,
    barriers_and_static_shared_memory,
    dynamic_shared_memory,
    all_of_the_shared_memory_can_be_had,
    too_much_shared_memory_is_refused,
    occupancy_is_at_least_one,
    cooperative_grids_can_synchronize,
    cooperative_grids_that_do_not_fit_are_refused,
    parameters_are_copied_at_launch,
];

fn every_thread_of_every_block_runs(s: &Session<'_>) -> Check {
    let n = 100_003;
    let out = s.zeros(n + 100)?;
    let args = Args::default().ptr(out).u32(n as u32).u32(9);
    s.launch_on(s.stream, "fill_index", (n as u32).div_ceil(256), 256, &args)?;
    let seen = s.read(out, n as usize + 100)?;
    for (i, word) in seen.iter().enumerate() {
        let expected = if i < n as usize { i as u32 + 9 } else { 0 };
        ensure!(*word == expected, "word {i} is {word}, not {expected}");
    }
    Ok(())
}

fn floats_are_added(s: &Session<'_>) -> Check {
    let n = 5000;
    let a: Vec<u32> = (0..n).map(|i| (i as f32 * 0.5).to_bits()).collect();
    let b: Vec<u32> = (0..n).map(|i| (1000.0 - i as f32).to_bits()).collect();
    let size = u64::from(n);
    let (da, db, dc) = (s.zeros(size)?, s.zeros(size)?, s.zeros(size)?);
    s.write(da, &a)?;
    s.write(db, &b)?;
    let args = Args::default().ptr(da).ptr(db).ptr(dc).u32(n);
    s.launch_on(s.stream, "vadd", n.div_ceil(128), 128, &args)?;
    for (i, bits) in s.read(dc, n as usize)?.into_iter().enumerate() {
        let (sum, expected) = (f32::from_bits(bits), 1000.0 - i as f32 * 0.5);
        ensure!(sum == expected, "{i}: {sum}, not {expected}");
    }
    Ok(())
}

fn three_dimensional_shapes_are_numbered_right(s: &Session<'_>) -> Check {
    let (grid, block) = ([3, 4, 5], [4, 3, 2]);
    let out = s.zeros(60 * 24)?;
    let args = Args::default().ptr(out);
    s.try_launch(s.stream, "shape", grid, block, |_| {}, &args)??;
    for (i, word) in s.read(out, 60 * 24)?.into_iter().enumerate() {
        let expected = (i / 24 * 1000 + i % 24) as u32;
        ensure!(word == expected, "{i}: {word}, not {expected}");
    }
    Ok(())
}

fn impossible_shapes_are_refused(s: &Session<'_>) -> Check {
    let shapes = [
        ([0, 1, 1], [1, 1, 1]),
        ([1, 0, 1], [1, 1, 1]),
        ([1, 1, 1], [0, 1, 1]),
        ([1, 1, 1], [1, 1, 0]),
        ([0x8000_0000, 1, 1], [1, 1, 1]),
        ([1, 65_536, 1], [1, 1, 1]),
        ([1, 1, 65_536], [1, 1, 1]),
        ([1, 1, 1], [2048, 1, 1]),
        ([1, 1, 1], [1, 1, 65]),
        ([1, 1, 1], [64, 64, 1]),
    ];
    for (grid, block) in shapes {
        let launch = s.try_launch(s.stream, "empty", grid, block, |_| {}, &Args::default())?;
        refused(
            launch,
            &[CuResult::InvalidValue],
            &format!("{grid:?} of {block:?}"),
        )?;
    }
    s.launch_on(s.stream, "empty", 1, 1024, &Args::default())?;
    s.gpu.stream_synchronize(s.stream)?;
    Ok(())
}

fn a_kernels_own_bound_is_kept(s: &Session<'_>) -> Check {
    let total = s.zeros(1)?;
    let args = Args::default().ptr(total);
    s.launch_on(s.stream, "at_most_64", 1, 64, &args)?;
    let launch = s.try_launch(s.stream, "at_most_64", [1; 3], [65, 1, 1], |_| {}, &args)?;
    let codes = [CuResult::InvalidValue, CuResult::LaunchOutOfResources];
    refused(launch, &codes, "65 threads")?;
    ensure!(s.read(total, 1)? == [64], "the refused launch ran");
    Ok(())
}

fn short_parameters_are_refused(s: &Session<'_>) -> Check {
    let short = Args::default().u32(1);
    let launch = s.try_launch(s.stream, "fill_index", [1; 3], [1; 3], |_| {}, &short)?;
    refused(launch, &[CuResult::InvalidValue], "four of sixteen bytes")
}

fn kilobytes_of_parameters_arrive(s: &Session<'_>) -> Check {
    let image = s.fixture.large_params();
    let module = s
        .gpu
        .module_load(s.context, &image, &ModuleOptions::default())?;
    let out = s.zeros(1)?;
    let mut args = Args::default().ptr(out);
    let mut block = vec![0_u8; 8192];
    for (at, value) in [(0, 1_u32), (4096, 20), (8188, 300)] {
        block[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    args.0.extend_from_slice(&block);
    let launch = Launch {
        module,
        kernel: 0,
        grid: [1; 3],
        block: [1; 3],
        dynamic_shared: 0,
        cooperative: false,
        params: &args.0,
    };
    s.gpu.launch(s.stream, &launch)?;
    let seen = s.read(out, 1)?;
    ensure!(seen == [321], "{seen:?}");
    Ok(())
}

fn barriers_and_static_shared_memory(s: &Session<'_>) -> Check {
    let out = s.zeros(40)?;
    s.launch_on(s.stream, "block_sum", 40, 256, &Args::default().ptr(out))?;
    let seen = s.read(out, 40)?;
    ensure!(seen == [256 * 257 / 2; 40], "{seen:?}");
    Ok(())
}

fn dynamic_shared_memory(s: &Session<'_>) -> Check {
    for n in [1_u32, 32, 100, 1024] {
        let out = s.zeros(u64::from(n))?;
        let args = Args::default().ptr(out).u32(n);
        let ask = |l: &mut Launch<'_>| l.dynamic_shared = n * 4;
        s.try_launch(s.stream, "reverse_dynamic", [1; 3], [n, 1, 1], ask, &args)??;
        let seen = s.read(out, n as usize)?;
        ensure!(
            seen == (0..n).rev().collect::<Vec<_>>(),
            "{n} threads: {seen:?}"
        );
    }
    Ok(())
}

fn all_of_the_shared_memory_can_be_had(s: &Session<'_>) -> Check {
    for bytes in [48 << 10, s.gpu.properties().max_shared_per_block] {
        let out = s.zeros(1)?;
        let args = Args::default().ptr(out).u32(bytes);
        let ask = |l: &mut Launch<'_>| l.dynamic_shared = bytes;
        s.try_launch(s.stream, "last_dynamic", [4, 1, 1], [32, 1, 1], ask, &args)??;
        let seen = s.read(out, 1)?;
        ensure!(seen == [77], "{bytes} bytes: {seen:?}");
    }
    Ok(())
}

fn too_much_shared_memory_is_refused(s: &Session<'_>) -> Check {
    let out = s.zeros(1)?;
    let bytes = s.gpu.properties().max_shared_per_block + 16;
    let args = Args::default().ptr(out).u32(bytes);
    let ask = |l: &mut Launch<'_>| l.dynamic_shared = bytes;
    let launch = s.try_launch(s.stream, "last_dynamic", [1; 3], [1; 3], ask, &args)?;
    let codes = [CuResult::InvalidValue, CuResult::LaunchOutOfResources];
    refused(launch, &codes, "more than a block can have")?;
    ensure!(s.read(out, 1)? == [0], "the refused launch ran");
    Ok(())
}

fn occupancy_is_at_least_one(s: &Session<'_>) -> Check {
    for (name, threads, shared) in [
        ("empty", 1, 0),
        ("empty", 1024, 0),
        ("block_sum", 256, 0),
        ("reverse_dynamic", 32, 40 << 10),
    ] {
        let blocks = s
            .gpu
            .occupancy(s.module, s.kernel(name)?, threads, shared)?;
        ensure!((1..=64).contains(&blocks), "{name}: {blocks}");
    }
    Ok(())
}

fn cooperative_grids_can_synchronize(s: &Session<'_>) -> Check {
    let per = s.gpu.occupancy(s.module, s.kernel("meet")?, 1, 0)?;
    let blocks = (per * s.gpu.properties().multiprocessors).min(48);
    for _ in 0..3 {
        let (counter, out) = (s.zeros(1)?, s.zeros(u64::from(blocks))?);
        let args = Args::default().ptr(counter).ptr(out);
        let ask = |l: &mut Launch<'_>| l.cooperative = true;
        s.try_launch(s.stream, "meet", [blocks, 1, 1], [1; 3], ask, &args)??;
        let seen = s.read(out, blocks as usize)?;
        ensure!(seen.iter().all(|word| *word == blocks), "{seen:?}");
    }
    Ok(())
}

fn cooperative_grids_that_do_not_fit_are_refused(s: &Session<'_>) -> Check {
    let per = s.gpu.occupancy(s.module, s.kernel("meet")?, 1, 0)?;
    let most = per * s.gpu.properties().multiprocessors;
    let args = Args::default().u64(0).u64(0);
    let ask = |l: &mut Launch<'_>| l.cooperative = true;
    let launch = s.try_launch(s.stream, "meet", [most + 1, 1, 1], [1; 3], ask, &args)?;
    refused(
        launch,
        &[CuResult::CooperativeLaunchTooLarge],
        "one block too many",
    )?;
    s.gpu.stream_synchronize(s.stream)?;
    Ok(())
}

fn parameters_are_copied_at_launch(s: &Session<'_>) -> Check {
    let at = s.zeros(1)?;
    let stream = s.own_stream()?;
    let hold = s.hold(stream)?;
    let mut args = Args::default().ptr(at).u32(41);
    s.launch_on(stream, "store_at", 1, 1, &args)?;
    args.0.fill(0xff);
    drop(hold);
    s.gpu.stream_synchronize(stream)?;
    let seen = s.peek(at, 1)?;
    ensure!(seen == [41], "{seen:?}");
    Ok(())
}
