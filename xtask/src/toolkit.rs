//! The CUDA compiler, and the runtimes that programs of other years are linked with.
//!
//! PyPI has an nvcc of CUDA 13 only. Programs for older runtimes are therefore compiled by it with the
//! older version's own headers and linked with the older version's own library: what the driver sees
//! (start-up, registration, launches, structures) is the older runtime's.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::packages::Environment;

/// What nvcc needs to build CUDA C++ with cooperative groups, CUB and Thrust. The packages ask for each other by the major version
/// only, and an assembler refuses the PTX of a newer compiler, so each one has its version here.
const COMPILER: &[&str] = &[
    "nvidia-cuda-nvcc==13.4.92",
    "nvidia-cuda-crt==13.4.92",
    "nvidia-cuda-runtime==13.4.92",
    "nvidia-nvvm==13.4.92",
    "nvidia-cuda-cccl==13.3.5.0.6",
    "nvidia-cuda-profiler-api==13.4.92",
    "nvidia-nvtx==13.4.92",
];

/// Path of an nvcc: `MICA_NVCC`, one on the `PATH`, or the pinned one.
pub(crate) fn nvcc() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("MICA_NVCC") {
        return Ok(path.into());
    }
    let on_path = Command::new("nvcc").arg("--version").output();
    if on_path.is_ok_and(|out| out.status.success()) {
        return Ok("nvcc".into());
    }
    let path = Environment::with("cuda", COMPILER)?
        .site()?
        .join("nvidia/cu13/bin/nvcc");
    path.is_file()
        .then_some(path)
        .context("the CUDA packages are installed but hold no nvcc")
}

/// How a program is linked with the runtime.
enum Linkage {
    /// The compiler's own, inside the program.
    OwnStatic,
    /// A package's archives, inside the program.
    Static(&'static [&'static str]),
    /// A package's shared library, found through the program's RPATH.
    Shared(&'static str),
}

/// A CUDA runtime to build programs with.
pub(crate) struct Runtime {
    /// What distinguishes its programs: empty for the compiler's own.
    pub(crate) name: &'static str,
    /// Its CUDA version.
    version: (u32, u32),
    packages: &'static [&'static str],
    linkage: Linkage,
}

/// The compiler's own runtime, linked statically: what nvcc does when nothing else is said.
pub(crate) const OWN: Runtime = Runtime {
    name: "",
    version: (13, 4),
    packages: &[],
    linkage: Linkage::OwnStatic,
};

/// The others. Packages before 12.6 hold no archive, so those are shared.
pub(crate) const OTHERS: &[Runtime] = &[
    Runtime {
        name: "cudart-13.4-shared",
        version: (13, 4),
        packages: &["nvidia-cuda-runtime==13.4.92", "nvidia-cuda-crt==13.4.92"],
        linkage: Linkage::Shared("libcudart.so.13"),
    },
    Runtime {
        name: "cudart-12.9-static",
        version: (12, 9),
        packages: &[
            "nvidia-cuda-runtime-cu12==12.9.79",
            "nvidia-cuda-nvcc-cu12==12.9.86",
        ],
        linkage: Linkage::Static(&["libcudart_static.a", "libculibos.a"]),
    },
    Runtime {
        name: "cudart-12.4-shared",
        version: (12, 4),
        packages: &[
            "nvidia-cuda-runtime-cu12==12.4.127",
            "nvidia-cuda-nvcc-cu12==12.4.131",
        ],
        linkage: Linkage::Shared("libcudart.so.12"),
    },
    Runtime {
        name: "cudart-11.8-shared",
        version: (11, 8),
        packages: &[
            "nvidia-cuda-runtime-cu11==11.8.89",
            "nvidia-cuda-nvcc-cu11==11.8.89",
        ],
        linkage: Linkage::Shared("libcudart.so.11.0"),
    },
];

impl Runtime {
    /// Whether it is as new as `since`, as in "12.3".
    pub(crate) fn is_at_least(&self, since: Option<&str>) -> bool {
        let Some((major, minor)) = since.and_then(|text| text.trim().split_once('.')) else {
            return true;
        };
        self.version >= (major.parse().unwrap_or(0), minor.parse().unwrap_or(0))
    }

    /// What nvcc is told to build with this runtime. Installs it first where it is missing.
    pub(crate) fn arguments(&self) -> Result<Vec<OsString>> {
        if let Linkage::OwnStatic = self.linkage {
            return Ok(vec!["-cudart".into(), "static".into()]);
        }
        let nvidia = Environment::with(self.name, self.packages)?
            .site()?
            .join("nvidia");
        let (headers, libraries) = folders(&nvidia);
        // Older headers refuse compilers that are newer than themselves.
        let mut arguments: Vec<OsString> = vec![
            "-allow-unsupported-compiler".into(),
            "-cudart".into(),
            "none".into(),
        ];
        for folder in headers {
            arguments.extend(["-I".into(), folder.into_os_string()]);
        }
        match &self.linkage {
            Linkage::OwnStatic => {}
            Linkage::Static(archives) => {
                arguments.extend(archives.iter().map(|name| libraries.join(name).into()));
                arguments.extend(["-lrt", "-lpthread", "-ldl"].map(OsString::from));
            }
            Linkage::Shared(library) => {
                let library = libraries.join(library).into_os_string();
                for word in [library, "-rpath".into(), libraries.into_os_string()] {
                    arguments.extend(["-Xlinker".into(), word]);
                }
            }
        }
        Ok(arguments)
    }
}

/// Where a runtime's headers and libraries lie: the layout changed with CUDA 13.
fn folders(nvidia: &Path) -> (Vec<PathBuf>, PathBuf) {
    let one = nvidia.join("cu13");
    if one.is_dir() {
        return (vec![one.join("include")], one.join("lib"));
    }
    let runtime = nvidia.join("cuda_runtime");
    let headers = vec![runtime.join("include"), nvidia.join("cuda_nvcc/include")];
    (headers, runtime.join("lib"))
}
