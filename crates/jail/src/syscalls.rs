//! The system calls a worker may make.
//!
//! An allow list: whatever is not named fails with "operation not permitted". Arguments are compared where a call
//! can do more than a worker needs: new threads but no processes, unix sockets but no others, no executable pages
//! but those of compiled code, the driver's `ioctl`s but no others.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Width, SeccompCmpOp as Compare,
    SeccompCondition as Condition, SeccompFilter, SeccompRule as Rule, TargetArch,
};

use crate::driver_requests::DRIVER_REQUESTS;
use crate::{Jail, Profile};

/// Calls that need no look at their arguments.
const PLAIN: &[i64] = &[
    // Descriptors and files: which files is Landlock's and the root directory's business.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_close,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_access,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_getcwd,
    libc::SYS_openat,
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_getdents64,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_utimensat,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_flock,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fchmod,
    libc::SYS_umask,
    libc::SYS_dup,
    libc::SYS_copy_file_range,
    libc::SYS_memfd_create,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    // Memory; pages that execute are compared below.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_msync,
    libc::SYS_brk,
    libc::SYS_membarrier,
    // Sockets that exist; new ones are compared below.
    libc::SYS_connect,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    // Threads, signals of its own, time.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_getpriority,
    libc::SYS_getcpu,
    libc::SYS_getrusage,
    libc::SYS_times,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_time,
];

/// Commands of `fcntl`: copies and flags of descriptors, locks, seals of memory files.
const FCNTL: &[i32] = &[
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_GETLK,
    libc::F_SETLK,
    libc::F_SETLKW,
    libc::F_OFD_GETLK,
    libc::F_OFD_SETLK,
    libc::F_OFD_SETLKW,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
];

/// Further calls of the driver of an NVIDIA card.
const DRIVER: &[i64] = &[
    libc::SYS_sched_setaffinity,
    libc::SYS_get_mempolicy,
    libc::SYS_mbind,
    libc::SYS_mlock,
    libc::SYS_munlock,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_getdents,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_sched_get_priority_min,
    libc::SYS_sched_get_priority_max,
    // Folders of what the driver has compiled.
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_rmdir,
    // cuInit listens on a socket without a file, which lies in the network namespace, and fails where it cannot.
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
];

/// Further calls of a process that serves a connection of the network: a folder for each client's modules.
const CONNECTION: &[i64] = &[libc::SYS_mkdir, libc::SYS_mkdirat];

/// Restricts every thread of this process and those it starts.
pub(crate) fn restrict(jail: &Jail) -> io::Result<()> {
    let refused = |error: seccompiler::BackendError| io::Error::other(error);
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(refused)?;
    // glibc starts threads with clone3, whose flags lie in memory where no filter can compare them, and falls
    // back to clone where it is told that there is no such call.
    let without_clone3 = SeccompFilter::new(
        BTreeMap::from([(libc::SYS_clone3, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS as u32),
        architecture,
    )
    .map_err(refused)?;
    let allowed = SeccompFilter::new(
        rules(jail).map_err(refused)?,
        SeccompAction::Errno(libc::EPERM as u32),
        SeccompAction::Allow,
        architecture,
    )
    .map_err(refused)?;
    for filter in [without_clone3, allowed] {
        let program: BpfProgram = filter.try_into().map_err(refused)?;
        seccompiler::apply_filter_all_threads(&program).map_err(io::Error::other)?;
    }
    Ok(())
}

type Rules = BTreeMap<i64, Vec<Rule>>;

fn rules(jail: &Jail) -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = PLAIN.iter().map(|call| (*call, Vec::new())).collect();
    let further = match jail.profile {
        Profile::Software => &[],
        Profile::Nvidia => DRIVER,
        Profile::Connection => CONNECTION,
    };
    rules.extend(further.iter().map(|call| (*call, Vec::new())));
    let word = |index, value: u64| Condition::new(index, Width::Dword, Compare::Eq, value);
    let masked = |index, mask: i32, value: i32| {
        let mask = Compare::MaskedEq(u64::from(mask as u32));
        Condition::new(index, Width::Dword, mask, u64::from(value as u32))
    };
    let any = |conditions: Vec<Condition>| -> Result<Vec<Rule>, seccompiler::BackendError> {
        conditions.into_iter().map(|c| Rule::new(vec![c])).collect()
    };
    rules.insert(
        libc::SYS_clone,
        any(vec![masked(0, libc::CLONE_THREAD, libc::CLONE_THREAD)?])?,
    );
    let unix = || any(vec![word(0, libc::AF_UNIX as u64)?]);
    rules.insert(libc::SYS_socket, unix()?);
    rules.insert(libc::SYS_socketpair, unix()?);
    // Signals to its own threads: abort, and the hold on threads that run kernels. The number is the one inside.
    let own = u64::from(std::process::id());
    rules.insert(libc::SYS_tgkill, any(vec![word(0, own)?])?);
    let prctl = [
        libc::PR_SET_NAME,
        libc::PR_GET_NAME,
        libc::PR_SET_VMA,
        libc::PR_GET_DUMPABLE,
        libc::PR_GET_SECCOMP,
        libc::PR_CAPBSET_READ,
    ];
    let options: Result<_, _> = prctl.into_iter().map(|o| word(0, o as u64)).collect();
    rules.insert(libc::SYS_prctl, any(options?)?);
    // Not those that send signals when a descriptor is ready, or hold up others who open a file.
    let commands: Result<_, _> = FCNTL.iter().map(|c| word(1, *c as u64)).collect();
    rules.insert(libc::SYS_fcntl, any(commands?)?);
    // Limits may be read, of this process alone, and not changed.
    let read_limit = vec![
        Condition::new(0, Width::Dword, Compare::Eq, 0)?,
        Condition::new(2, Width::Qword, Compare::Eq, 0)?,
    ];
    rules.insert(libc::SYS_prlimit64, vec![Rule::new(read_limit)?]);
    rules.insert(libc::SYS_mmap, mmap(jail)?);
    rules.insert(libc::SYS_mprotect, mprotect(jail)?);
    rules.insert(libc::SYS_ioctl, ioctl(jail)?);
    Ok(rules)
}

fn prot(index: u8, mask: i32, value: i32) -> Result<Condition, seccompiler::BackendError> {
    let compare = Compare::MaskedEq(mask as u64);
    Condition::new(index, Width::Dword, compare, value as u64)
}

/// New mappings do not execute. The driver of a card loads libraries: files, never memory that was written.
fn mmap(jail: &Jail) -> Result<Vec<Rule>, seccompiler::BackendError> {
    let mut rules = vec![Rule::new(vec![prot(2, libc::PROT_EXEC, 0)?])?];
    if jail.profile == Profile::Nvidia {
        rules.push(Rule::new(vec![
            prot(2, libc::PROT_EXEC | libc::PROT_WRITE, libc::PROT_EXEC)?,
            prot(3, libc::MAP_ANONYMOUS | libc::MAP_SHARED, 0)?,
        ])?);
    }
    Ok(rules)
}

/// Pages become executable only where compiled code lies, and are not writable then.
fn mprotect(jail: &Jail) -> Result<Vec<Rule>, seccompiler::BackendError> {
    let mut rules = vec![Rule::new(vec![prot(2, libc::PROT_EXEC, 0)?])?];
    let executes = || prot(2, libc::PROT_EXEC | libc::PROT_WRITE, libc::PROT_EXEC);
    if let Some(code) = &jail.code {
        let bytes = (code.end - code.start) as u64;
        rules.push(Rule::new(vec![
            executes()?,
            Condition::new(0, Width::Qword, Compare::Ge, code.start as u64)?,
            Condition::new(0, Width::Qword, Compare::Lt, code.end as u64)?,
            Condition::new(1, Width::Qword, Compare::Le, bytes)?,
        ])?);
    }
    if jail.code.is_none() && jail.profile == Profile::Software {
        rules.push(Rule::new(vec![executes()?])?);
    }
    Ok(rules)
}

/// `ioctl`s: switching a descriptor to and from waiting; those that the driver makes on its own files.
fn ioctl(jail: &Jail) -> Result<Vec<Rule>, seccompiler::BackendError> {
    let equal = |value: u64| Condition::new(1, Width::Dword, Compare::Eq, value);
    let mut rules = vec![
        Rule::new(vec![equal(libc::FIONBIO)?])?,
        Rule::new(vec![equal(libc::FIOCLEX)?])?,
    ];
    if jail.profile == Profile::Nvidia {
        for listed in DRIVER_REQUESTS {
            let (mask, value) = listed.number.compared();
            let compare = Compare::MaskedEq(mask.into());
            let condition = Condition::new(1, Width::Dword, compare, value.into())?;
            rules.push(Rule::new(vec![condition])?);
        }
    }
    Ok(rules)
}
