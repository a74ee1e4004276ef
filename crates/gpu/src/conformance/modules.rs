//! Modules: what they hold, what is refused.

use mica_cuda_abi::CuResult;

use super::session::Args;
use super::{Check, Session, case_list, ensure, refused};
use crate::ModuleOptions;

case_list![
    kernels_are_described,
    bad_images_are_refused,
    variables_have_addresses_and_values,
    the_host_can_write_variables_and_constants,
    modules_are_independent,
    unloaded_modules_are_gone,
];

fn kernels_are_described(s: &Session<'_>) -> Check {
    let info = s.gpu.module_info(s.module)?;
    // A device may describe a kernel in full only when asked for that one.
    let find = |name: &str| {
        let index = info.kernels.iter().position(|k| k.name == name)?;
        s.gpu.kernel_description(s.module, index as u32).ok()
    };
    let Some(vadd) = find("vadd") else {
        return Err(super::Problem::Wrong("no vadd".to_owned()));
    };
    let params: Vec<_> = vadd.params.iter().map(|p| (p.offset, p.size)).collect();
    ensure!(params == [(0, 8), (8, 8), (16, 8), (24, 4)], "{params:?}");
    ensure!(vadd.max_threads >= 1024 && vadd.registers >= 1, "{vadd:?}");
    ensure!(vadd.static_shared == 0, "{vadd:?}");
    ensure!(vadd.ptx_version > 0 && vadd.binary_version > 0, "{vadd:?}");
    let sum = find("block_sum").map(|k| k.static_shared);
    ensure!(sum.is_some_and(|bytes| bytes >= 1024), "block_sum: {sum:?}");
    let bounded = find("at_most_64").map(|k| k.max_threads);
    ensure!(bounded == Some(64), "at_most_64: {bounded:?}");
    Ok(())
}

fn bad_images_are_refused(s: &Session<'_>) -> Check {
    let codes = [
        CuResult::InvalidImage,
        CuResult::InvalidPtx,
        CuResult::InvalidValue,
        CuResult::NoBinaryForGpu,
        CuResult::UnsupportedPtxVersion,
        CuResult::InvalidSource,
    ];
    let images: [(&str, &[u8]); 5] = [
        ("noise", b"this is no program at all\0"),
        ("no body", b".version 6.4\n.target sm_75\n.address_size 64\n.visible .entry broken(\0"),
        (
            "an unknown instruction",
            b".version 6.4\n.target sm_75\n.address_size 64\n.visible .entry k() { frob.u32 %r1; ret; }\0",
        ),
        (
            "an undeclared register",
            b".version 6.4\n.target sm_75\n.address_size 64\n.visible .entry k() { mov.u32 %r1, 1; ret; }\0",
        ),
        ("a cut-off ELF", b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\xbe\0"),
    ];
    for (what, image) in images {
        let result = s
            .gpu
            .module_load(s.context, image, &ModuleOptions::default());
        refused(result, &codes, what)?;
    }
    s.launch_on(s.stream, "empty", 1, 1, &Args::default())?;
    s.gpu.stream_synchronize(s.stream)?;
    Ok(())
}

fn address_of(s: &Session<'_>, name: &str) -> Result<crate::DevicePtr, super::Problem> {
    let info = s.gpu.module_info(s.module)?;
    let found = info.globals.iter().find(|g| g.name == name);
    match found {
        Some(global) if global.bytes >= 4 => Ok(global.address),
        other => Err(super::Problem::Wrong(format!("variable {name}: {other:?}"))),
    }
}

fn variables_have_addresses_and_values(s: &Session<'_>) -> Check {
    let (counter, scale) = (address_of(s, "counter")?, address_of(s, "scale")?);
    ensure!(
        s.read(counter, 1)? == [5],
        "the initial value of a variable"
    );
    ensure!(s.read(scale, 1)? == [3], "the initial value of a constant");
    let link = s.read(address_of(s, "counter_address")?, 2)?;
    let link = u64::from(link[0]) | u64::from(link[1]) << 32;
    ensure!(link == counter.0, "{link:#x} is not {counter:?}");
    let out = s.zeros(1)?;
    for expected in [15, 18, 21] {
        s.launch_on(s.stream, "variables", 1, 1, &Args::default().ptr(out))?;
        let seen = s.read(out, 1)?;
        ensure!(seen == [expected], "{seen:?}, not {expected}");
    }
    ensure!(
        s.read(counter, 1)? == [8],
        "the kernel's writes are not seen"
    );
    Ok(())
}

fn the_host_can_write_variables_and_constants(s: &Session<'_>) -> Check {
    s.write(address_of(s, "counter")?, &[100])?;
    s.write(address_of(s, "scale")?, &[7])?;
    let out = s.zeros(1)?;
    s.launch_on(s.stream, "variables", 1, 1, &Args::default().ptr(out))?;
    let seen = s.read(out, 1)?;
    ensure!(seen == [700], "{seen:?}");
    Ok(())
}

fn modules_are_independent(s: &Session<'_>) -> Check {
    let image = s.fixture.kernels();
    let second = s
        .gpu
        .module_load(s.context, &image, &ModuleOptions::default())?;
    s.write(address_of(s, "counter")?, &[100])?;
    let info = s.gpu.module_info(second)?;
    let theirs = info.globals.iter().find(|g| g.name == "counter");
    let Some(theirs) = theirs else {
        return Err(super::Problem::Wrong("no counter".to_owned()));
    };
    ensure!(
        theirs.address != address_of(s, "counter")?,
        "they share a variable"
    );
    ensure!(
        s.read(theirs.address, 1)? == [5],
        "one sees the other's write"
    );
    s.gpu.module_unload(second)?;
    Ok(())
}

fn unloaded_modules_are_gone(s: &Session<'_>) -> Check {
    let image = s.fixture.kernels();
    let second = s
        .gpu
        .module_load(s.context, &image, &ModuleOptions::default())?;
    s.gpu.module_unload(second)?;
    let gone = [CuResult::InvalidHandle];
    refused(s.gpu.module_info(second), &gone, "its description")?;
    refused(s.gpu.module_unload(second), &gone, "unloading twice")?;
    let launch = s.try_launch(
        s.stream,
        "empty",
        [1; 3],
        [1; 3],
        |launch| launch.module = second,
        &Args::default(),
    )?;
    refused(launch, &gone, "a launch")
}
