//! Suspending, cancelling, measuring; host memory in kernels.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use mica_cuda_abi::CuResult;

use super::session::Args;
use super::{Check, Problem, Session, case_list, ensure, possible, refused};
use crate::HostSpan;

case_list![
    a_running_kernel_can_be_suspended_and_resumed,
    suspended_contexts_start_nothing,
    cancel_ends_running_and_queued_kernels,
    cancel_of_one_stream_leaves_the_others,
    gpu_time_grows_with_work,
    registered_host_memory_is_seen_by_kernels,
];

fn a_running_kernel_can_be_suspended_and_resumed(s: &Session<'_>) -> Check {
    let (counter, flag) = (s.zeros(1)?, s.zeros(1)?);
    let stream = s.own_stream()?;
    s.launch_on(
        stream,
        "spin",
        1,
        1,
        &Args::default().ptr(counter).ptr(flag),
    )?;
    // Copies of a suspended context may wait.
    let observer = s.another()?;
    let result = suspended_while_spinning(s, &observer, counter);
    observer.close();
    s.write(flag, &[1])?;
    s.gpu.stream_synchronize(stream)?;
    result
}

fn suspended_while_spinning(
    s: &Session<'_>,
    observer: &Session<'_>,
    counter: crate::DevicePtr,
) -> Check {
    s.wait_for_word(counter, |count| count > 0)?;
    possible(s.gpu.context_suspend(s.context), "suspend")?;
    let before = observer.peek(counter, 1)?;
    std::thread::sleep(std::time::Duration::from_millis(10));
    let after = observer.peek(counter, 1)?;
    s.gpu.context_resume(s.context)?;
    ensure!(before == after, "it ran on: {before:?} then {after:?}");
    s.wait_for_word(counter, |count| count > after[0])
}

fn suspended_contexts_start_nothing(s: &Session<'_>) -> Check {
    let total = s.zeros(1)?;
    let observer = s.another()?;
    possible(s.gpu.context_suspend(s.context), "suspend")?;
    let stream = s.own_stream()?;
    s.launch_on(stream, "count", 1, 32, &Args::default().ptr(total))?;
    std::thread::sleep(std::time::Duration::from_millis(5));
    let early = observer.peek(total, 1);
    observer.close();
    s.gpu.context_resume(s.context)?;
    s.gpu.stream_synchronize(stream)?;
    ensure!(early? == [0], "it ran while suspended");
    ensure!(s.peek(total, 1)? == [32], "it was lost");
    Ok(())
}

fn cancel_ends_running_and_queued_kernels(s: &Session<'_>) -> Check {
    // A device that cannot cancel says so before an endless kernel is started.
    possible(s.gpu.cancel(s.context, None), "cancel")?;
    let (counter, flag, total) = (s.zeros(1)?, s.zeros(1)?, s.zeros(1)?);
    let stream = s.own_stream()?;
    s.launch_on(
        stream,
        "spin",
        4,
        1,
        &Args::default().ptr(counter).ptr(flag),
    )?;
    s.launch_on(stream, "count", 1, 1, &Args::default().ptr(total))?;
    s.wait_for_word(counter, |count| count > 0)?;
    let count = s.gpu.cancel(s.context, None)?;
    ensure!(count == 2, "{count} cancelled");
    s.gpu.context_synchronize(s.context)?;
    ensure!(s.peek(total, 1)? == [0], "the queued kernel ran");
    s.launch_on(stream, "count", 1, 1, &Args::default().ptr(total))?;
    s.gpu.stream_synchronize(stream)?;
    ensure!(s.peek(total, 1)? == [1], "later work does not run");
    Ok(())
}

fn cancel_of_one_stream_leaves_the_others(s: &Session<'_>) -> Check {
    possible(s.gpu.cancel(s.context, None), "cancel")?;
    let (counter, flag, total) = (s.zeros(1)?, s.zeros(1)?, s.zeros(1)?);
    let (a, b) = (s.own_stream()?, s.own_stream()?);
    let hold = s.hold(b)?;
    s.launch_on(a, "spin", 1, 1, &Args::default().ptr(counter).ptr(flag))?;
    s.launch_on(b, "count", 1, 1, &Args::default().ptr(total))?;
    let count = s.gpu.cancel(s.context, Some(a))?;
    ensure!(count == 1, "{count} cancelled");
    s.gpu.stream_synchronize(a)?;
    drop(hold);
    s.gpu.stream_synchronize(b)?;
    ensure!(
        s.peek(total, 1)? == [1],
        "the other stream's kernel was lost"
    );
    let foreign = s.another()?;
    let result = s.gpu.cancel(s.context, Some(foreign.stream));
    refused(
        result,
        &[CuResult::InvalidHandle],
        "another context's stream",
    )?;
    foreign.close();
    Ok(())
}

fn gpu_time_grows_with_work(s: &Session<'_>) -> Check {
    let Some(before) = s.gpu.context_gpu_time_ns(s.context) else {
        return Err(Problem::Skipped(
            "the device does not tell GPU time".to_owned(),
        ));
    };
    let out = s.zeros(1 << 20)?;
    let args = Args::default().ptr(out).u32(1 << 20).u32(0);
    s.launch_on(s.stream, "fill_index", 1 << 12, 256, &args)?;
    s.gpu.context_synchronize(s.context)?;
    let after = s.gpu.context_gpu_time_ns(s.context);
    ensure!(
        after.is_some_and(|after| after > before),
        "{before} then {after:?}"
    );
    let again = s.gpu.context_gpu_time_ns(s.context);
    ensure!(
        again == after,
        "time passes without work: {after:?} then {again:?}"
    );
    Ok(())
}

fn registered_host_memory_is_seen_by_kernels(s: &Session<'_>) -> Check {
    let bytes = 64 << 10;
    // SAFETY: a valid name; the result is checked.
    let fd = unsafe { libc::memfd_create(c"mica-conformance".as_ptr(), 0) };
    ensure!(fd >= 0, "no memory file");
    // SAFETY: a new descriptor that nobody else owns.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the file is ours; a new mapping of it, checked below.
    let host = unsafe {
        libc::ftruncate(file.as_raw_fd(), bytes);
        libc::mmap(
            std::ptr::null_mut(),
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    ensure!(host != libc::MAP_FAILED, "no mapping");
    let result = registered(s, &file, host.cast(), bytes as u64);
    // SAFETY: unregistered by now, or about to go with the context.
    unsafe { libc::munmap(host, bytes as usize) };
    result
}

fn registered(s: &Session<'_>, file: &OwnedFd, host: *mut u32, bytes: u64) -> Check {
    // SAFETY: mapped until after this function; kernels and this thread take turns.
    let at = unsafe {
        let span = HostSpan::new(host.cast(), bytes);
        s.gpu.host_register(s.context, span, Some(file.as_fd()), 0)
    };
    let at = possible(at, "registering host memory")?;
    // SAFETY: the first word of the mapping.
    unsafe { host.write_volatile(10) };
    s.launch_on(s.stream, "count", 1, 32, &Args::default().ptr(at))?;
    s.gpu.stream_synchronize(s.stream)?;
    // SAFETY: as above.
    let seen = unsafe { host.read_volatile() };
    ensure!(seen == 42, "the host sees {seen}");
    s.gpu.host_unregister(s.context, at)?;
    let codes = [CuResult::HostMemoryNotRegistered, CuResult::InvalidValue];
    refused(s.gpu.host_unregister(s.context, at), &codes, "twice")
}
