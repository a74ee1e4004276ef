//! How the device's threads behave towards the system's scheduler and the program they live in.

/// Lets threads that wake for a moment go before this one: those that submit work and hand over
/// leases. It gets no less time for that, only in longer pieces. A program that was started with a policy of its own
/// (`chrt`) keeps that.
pub(crate) fn prefer_throughput() {
    // SAFETY: a query about the calling thread.
    if unsafe { libc::sched_getscheduler(0) } != libc::SCHED_OTHER {
        return;
    }
    const SLICE_NS: u64 = 20_000_000;
    #[repr(C)]
    #[derive(Default)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime_ns: u64,
        deadline_ns: u64,
        period_ns: u64,
    }
    // SAFETY: a query about the calling thread.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: libc::SCHED_BATCH as u32,
        nice,
        runtime_ns: SLICE_NS,
        ..Attributes::default()
    };
    // SAFETY: the kernel reads as many bytes as the first field says; older ones ignore the slice.
    // A refusal costs speed only.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// A program's signals are for its own threads.
pub(crate) fn block_signals() {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: fills the set, then changes this thread's mask only. The faults themselves stay
    // unblocked: blocked ones would end the program.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        for signal in [
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGILL,
            libc::SIGTRAP,
        ] {
            libc::sigdelset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
    }
}
