//! Project tasks.
//!
//! `cargo xtask test` is everything CI checks; `cargo xtask gpu-test` is the same cases on a real GPU.
//! Tools that are missing are installed, said so, and cached under `target/tools`.
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod alone;
mod attack;
mod bounded;
mod chaos;
mod clients;
mod command;
#[cfg(test)]
mod dependencies;
mod dist;
mod docs;
mod executables;
mod gpu_test;
mod header;
mod kernels;
mod licences;
mod measurements;
mod nightly;
mod packages;
mod python;
#[cfg(test)]
mod roots;
mod suite;
mod support;
mod test;
mod toolkit;
mod views;
mod walls;

use anyhow::{Result, bail};
use suite::Breadth;

const HELP: &str = "\
cargo xtask <task>

  test [--fast]        formatting, lints, unit and integration tests, then the CUDA programs in
                       tests/programs on the software GPU (--fast: without the CUDA programs)
  suite [FILTER]       only the CUDA programs, those whose name contains FILTER
  suite-all [FILTER]   the same, each built with every CUDA runtime (11.8 to 13, static and shared)
  chaos [--rounds N] [--seed S] [--swap]
                       eight tenants under load on the software GPU; each round kills a process,
                       a worker or the daemon and checks that everything comes back (1000 rounds);
                       --swap: three tenants whose memory does not fit together
  clients [FILTER]     published libraries (cudarc, Numba, CuPy, Thrust, CUB) in a virtual GPU
  attack [--minutes N] [FILTER]
                       the tests in which something hostile is tried, by family: PTX, images,
                       programs, workers, peers of the daemon, files; in N minutes (10) at most.
                       FILTER is part of a family's name
  nightly [--minutes N] [--record] [TARGET]
                       each fuzz target of fuzz/ for N minutes (60), then the tests of the software
                       device and the worker, all with the address sanitizer; TARGET is one of them.
                       Installs cargo-fuzz into target/tools; results are in target/nightly, with
                       --record the times in docs/measurements/fuzzing.md too
  views [page|metrics|pictures|cost|frames]
                       the web page in a headless Chromium and the metrics in a Prometheus, over a
                       daemon with six tenants under load; pictures in target/views. Installs
                       chromium and prometheus with apt-get, axe-core with npm; what cannot be had
                       is skipped and said so (pictures: make those of docs/pictures anew)
  docs [--test [PAGE]] build the guide (docs/guide) into target/guide; installs mdbook into target/tools.
                       --test runs the guide's commands on the software GPU and compares what they
                       print (those of PAGE only); BLESS=1 rewrites the pages instead
  measurements AREA FILE MACHINE
                       add what `mica bench --json` wrote to FILE to docs/measurements/AREA.md
  dist [--test]        the packages that users install, in target/dist: a tarball, a Debian package and
                       a container image (--test: install each into an empty root directory and run
                       a CUDA program there; needs dpkg, and root or user namespaces)
  alone                a copy of the release mica, alone in a folder, runs a CUDA program
  walls [--only podman|docker|guest|qemu|tls|demo|chaos] [--debug] [--all] [--programs FILTER]
                       programs behind real walls: containers with a device of `mica cdi` (needs root,
                       podman, runc), a guest's agent and its relay (needs root), a QEMU guest, the
                       network with TLS; --debug: with a debug build of mica; --all: every CUDA program in the QEMU
                       guest, whose processor is emulated (at most two hours)
  support              write docs/SUPPORT.md, the list of driver functions and how each is served
  gpu-test             the real GPU: builds the programs in tests/gpu and checks the limits on it
  header               write the C header of libmica anew; installs cbindgen into target/tools
  kernels [FILTER]     compile the kernels of crates/ops/kernels that have changed to the PTX beside them
  python               put the Python package together in target/python and test it with NumPy on the
                       software GPU; installs NumPy into target/tools
  toolkit              install the CUDA compiler (from PyPI, into target/tools) and print its path
";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["test"] => test::run(test::Extent::Everything),
        ["test", "--fast"] => test::run(test::Extent::WithoutPrograms),
        ["attack", rest @ ..] => attack::run(rest),
        ["chaos", rest @ ..] => chaos::run(rest),
        ["nightly", rest @ ..] => nightly::run(rest),
        ["suite"] => suite::run("", Breadth::Some),
        ["suite", filter] => suite::run(filter, Breadth::Some),
        ["suite-all"] => suite::run("", Breadth::All),
        ["suite-all", filter] => suite::run(filter, Breadth::All),
        ["clients"] => clients::run("", clients::Extent::All),
        ["clients", filter] => clients::run(filter, clients::Extent::All),
        ["views", rest @ ..] => views::run(rest),
        ["docs", rest @ ..] => docs::run(rest),
        ["measurements", area, file, machine] => measurements::add(area, file, machine),
        ["alone"] => alone::check(),
        ["dist", rest @ ..] => dist::run(rest),
        ["walls", rest @ ..] => walls::run(rest),
        ["support"] => support::write(),
        ["gpu-test", rest @ ..] => gpu_test::run(rest),
        ["header"] => header::run(),
        ["kernels"] => kernels::run(""),
        ["kernels", filter] => kernels::run(filter),
        ["python"] => python::test(),
        ["toolkit"] => {
            println!("{}", toolkit::nvcc()?.display());
            Ok(())
        }
        [] | ["help" | "-h" | "--help"] => {
            print!("{HELP}");
            Ok(())
        }
        other => bail!("unknown task {:?}\n\n{HELP}", other.join(" ")),
    }
}
