//! A restored session for which no thread can be started.

use std::path::PathBuf;

use super::*;

/// Where workers of a daemon in `dir` look whether threads are to fail.
fn sign(dir: &Path) -> PathBuf {
    dir.join("run/worker/short")
}

/// Not a test of its own: a worker that gets no thread with a stack of 8 MiB where there is a file `short` beside its socket.
#[test]
#[ignore = "no test: the test below starts a daemon, which runs this (--exact short::worker --ignored) as the worker of a virtual GPU"]
fn worker() {
    let Some(environment) = Environment::read() else {
        return;
    };
    if environment.unwrap().socket.with_file_name("short").exists() {
        refuse_large_stacks();
    }
    mica_worker::run(&WorkerConfig::from_environment().unwrap()).unwrap();
}

/// From now on this thread and those that it starts get no memory for stacks of 8 MiB.
fn refuse_large_stacks() {
    const LEAST: u32 = 8 << 20;
    const MOST: u32 = LEAST + (64 << 10);
    let allow = libc::SECCOMP_RET_ALLOW;
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EAGAIN as u32;
    let load = |offset| (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let jump = |test, yes, no, value| (libc::BPF_JMP | test | libc::BPF_K, yes, no, value);
    // Offsets in `struct seccomp_data`: the number of the call, and its second and fourth argument.
    let program = [
        load(0),
        jump(libc::BPF_JEQ, 0, 8, libc::SYS_mmap as u32),
        load(28),
        jump(libc::BPF_JEQ, 0, 6, 0),
        load(24),
        jump(libc::BPF_JGE, 0, 4, LEAST),
        jump(libc::BPF_JGT, 3, 0, MOST),
        load(40),
        jump(libc::BPF_JSET, 0, 1, libc::MAP_STACK as u32),
        (libc::BPF_RET | libc::BPF_K, 0, 0, refuse),
        (libc::BPF_RET | libc::BPF_K, 0, 0, allow),
    ];
    let mut program = program.map(|(code, jt, jf, k)| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    });
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: The call takes numbers only.
    let done = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(done, 0);
    // SAFETY: The kernel copies the program, which lives until the end of this function.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter) };
    assert_eq!(done, 0);
    let refused = std::thread::Builder::new()
        .stack_size(LEAST as usize)
        .spawn(|| ());
    assert!(refused.is_err());
}

#[test]
fn a_session_for_which_no_thread_can_be_started_stays_in_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start_with(dir.path(), "short::worker");
    let created = control.create(&swappable("a")).unwrap();
    let client = connect_session(&environment(&created), "test").unwrap();
    client.call(&ContextCreate { flags: 0 }).unwrap();
    let file = snapshot(&control, &created).unwrap();
    std::fs::write(sign(dir.path()), "").unwrap();
    std::thread::scope(|scope| {
        let call = scope.spawn(|| client.call(&ContextCreate { flags: 0 }).map(drop));
        restore(&control, &created, &file).unwrap();
        // Its worker ends when the program has come back to it.
        eventually("it is parked again", || {
            assert!(
                !call.is_finished(),
                "the program was told that its session has ended"
            );
            control.get("a").unwrap().state == VgpuState::Snapshotted
        });
        std::fs::remove_file(sign(dir.path())).unwrap();
        eventually("it is restored again", || {
            restore(&control, &created, &file).is_ok()
        });
        call.join().unwrap().unwrap();
    });
}
