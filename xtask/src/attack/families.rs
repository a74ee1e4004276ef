//! Which tests belong to which family of attacks.

use std::fmt;

/// Attacks of one kind.
pub(super) struct Family {
    pub(super) name: &'static str,
    /// What is tried, for the report.
    pub(super) tried: &'static str,
    pub(super) steps: &'static [Step],
}

/// One run of a test program.
#[derive(Clone, Copy)]
pub(super) struct Step {
    /// The package, without `mica-`.
    pub(super) package: &'static str,
    /// The integration test, or `lib` or `bin`.
    pub(super) target: &'static str,
    /// Tests whose name contains one of these; all when empty.
    pub(super) only: &'static [&'static str],
    pub(super) environment: &'static [(&'static str, &'static str)],
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.environment {
            write!(f, "{name}={value} ")?;
        }
        write!(f, "mica-{} {}", self.package, self.target)?;
        self.only.iter().try_for_each(|name| write!(f, " {name}"))
    }
}

/// All tests of a program.
pub(super) const fn whole(package: &'static str, target: &'static str) -> Step {
    Step {
        package,
        target,
        only: &[],
        environment: &[],
    }
}

/// Some tests of a program.
const fn only(package: &'static str, target: &'static str, only: &'static [&'static str]) -> Step {
    Step {
        only,
        ..whole(package, target)
    }
}

/// All tests of a program of the compiler, whose code checks each address again that it uses without a check.
const fn rechecked(target: &'static str) -> Step {
    Step {
        environment: &[("MICA_JIT_RECHECK", "1")],
        ..whole("ptx-jit", target)
    }
}

/// Hostile text first, then hostile programs, peers and workers, then files and machines in a bad state.
pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "ptx",
        tried: "frames, limits, damaged and random PTX, with and without a recheck",
        steps: &[
            whole("ptx-jit", "frames"),
            rechecked("frames"),
            whole("ptx-jit", "mutations"),
            rechecked("mutations"),
            whole("ptx-jit", "random"),
            rechecked("random"),
            rechecked("textures"),
            rechecked("classes"),
            whole("ptx-jit", "bounds"),
            whole("ptx-jit", "offsets"),
            whole("ptx-jit", "multiply"),
            whole("ptx", "errors"),
            whole("ptx", "mutations"),
            whole("ptx-interp", "mutations"),
            whole("backend-software", "clusters"),
            whole("backend-software", "stack"),
            whole("backend-software", "signals"),
        ],
    },
    Family {
        name: "kernel cache",
        tried: "files of compiled code that are damaged, exchanged or foreign",
        steps: &[
            only("ptx-jit", "lib", &["code_cache"]),
            whole("ptx-jit", "code_cache"),
            only("daemon", "lib", &["kernel_caches"]),
        ],
    },
    Family {
        name: "images",
        tried: "damaged containers, zstd and LZ4 bombs, text that grows in memory",
        steps: &[
            whole("fatbin", "mutations"),
            whole("fatbin", "bombs"),
            whole("fatbin", "locate"),
            whole("backend-software", "images"),
            whole("backend-software", "module_memory"),
        ],
    },
    Family {
        name: "clients",
        tried: "programs that lie in the ring and in calls, forge handles, vanish",
        steps: &[
            whole("wire", "lib"),
            whole("tunnel", "lib"),
            whole("worker", "hostile"),
            whole("worker", "session"),
            whole("worker", "windows"),
            whole("worker", "tampering"),
            whole("worker", "descriptors"),
            whole("worker", "shared"),
            whole("worker", "handshakes"),
            whole("cli", "hostile"),
            whole("cli", "neighbours"),
            only("cli", "cov", &["what_a_program_writes_itself"]),
        ],
    },
    Family {
        name: "budgets",
        tried: "programs that make a worker hold or do more than their limits",
        steps: &[
            whole("vgpu", "limits"),
            whole("backend-software", "limits"),
            whole("backend-software", "children"),
            whole("ptx-jit", "long_instructions"),
            whole("backend-software", "transfers"),
            whole("worker", "budgets"),
            whole("worker", "compiling"),
            whole("backend-software", "compiling"),
            whole("daemon", "host_bytes"),
            only("daemon", "lib", &["cgroups"]),
            whole("cli", "capped"),
        ],
    },
    Family {
        name: "jail",
        tried: "a hostile worker's way out, under a daemon of root and of another user",
        steps: &[whole("jail", "lib"), whole("worker", "jail")],
    },
    Family {
        name: "cards",
        tried: "faults of a card, requests of its driver, kernels that reach host memory",
        steps: &[
            whole("rm", "observer"),
            only("worker", "lib", &["nvidia"]),
            whole("backend-cuda", "nvml"),
            only("daemon", "lib", &["faults", "kernel_log"]),
            whole("daemon", "faults"),
        ],
    },
    Family {
        name: "daemon peers",
        tried: "wrong roles, lies, floods, half handshakes, other users",
        steps: &[
            whole("daemon", "roles"),
            whole("daemon", "hostile"),
            whole("daemon", "restart"),
            whole("daemon", "service"),
            whole("daemon", "flood"),
            whole("daemon", "users"),
            only("daemon", "lib", &["series"]),
            whole("daemon", "strangers"),
            whole("daemon", "web"),
            whole("daemon", "containers"),
            whole("daemon", "outsiders"),
        ],
    },
    Family {
        name: "files",
        tried: "symlinks, pipes and foreign sockets, full disks, floods of descriptors, clocks that jump",
        steps: &[
            whole("daemon", "files"),
            whole("daemon", "scarce"),
            whole("daemon", "clock"),
            only("cli", "bin", &["libraries"]),
        ],
    },
    Family {
        name: "direct mode",
        tried: "closed and reused descriptors, fork and clone, races for memory",
        steps: &[
            whole("limits", "lib"),
            only(
                "shim",
                "direct",
                &[
                    "a_forked_child_touches_neither_page_nor_socket",
                    "a_refusal_fails_init",
                    "an_unreachable_daemon_fails_init",
                    "isolated_mode_never_runs_on_the_bare_device",
                    "racing_processes_never_exceed_the_limit",
                    "the_driver_is_searched_for_and_a_shim_is_never_taken_for_it",
                    "when_the_daemon_dies_the_program_runs_on",
                ],
            ),
            only(
                "shim",
                "isolated",
                &["a_forked_child", "a_program_killed", "a_lost_worker"],
            ),
        ],
    },
    Family {
        name: "snapshots",
        tried: "snapshots that are damaged, cut, foreign, or made to harm",
        steps: &[
            whole("snapshot", "lib"),
            whole("worker", "snapshot"),
            only("vgpu", "lib", &["handle"]),
        ],
    },
    Family {
        name: "walls",
        tried: "peers without a key or with a foreign one, damaged frames, ivshmem files of a hostile guest",
        steps: &[
            whole("remote", "lib"),
            whole("remote", "strangers"),
            whole("tunnel", "resume"),
            whole("tunnel", "pieces"),
            whole("guest", "lib"),
            whole("guest", "ivshmem"),
            whole("coverage", "damaged"),
        ],
    },
    Family {
        name: "terminals",
        tried: "words of programs that would act on a terminal or forge a log",
        steps: &[only("cli", "cli", &["escapes"])],
    },
];
