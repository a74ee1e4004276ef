//! Faults: the right code, sticky, and nobody else's problem.

use mica_cuda_abi::CuResult;

use super::session::Args;
use super::{Check, Problem, Session, case_list, ensure};
use crate::GpuError;

case_list![
    ; faulting:
    a_wild_write_is_an_illegal_address,
    a_wild_read_is_an_illegal_address,
    freed_memory_is_an_illegal_address,
    a_misaligned_access_is_told_apart,
    a_trap_is_a_failed_launch,
    a_fault_is_sticky,
    a_fault_stays_in_its_context,
    work_behind_a_fault_does_not_hang,
];

/// Runs what faults and gives the context's error.
fn fault(s: &Session<'_>, kernel: &str, args: &Args) -> Result<GpuError, Problem> {
    s.launch_on(s.stream, kernel, 1, 1, args)?;
    match s.gpu.context_synchronize(s.context) {
        Err(error) => Ok(error),
        Ok(()) => Err(Problem::Wrong(format!("{kernel} did not fault"))),
    }
}

fn a_wild_write_is_an_illegal_address(s: &Session<'_>) -> Check {
    let error = fault(s, "store_at", &Args::default().u64(0x10).u32(1))?;
    ensure!(error.code == CuResult::IllegalAddress, "{error}");
    Ok(())
}

fn a_wild_read_is_an_illegal_address(s: &Session<'_>) -> Check {
    let out = s.zeros(1)?;
    let error = fault(
        s,
        "load_from",
        &Args::default().u64(0x7fff_ffff_f000).ptr(out),
    )?;
    ensure!(error.code == CuResult::IllegalAddress, "{error}");
    Ok(())
}

fn freed_memory_is_an_illegal_address(s: &Session<'_>) -> Check {
    let at = s.alloc(64 << 20)?;
    s.gpu.memory_free(s.context, at)?;
    let error = fault(s, "store_at", &Args::default().ptr(at).u32(1))?;
    ensure!(error.code == CuResult::IllegalAddress, "{error}");
    Ok(())
}

fn a_misaligned_access_is_told_apart(s: &Session<'_>) -> Check {
    let at = s.zeros(16)?;
    let error = fault(s, "store_at", &Args::default().ptr(at.offset(1)).u32(1))?;
    ensure!(error.code == CuResult::MisalignedAddress, "{error}");
    Ok(())
}

fn a_trap_is_a_failed_launch(s: &Session<'_>) -> Check {
    let error = fault(s, "trapping", &Args::default())?;
    let codes = [CuResult::LaunchFailed, CuResult::IllegalInstruction];
    ensure!(codes.contains(&error.code), "{error}");
    Ok(())
}

fn a_fault_is_sticky(s: &Session<'_>) -> Check {
    ensure!(
        s.gpu.context_fault(s.context).is_none(),
        "faulty from the start"
    );
    s.gpu.context_usable(s.context)?;
    let (stream, event) = (s.own_stream()?, s.event()?);
    let code = fault(s, "store_at", &Args::default().u64(0x10).u32(1))?.code;
    ensure!(code.is_sticky(), "{code:?}");
    let known = s.gpu.context_fault(s.context).map(|error| error.code);
    ensure!(known == Some(code), "{known:?}");
    let results = [
        s.gpu.context_synchronize(s.context).err(),
        s.gpu.context_usable(s.context).err(),
        s.gpu.stream_synchronize(stream).err(),
        s.gpu.event_record(event, stream).err(),
        s.alloc(4096).err(),
        s.gpu.stream_query(stream).err(),
    ];
    for (index, result) in results.into_iter().enumerate() {
        let told = result.map(|error| error.code);
        ensure!(told == Some(code), "call {index} says {told:?}");
    }
    let launch = s.try_launch(stream, "empty", [1; 3], [1; 3], |_| {}, &Args::default())?;
    ensure!(
        launch.is_err_and(|e| e.code == code),
        "a launch goes through"
    );
    s.gpu.context_destroy(s.context)?;
    Ok(())
}

fn a_fault_stays_in_its_context(s: &Session<'_>) -> Check {
    if !s.fixture.contains_faults() {
        let why = "a fault ends the process's use of the device";
        return Err(Problem::Skipped(why.to_owned()));
    }
    let other = s.another()?;
    let total = other.zeros(1)?;
    other.launch_on(other.stream, "count", 1, 32, &Args::default().ptr(total))?;
    let error = fault(s, "store_at", &Args::default().u64(0x10).u32(1))?;
    ensure!(error.code == CuResult::IllegalAddress, "{error}");
    other.launch_on(other.stream, "count", 1, 32, &Args::default().ptr(total))?;
    let seen = other.read(total, 1)?;
    ensure!(seen == [64], "{seen:?}");
    s.gpu.context_destroy(s.context)?;
    let fresh = s.another()?;
    let total = fresh.zeros(1)?;
    fresh.launch_on(fresh.stream, "count", 1, 32, &Args::default().ptr(total))?;
    ensure!(fresh.read(total, 1)? == [32], "a new context does not work");
    fresh.close();
    other.close();
    Ok(())
}

fn work_behind_a_fault_does_not_hang(s: &Session<'_>) -> Check {
    let total = s.zeros(1)?;
    let (a, b, event) = (s.own_stream()?, s.own_stream()?, s.event()?);
    let hold = s.hold(a)?;
    s.launch_on(a, "store_at", 1, 1, &Args::default().u64(0x10).u32(1))?;
    for _ in 0..20 {
        s.launch_on(a, "count", 1, 1, &Args::default().ptr(total))?;
    }
    s.gpu.event_record(event, a)?;
    s.gpu.stream_wait_event(b, event)?;
    s.launch_on(b, "count", 1, 1, &Args::default().ptr(total))?;
    drop(hold);
    let told = s.gpu.stream_synchronize(b).err().map(|error| error.code);
    ensure!(told == Some(CuResult::IllegalAddress), "{told:?}");
    let told = s.gpu.context_synchronize(s.context).err();
    ensure!(told.is_some(), "the context says it is well");
    Ok(())
}
