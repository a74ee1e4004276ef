//! A worker that tries to get out: confined as every worker is, it makes the system calls that a hostile tenant
//! would make after a hole in the compiler, and tells the daemon's event log which of them were permitted.
//!
//! `crates/worker/tests/jail.rs` runs it as `worker_command` and reads the log.

use std::ffi::{CStr, CString};
use std::os::fd::AsRawFd;

use mica_limits::HostLink;
use mica_wire::host::message::Severity;

/// Something tried: its name, and what the system said; 0 or more is success.
struct Attempt<'a> {
    link: &'a HostLink,
}

impl Attempt<'_> {
    /// Reports one attempt.
    fn tell(&self, name: &str, result: i64) {
        let errno = std::io::Error::last_os_error();
        let text = match result {
            0.. => format!("probe: PERMITTED {name}"),
            _ => format!("probe: refused {name}: {errno}"),
        };
        self.link.note(Severity::Info, &text);
    }

    /// Makes a system call.
    fn call(&self, name: &str, number: i64, arguments: [usize; 6]) {
        let [a, b, c, d, e, f] = arguments;
        // SAFETY: the arguments are numbers and pointers to memory that outlives the call; what the call does if it
        // is permitted is the test's failure.
        let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
        self.tell(name, result);
    }

    fn open(&self, path: &str, flags: i32) {
        let Ok(name) = CString::new(path) else { return };
        let arguments = [
            libc::AT_FDCWD as usize,
            name.as_ptr() as usize,
            flags as usize,
            0o600,
            0,
            0,
        ];
        self.call(
            &format!("open {path} flags {flags:#x}"),
            libc::SYS_openat,
            arguments,
        );
    }
}

/// A number in the environment of the probe.
fn variable(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

fn main() {
    let config = mica_worker::WorkerConfig::from_environment().expect("a worker's environment");
    let daemon = variable("PROBE_DAEMON_PID").unwrap_or(1);
    let inherited = variable("PROBE_INHERITED").expect("a descriptor from outside");
    let link = mica_worker::join_confined(&config).expect("a confined worker");
    let attempt = Attempt { link: &link };
    files(&attempt);
    attempt.call(
        "use a folder that was left open",
        libc::SYS_fcntl,
        [inherited, libc::F_GETFD as usize, 0, 0, 0, 0],
    );
    sockets(&attempt, &config.environment.socket);
    processes(&attempt, daemon);
    privileges(&attempt);
    kernel(&attempt);
    memory(&attempt);
    needed(&link, config.nvidia);
    // False words about the confinement; the test looks at what the daemon shows.
    link.confined(0, 1, "a false word");
    link.note(Severity::Info, "probe: done");
    // The test still asks what confines this worker.
    std::thread::sleep(std::time::Duration::from_secs(3));
}

/// What a worker must still be able to do.
fn needed(link: &HostLink, nvidia: bool) {
    let tell = |name: &str, done: std::io::Result<()>| {
        if let Err(error) = done {
            link.note(Severity::Info, &format!("probe: UNABLE to {name}: {error}"));
        }
    };
    tell(
        "read its own memory map",
        std::fs::read("/proc/self/maps").map(drop),
    );
    match nvidia {
        // As the driver does, which fails where it cannot.
        true => {
            tell(
                "name a thread",
                std::fs::write("/proc/self/task/1/comm", "probe"),
            );
            let (pipe, _other) = std::io::pipe().expect("a pipe");
            for listed in mica_jail::DRIVER_REQUESTS {
                let request = match listed.number {
                    mica_jail::Number::Manager(number) => 0xc010_4600 | u32::from(number),
                    mica_jail::Number::Managed(request) => request,
                };
                // The pipe itself must be what refuses.
                let error = request_of(pipe.as_raw_fd(), request);
                if error.raw_os_error() != Some(libc::ENOTTY) {
                    tell(&format!("make the request {}", listed.name), Err(error));
                }
            }
        }
        false => {
            let cache = mica_backend_software::kernel_cache();
            let kept = cache.and_then(|cache| {
                cache.save("probe", b"code");
                cache.load("probe")
            });
            let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
            let kept = kept.filter(|bytes| bytes == b"code");
            tell("keep a kernel", kept.map(drop).ok_or_else(missing));
        }
    }
}

fn files(attempt: &Attempt<'_>) {
    // Whoever could write there could fill the disk.
    let kernels = mica_backend_software::kernel_cache_folder().unwrap_or_default();
    for path in [kernels.join("more"), kernels.clone()] {
        let path = path.display().to_string();
        attempt.open(&path, libc::O_CREAT | libc::O_RDWR);
        attempt.open(&path, libc::O_TMPFILE | libc::O_RDWR);
        attempt.open(&path, libc::O_RDONLY);
    }
    for path in [
        "/etc/passwd",
        "/etc/shadow",
        "/proc/sys/kernel/hostname",
        "/dev/mem",
        "/dev/kvm",
        "/dev/null",
    ] {
        attempt.open(path, libc::O_RDONLY);
    }
    for path in ["/dev/nvidiactl", "/dev/fuse", "/proc/self/mem"] {
        attempt.open(path, libc::O_RDWR);
    }
    for path in ["/probe", "/tmp/probe", "/proc/self/comm", "/dev/shm/probe"] {
        attempt.open(path, libc::O_WRONLY | libc::O_CREAT);
    }
    let at = libc::AT_FDCWD as usize;
    let (root, name): (&CStr, &CStr) = (c"/", c"/probe");
    attempt.call(
        "mkdir /probe",
        libc::SYS_mkdirat,
        [at, name.as_ptr() as usize, 0o700, 0, 0, 0],
    );
    let device = [
        at,
        name.as_ptr() as usize,
        (libc::S_IFCHR | 0o600) as usize,
        0x0101,
        0,
        0,
    ];
    attempt.call("mknod /probe", libc::SYS_mknodat, device);
    attempt.call(
        "symlink",
        libc::SYS_symlinkat,
        [root.as_ptr() as usize, at, name.as_ptr() as usize, 0, 0, 0],
    );
    attempt.call(
        "chroot",
        libc::SYS_chroot,
        [root.as_ptr() as usize, 0, 0, 0, 0, 0],
    );
    attempt.call(
        "umount",
        libc::SYS_umount2,
        [
            root.as_ptr() as usize,
            libc::MNT_DETACH as usize,
            0,
            0,
            0,
            0,
        ],
    );
    let tmpfs = c"tmpfs".as_ptr() as usize;
    attempt.call(
        "mount",
        libc::SYS_mount,
        [tmpfs, root.as_ptr() as usize, tmpfs, 0, 0, 0],
    );
    attempt.call(
        "open_tree",
        libc::SYS_open_tree,
        [at, root.as_ptr() as usize, 1, 0, 0, 0],
    );
    attempt.call(
        "pivot_root",
        libc::SYS_pivot_root,
        [root.as_ptr() as usize, root.as_ptr() as usize, 0, 0, 0, 0],
    );
    attempt.call("inotify", libc::SYS_inotify_init1, [0; 6]);
    let handle = [0_u64; 20];
    attempt.call(
        "open_by_handle_at",
        libc::SYS_open_by_handle_at,
        [at, handle.as_ptr() as usize, 0, 0, 0, 0],
    );
}

fn sockets(attempt: &Attempt<'_>, worker_socket: &std::path::Path) {
    for (name, family, kind) in [
        ("inet", libc::AF_INET, libc::SOCK_STREAM),
        ("inet6", libc::AF_INET6, libc::SOCK_DGRAM),
        ("netlink", libc::AF_NETLINK, libc::SOCK_RAW),
        ("packet", libc::AF_PACKET, libc::SOCK_RAW),
        ("vsock", libc::AF_VSOCK, libc::SOCK_STREAM),
        ("alg", libc::AF_ALG, libc::SOCK_SEQPACKET),
    ] {
        let arguments = [family as usize, kind as usize, 0, 0, 0, 0];
        attempt.call(&format!("socket {name}"), libc::SYS_socket, arguments);
    }
    // The daemon's other sockets lie one folder up, on the host.
    let runtime = worker_socket.parent().and_then(std::path::Path::parent);
    for name in ["control.sock", "host.sock"] {
        let path = runtime.map(|folder| folder.join(name)).unwrap_or_default();
        let connected = std::os::unix::net::UnixStream::connect(&path);
        attempt.tell(
            &format!("connect {name}"),
            if connected.is_ok() { 0 } else { -1 },
        );
    }
    // Listening would let others in.
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
    attempt.call(
        "listen",
        libc::SYS_listen,
        [ours.as_raw_fd() as usize, 1, 0, 0, 0, 0],
    );
    attempt.call(
        "bind",
        libc::SYS_bind,
        [ours.as_raw_fd() as usize, 0, 0, 0, 0, 0],
    );
}

fn processes(attempt: &Attempt<'_>, daemon: usize) {
    attempt.call("fork", libc::SYS_fork, [0; 6]);
    attempt.call("vfork", libc::SYS_vfork, [0; 6]);
    attempt.call(
        "clone",
        libc::SYS_clone,
        [libc::SIGCHLD as usize, 0, 0, 0, 0, 0],
    );
    attempt.call(
        "clone into a user namespace",
        libc::SYS_clone,
        [libc::CLONE_NEWUSER as usize, 0, 0, 0, 0, 0],
    );
    let clone3 = [0_u64; 11];
    attempt.call(
        "clone3",
        libc::SYS_clone3,
        [clone3.as_ptr() as usize, 88, 0, 0, 0, 0],
    );
    let shell = c"/bin/sh".as_ptr() as usize;
    attempt.call("execve", libc::SYS_execve, [shell, 0, 0, 0, 0, 0]);
    attempt.call(
        "execveat",
        libc::SYS_execveat,
        [libc::AT_FDCWD as usize, shell, 0, 0, 0, 0],
    );
    for pid in [daemon, 1, usize::MAX] {
        attempt.call(
            &format!("kill {}", pid as isize),
            libc::SYS_kill,
            [pid, 0, 0, 0, 0, 0],
        );
    }
    attempt.call(
        "tgkill the daemon",
        libc::SYS_tgkill,
        [daemon, daemon, 0, 0, 0, 0],
    );
    attempt.call(
        "ptrace attach",
        libc::SYS_ptrace,
        [libc::PTRACE_ATTACH as usize, daemon, 0, 0, 0, 0],
    );
    attempt.call("ptrace traceme", libc::SYS_ptrace, [0; 6]);
    signals_by_descriptors(attempt, daemon);
    let mut byte = [0_u8; 1];
    let vector = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let vector = &raw const vector as usize;
    attempt.call(
        "process_vm_readv",
        libc::SYS_process_vm_readv,
        [daemon, vector, 1, vector, 1, 0],
    );
    attempt.call(
        "process_vm_writev",
        libc::SYS_process_vm_writev,
        [daemon, vector, 1, vector, 1, 0],
    );
    attempt.call("pidfd_open", libc::SYS_pidfd_open, [daemon, 0, 0, 0, 0, 0]);
    attempt.call("setns", libc::SYS_setns, [0, 0, 0, 0, 0, 0]);
    attempt.call(
        "unshare",
        libc::SYS_unshare,
        [libc::CLONE_NEWUSER as usize, 0, 0, 0, 0, 0],
    );
    attempt.call(
        "setpriority",
        libc::SYS_setpriority,
        [0, 0, (-20_isize) as usize, 0, 0, 0],
    );
    attempt.call(
        "sched_setscheduler",
        libc::SYS_sched_setscheduler,
        [0, libc::SCHED_FIFO as usize, 0, 0, 0, 0],
    );
    attempt.call("shmget", libc::SYS_shmget, [0, 4096, 0o1600, 0, 0, 0]);
    attempt.call("msgget", libc::SYS_msgget, [0, 0o1600, 0, 0, 0, 0]);
    attempt.call(
        "mq_open",
        libc::SYS_mq_open,
        [c"/probe".as_ptr() as usize, 0o102, 0o600, 0, 0, 0],
    );
}

/// A descriptor can send any signal to any process of the same user when it is ready.
fn signals_by_descriptors(attempt: &Attempt<'_>, daemon: usize) {
    // Numbers from <linux/fcntl.h>.
    const SETSIG: i32 = 10;
    const SETLEASE: i32 = 1024;
    const NOTIFY: i32 = 1026;
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
    for (name, command, value) in [
        ("F_SETOWN 1", libc::F_SETOWN, 1),
        ("F_SETOWN the daemon", libc::F_SETOWN, daemon),
        ("F_SETSIG", SETSIG, libc::SIGKILL as usize),
        ("F_SETLEASE", SETLEASE, libc::F_UNLCK as usize),
        ("F_NOTIFY", NOTIFY, 0),
    ] {
        let arguments = [ours.as_raw_fd() as usize, command as usize, value, 0, 0, 0];
        attempt.call(&format!("fcntl {name}"), libc::SYS_fcntl, arguments);
    }
}

fn privileges(attempt: &Attempt<'_>) {
    attempt.call("setuid 0", libc::SYS_setuid, [0; 6]);
    attempt.call("setresuid 0", libc::SYS_setresuid, [0; 6]);
    attempt.call("setgid 0", libc::SYS_setgid, [0; 6]);
    attempt.call("setgroups", libc::SYS_setgroups, [0; 6]);
    attempt.call("capset", libc::SYS_capset, [0; 6]);
    attempt.call(
        "prctl keepcaps",
        libc::SYS_prctl,
        [libc::PR_SET_KEEPCAPS as usize, 1, 0, 0, 0, 0],
    );
    attempt.call(
        "prctl dumpable",
        libc::SYS_prctl,
        [libc::PR_SET_DUMPABLE as usize, 1, 0, 0, 0, 0],
    );
    let limit = libc::rlimit64 {
        rlim_cur: 1 << 20,
        rlim_max: 1 << 20,
    };
    let limit = &raw const limit as usize;
    attempt.call(
        "prlimit",
        libc::SYS_prlimit64,
        [0, libc::RLIMIT_NOFILE as usize, limit, 0, 0, 0],
    );
    attempt.call(
        "setrlimit",
        libc::SYS_setrlimit,
        [libc::RLIMIT_CORE as usize, limit, 0, 0, 0, 0],
    );
    attempt.call(
        "personality",
        libc::SYS_personality,
        [0x0040_0000, 0, 0, 0, 0, 0],
    );
    attempt.call(
        "add_key",
        libc::SYS_add_key,
        [
            c"user".as_ptr() as usize,
            c"x".as_ptr() as usize,
            0,
            0,
            usize::MAX - 1,
            0,
        ],
    );
    attempt.call("keyctl", libc::SYS_keyctl, [0; 6]);
}

fn kernel(attempt: &Attempt<'_>) {
    for (name, number) in [
        ("bpf", libc::SYS_bpf),
        ("perf_event_open", libc::SYS_perf_event_open),
        ("userfaultfd", libc::SYS_userfaultfd),
        ("io_uring_setup", libc::SYS_io_uring_setup),
        ("init_module", libc::SYS_init_module),
        ("finit_module", libc::SYS_finit_module),
        ("delete_module", libc::SYS_delete_module),
        ("kexec_load", libc::SYS_kexec_load),
        ("swapon", libc::SYS_swapon),
        ("acct", libc::SYS_acct),
        ("quotactl", libc::SYS_quotactl),
        ("syslog", libc::SYS_syslog),
        ("fanotify_init", libc::SYS_fanotify_init),
        ("landlock_create_ruleset", libc::SYS_landlock_create_ruleset),
        ("seccomp", libc::SYS_seccomp),
        ("sethostname", libc::SYS_sethostname),
        ("settimeofday", libc::SYS_settimeofday),
        ("clock_adjtime", libc::SYS_clock_adjtime),
        ("iopl", libc::SYS_iopl),
        ("ioperm", libc::SYS_ioperm),
        ("modify_ldt", libc::SYS_modify_ldt),
        ("vhangup", libc::SYS_vhangup),
        ("move_pages", libc::SYS_move_pages),
        ("memfd_secret", libc::SYS_memfd_secret),
    ] {
        attempt.call(name, number, [0; 6]);
    }
    requests(attempt);
    attempt.call("a call with no name", 1000, [0; 6]);
}

/// Requests to devices. One that the filter lets through reaches the file, which does not know it.
fn requests(attempt: &Attempt<'_>) {
    for (name, request) in [
        ("TIOCSTI", libc::TIOCSTI as u32),
        ("of some device", 0xc020_6601),
        ("CDROM_SEND_PACKET", 0x5310),
        ("IOCTL_XFER_CMD", 0xc010_46d3),
        ("RM_ACCESS_REGISTRY", 0xc030_464d),
        ("RM_I2C_ACCESS", 0xc010_4639),
        ("RM_CONFIG_SET", 0xc010_4633),
        ("SET_NUMA_STATUS", 0xc010_46d8),
        ("EXPORT_TO_DMABUF_FD", 0xc010_46d9),
        ("UVM_ENABLE_PEER_ACCESS", 0x1d),
        ("UVM_TOOLS_READ_PROCESS_MEMORY", 0x3e),
        ("UVM_TOOLS_WRITE_PROCESS_MEMORY", 0x3f),
        ("UVM_TEST_GET_GPU_REF_COUNT", 0xc8),
    ] {
        let refused = request_of(2, request).raw_os_error() == Some(libc::EPERM);
        let result = if refused { -1 } else { 0 };
        attempt.tell(&format!("request {request:#x} {name}"), result);
    }
}

/// The error of a request to a file that knows no requests.
fn request_of(file: i32, request: u32) -> std::io::Error {
    // SAFETY: the argument is null, and no file of this process takes such a request.
    let done = unsafe { libc::syscall(libc::SYS_ioctl, file, request as usize, 0_usize) };
    match done {
        0.. => std::io::Error::other("the file took the request"),
        _ => std::io::Error::last_os_error(),
    }
}

fn memory(attempt: &Attempt<'_>) {
    const PAGE: usize = 4096;
    let all = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as usize;
    let data = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let code = (libc::PROT_READ | libc::PROT_EXEC) as usize;
    let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    let none = usize::MAX;
    attempt.call(
        "mmap writable and executable",
        libc::SYS_mmap,
        [0, PAGE, all, private, none, 0],
    );
    attempt.call(
        "mmap executable",
        libc::SYS_mmap,
        [0, PAGE, code, private, none, 0],
    );
    // SAFETY: a new private mapping.
    let page = unsafe { libc::syscall(libc::SYS_mmap, 0, PAGE, data, private, none, 0) } as usize;
    attempt.call(
        "mprotect writable and executable",
        libc::SYS_mprotect,
        [page, PAGE, all, 0, 0, 0],
    );
    attempt.call(
        "mprotect data executable",
        libc::SYS_mprotect,
        [page, PAGE, code, 0, 0, 0],
    );
    attempt.call(
        "pkey_mprotect",
        libc::SYS_pkey_mprotect,
        [page, PAGE, all, none, 0, 0],
    );
    // SAFETY: a name and no flags.
    let file = unsafe { libc::memfd_create(c"probe".as_ptr(), 0) } as usize;
    let shared = libc::MAP_SHARED as usize;
    attempt.call(
        "mmap a file executable",
        libc::SYS_mmap,
        [0, PAGE, code, shared, file, 0],
    );
    attempt.call(
        "remap_file_pages",
        libc::SYS_remap_file_pages,
        [page, PAGE, 0, 0, 0, 0],
    );
}
