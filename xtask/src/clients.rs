//! `cargo xtask clients`: published libraries nobody here wrote, in a virtual GPU on the software GPU.
//!
//! Each client is a program in `tests/clients` that uses a published library at a pinned version, checks
//! every result itself and prints `ok` last. None knows of Mica. What NVIDIA publishes (NVRTC, libNVVM,
//! the runtime) is installed from PyPI under NVIDIA's licences, never shipped.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::command::{cargo, root, run as run_command, target};
use crate::packages::Environment;
use crate::suite;

const NVRTC: &str = "nvidia-cuda-nvrtc-cu12==12.9.86";
const NVVM: &str = "nvidia-cuda-nvcc-cu12==12.9.86";
const CUDART: &str = "nvidia-cuda-runtime-cu12==12.9.79";

/// A library and the program that uses it.
struct Client {
    name: &'static str,
    version: &'static str,
    what: &'static str,
    /// Whether it is quick enough for every run of the tests.
    in_ci: bool,
    run: fn() -> Result<Output>,
}

const CLIENTS: &[Client] = &[
    Client {
        name: "cudarc",
        version: "0.19.10",
        what: "Rust; kernels by NVRTC at run time, streams, graphs, unified memory, threads",
        in_ci: true,
        run: cudarc,
    },
    Client {
        name: "cubecl",
        version: "0.10.0",
        what: "Rust; kernels written in Rust, compiled by NVRTC at run time",
        in_ci: false,
        run: cubecl,
    },
    Client {
        name: "burn",
        version: "0.21.0",
        what: "Rust; tensors, fused kernels, products and gradients on cubecl",
        in_ci: false,
        run: burn,
    },
    Client {
        name: "numba",
        version: "0.61.2",
        what: "Python; its own driver binding, cuLink, cooperative grids",
        in_ci: true,
        run: numba,
    },
    Client {
        name: "cupy",
        version: "13.6.0",
        what: "Python; arrays, reductions, raw kernels, all by NVRTC",
        in_ci: false,
        run: cupy,
    },
    Client {
        name: "thrust",
        version: "CCCL 3.3.5",
        what: "C++; two dozen algorithms",
        in_ci: false,
        run: || cccl("thrust_many"),
    },
    Client {
        name: "cub",
        version: "CCCL 3.3.5",
        what: "C++; two dozen algorithms of the device, a block, a warp",
        in_ci: false,
        run: || cccl("cub_many"),
    },
];

/// Which clients to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Those that fit into every run of the tests.
    Quick,
    /// All of them.
    All,
}

/// Runs the clients whose name contains `filter`; a table says how each ended.
pub(crate) fn run(filter: &str, extent: Extent) -> Result<()> {
    suite::build_release()?;
    let chosen = CLIENTS
        .iter()
        .filter(|client| client.name.contains(filter))
        .filter(|client| extent == Extent::All || client.in_ci);
    let mut rows = Vec::new();
    let mut failed = 0;
    for client in chosen {
        eprintln!("==> {} {}", client.name, client.version);
        let start = Instant::now();
        let ended = (client.run)().and_then(|output| suite::must_be_ok(&output));
        let seconds = start.elapsed().as_secs_f64();
        let result = match &ended {
            Ok(0) => "ok".into(),
            Ok(lines) => format!("ok, {lines} cases"),
            Err(error) => {
                failed += 1;
                eprintln!("{error:#}");
                "FAILED".into()
            }
        };
        rows.push((client, result, seconds));
    }
    println!(
        "{:<12} {:<11} {:<14} {:>8}  what",
        "client", "version", "result", "seconds"
    );
    for (client, result, seconds) in rows {
        let Client {
            name,
            version,
            what,
            ..
        } = client;
        println!("{name:<12} {version:<11} {result:<14} {seconds:>8.1}  {what}");
    }
    if failed > 0 {
        bail!("{failed} clients failed");
    }
    Ok(())
}

fn folder(name: &str) -> PathBuf {
    root().join("tests/clients").join(name)
}

/// Builds a client written in Rust; its program.
fn built(name: &str) -> Result<PathBuf> {
    let built = target().join("clients").join(name);
    run_command(
        &format!("{name} client"),
        cargo(&["build", "--release", "--locked"])
            .current_dir(folder(name))
            .env("CARGO_TARGET_DIR", &built),
    )?;
    Ok(built.join(format!("release/{name}-client")))
}

fn cudarc() -> Result<Output> {
    let program = built("cudarc")?;
    let nvrtc = Environment::with("nvrtc", &[NVRTC])?.site()?;
    suite::in_virtual_gpu()
        .arg(program)
        .env("LD_LIBRARY_PATH", nvrtc.join("nvidia/cuda_nvrtc/lib"))
        .output()
        .context("mica cannot start")
}

/// NVRTC finds the headers of half-precision floats in the package of the runtime.
fn cubecl() -> Result<Output> {
    let program = built("cubecl")?;
    let site = Environment::with("cubecl", &[NVRTC, CUDART])?.site()?;
    on_cubecl(&program, &site, &site.join("nvidia/cuda_runtime"))
}

/// Its products use matrix instructions, whose headers are in the compiler's package.
fn burn() -> Result<Output> {
    let program = built("burn")?;
    let site = Environment::with("burn", &[NVRTC, CUDART, NVVM])?.site()?;
    let home = target().join("clients/burn-home");
    let include = home.join("include");
    std::fs::create_dir_all(&include)?;
    for package in ["cuda_runtime", "cuda_nvcc"] {
        for entry in std::fs::read_dir(site.join("nvidia").join(package).join("include"))? {
            let entry = entry?;
            let link = include.join(entry.file_name());
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(entry.path(), link)?;
        }
    }
    on_cubecl(&program, &site, &home)
}

fn on_cubecl(program: &Path, site: &Path, home: &Path) -> Result<Output> {
    suite::in_virtual_gpu()
        .arg(program)
        .env("CUDA_PATH", home)
        .env("LD_LIBRARY_PATH", site.join("nvidia/cuda_nvrtc/lib"))
        .output()
        .context("mica cannot start")
}

/// Numba looks for a toolkit with the layout of NVIDIA's installer and for numbered libraries.
fn toolkit_folder(site: &Path) -> Result<PathBuf> {
    let home = target().join("clients/cuda-home");
    let links = [
        ("nvvm/libdevice", "nvidia/cuda_nvcc/nvvm/libdevice"),
        (
            "nvvm/lib64/libnvvm.so.4",
            "nvidia/cuda_nvcc/nvvm/lib64/libnvvm.so",
        ),
        (
            "lib64/libcudart.so.12",
            "nvidia/cuda_runtime/lib/libcudart.so.12",
        ),
        (
            "lib64/libcudadevrt.a",
            "nvidia/cuda_runtime/lib/libcudadevrt.a",
        ),
    ];
    for (name, package_file) in links {
        let name = home.join(name);
        if let Some(parent) = name.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let _ = std::fs::remove_file(&name);
        std::os::unix::fs::symlink(site.join(package_file), &name)?;
    }
    Ok(home)
}

fn numba() -> Result<Output> {
    let packages = ["numba==0.61.2", "numpy==2.2.6", NVVM, CUDART];
    let environment = Environment::with("numba", &packages)?;
    let home = toolkit_folder(&environment.site()?)?;
    python(&environment, "numba/kernels.py")
        .env("CUDA_HOME", home)
        .output()
        .context("mica cannot start")
}

fn cupy() -> Result<Output> {
    let packages = ["cupy-cuda12x==13.6.0", "numpy==2.2.6", NVRTC, CUDART];
    let environment = Environment::with("cupy", &packages)?;
    let site = environment.site()?;
    python(&environment, "cupy/arrays.py")
        // The software GPU runs PTX; without this CuPy asks NVRTC for machine code.
        .env("CUPY_COMPILE_WITH_PTX", "1")
        // CuPy's own build of CUB holds machine code only, and CuPy does not look at its errors.
        .env("CUPY_ACCELERATORS", "")
        .env("CUPY_CACHE_DIR", target().join("clients/cupy-cache"))
        .env("CUDA_PATH", site.join("nvidia/cuda_runtime"))
        .env("LD_LIBRARY_PATH", site.join("nvidia/cuda_nvrtc/lib"))
        .output()
        .context("mica cannot start")
}

fn python(environment: &Environment, script: &str) -> Command {
    let mut command = suite::in_virtual_gpu();
    command
        .arg(environment.python())
        .args(["-W", "ignore"])
        .arg(folder(script));
    command
}

fn cccl(name: &str) -> Result<Output> {
    let binary = suite::build_program(&folder("cccl").join(format!("{name}.cu")))?;
    suite::in_virtual_gpu()
        .arg(binary)
        .output()
        .context("mica cannot start")
}
