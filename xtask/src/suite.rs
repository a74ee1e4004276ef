//! The CUDA programs in `tests/programs`: built by nvcc, run unmodified in a virtual GPU.
//!
//! Each `NAME.cu` checks itself: it prints `ok` on its last line and exits with 0, or says what was
//! wrong. Its first comment lines may carry options: `// nvcc: -std=c++17` or `// skip: reason`.
//! `// run: --capability 9.0` are options of `mica run`. `// mica: a | b` is what one line of `mica run` itself must say; `<-` there is the number of the line
//! that ends with `// <-`.
//! All are built with the compiler's own runtime; a few also with older and shared ones.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anyhow::{Context, Result, bail};

use crate::command::{cargo, root, run as run_command, target};
use crate::toolkit::{self, Runtime};

/// Programs that are also built with each other runtime: one of every way to reach the driver.
const WITH_EVERY_RUNTIME: &[&str] = &[
    "callbacks",
    "errors_are_sticky",
    "graph_capture",
    "malloc_async",
    "managed",
    "process_life",
    "properties",
    "streams_events",
    "symbols",
    "texture_2d",
    "vector_add",
];

/// Which programs are built with the other runtimes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Breadth {
    /// A handful.
    Some,
    /// Every program, except those that need a newer runtime to compile.
    All,
}

/// One program of the suite.
struct Program {
    name: String,
    source: PathBuf,
    options: Vec<String>,
    /// Options of `mica run`.
    run: Vec<String>,
    skip: Option<String>,
    /// The oldest runtime whose headers have what it uses.
    since: Option<String>,
    /// Parts of the one line that `mica run` must say.
    told: Vec<String>,
}

impl Program {
    fn read(source: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(source)?;
        let comment = |key: &str| {
            text.lines()
                .take(5)
                .find_map(|line| line.strip_prefix(&format!("// {key}: ")))
        };
        let name = source.file_stem().unwrap_or_default();
        let marked = text.lines().position(|line| line.ends_with("// <-"));
        let marked = marked.map_or_else(String::new, |at| (at + 1).to_string());
        let told = comment("mica")
            .into_iter()
            .flat_map(|parts| parts.split(" | "));
        let words = |key: &str| -> Vec<String> {
            let words = comment(key).unwrap_or("").split_whitespace();
            words.map(String::from).collect()
        };
        Ok(Self {
            name: name.to_string_lossy().into_owned(),
            options: words("nvcc"),
            run: words("run"),
            skip: comment("skip").map(String::from),
            since: comment("since").map(String::from),
            told: told.map(|part| part.replace("<-", &marked)).collect(),
            source: source.to_owned(),
        })
    }
}

/// A program built with a runtime.
struct Case<'a> {
    program: &'a Program,
    runtime: &'a Runtime,
    arguments: &'a [OsString],
}

impl Case<'_> {
    fn name(&self) -> String {
        match self.runtime.name {
            "" => self.program.name.clone(),
            runtime => format!("{} ({runtime})", self.program.name),
        }
    }

    fn binary(&self, folder: &Path) -> PathBuf {
        match self.runtime.name {
            "" => folder.join(&self.program.name),
            runtime => folder.join(format!("{}.{runtime}", self.program.name)),
        }
    }
}

/// Builds and runs the programs whose name contains `filter`.
pub(crate) fn run(filter: &str, breadth: Breadth) -> Result<()> {
    let mut programs = programs(&root().join("tests/programs"))?;
    programs.retain(|program| program.name.contains(filter));
    if programs.is_empty() {
        eprintln!("==> no CUDA programs to run");
        return Ok(());
    }
    let nvcc = toolkit::nvcc()?;
    build_release()?;
    let folder = binaries()?;
    let runtimes = runtimes(&programs, breadth)?;
    let cases = cases(&programs, &runtimes, breadth);
    let built = build_all(&cases, &nvcc, &folder);
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (case, built) in cases.iter().zip(built) {
        let name = case.name();
        if let Some(reason) = &case.program.skip {
            println!("skip  {name} ({reason})");
            skipped += 1;
            continue;
        }
        match built.and_then(|()| run_one(case.program, &case.binary(&folder))) {
            Ok(()) => {
                println!("pass  {name}");
                passed += 1;
            }
            Err(error) => {
                println!("FAIL  {name}: {error:#}");
                failed += 1;
            }
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed > 0 {
        bail!("{failed} CUDA programs failed");
    }
    Ok(())
}

/// The runtimes that are needed, with what nvcc is told for each.
fn runtimes(
    programs: &[Program],
    breadth: Breadth,
) -> Result<Vec<(&'static Runtime, Vec<OsString>)>> {
    let mut all = vec![(&toolkit::OWN, toolkit::OWN.arguments()?)];
    if programs.iter().any(|program| is_broad(program, breadth)) {
        for runtime in toolkit::OTHERS {
            all.push((runtime, runtime.arguments()?));
        }
    }
    Ok(all)
}

fn is_broad(program: &Program, breadth: Breadth) -> bool {
    breadth == Breadth::All || WITH_EVERY_RUNTIME.contains(&program.name.as_str())
}

fn cases<'a>(
    programs: &'a [Program],
    runtimes: &'a [(&'a Runtime, Vec<OsString>)],
    breadth: Breadth,
) -> Vec<Case<'a>> {
    let mut cases = Vec::new();
    for (runtime, arguments) in runtimes {
        let own = runtime.name.is_empty();
        for program in programs {
            let since = program.since.as_deref();
            if own || is_broad(program, breadth) && runtime.is_at_least(since) {
                cases.push(Case {
                    program,
                    runtime,
                    arguments,
                });
            }
        }
    }
    cases
}

/// Builds what `mica run` needs, optimized.
pub(crate) fn build_release() -> Result<()> {
    let packages = ["mica-cli", "mica-shim", "mica-nvml-shim"];
    let mut command = cargo(&["build", "--release"]);
    for package in packages {
        command.args(["--package", package]);
    }
    run_command("release build", &mut command)
}

/// Where built programs lie, with a `libcuda.so` for those that link the driver directly: Mica's own.
fn binaries() -> Result<PathBuf> {
    let folder = target().join("programs");
    std::fs::create_dir_all(&folder)?;
    let link = folder.join("libcuda.so");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(target().join("release/libmica_shim.so"), link)?;
    Ok(folder)
}

/// Builds one program with the compiler's own runtime.
pub(crate) fn build_program(source: &Path) -> Result<PathBuf> {
    let program = Program::read(source)?;
    let (nvcc, folder) = (toolkit::nvcc()?, binaries()?);
    let case = Case {
        program: &program,
        runtime: &toolkit::OWN,
        arguments: &toolkit::OWN.arguments()?,
    };
    build_one(&case, &nvcc, &folder)?;
    Ok(case.binary(&folder))
}

/// Builds what is older than its source, as many at once as there are processors.
fn build_all(cases: &[Case], nvcc: &Path, folder: &Path) -> Vec<Result<()>> {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut results: Vec<(usize, Result<()>)> = std::thread::scope(|scope| {
        let take_turns = || {
            let mut done = Vec::new();
            while let Some((at, case)) = {
                let at = next.fetch_add(1, Relaxed);
                cases.get(at).map(|case| (at, case))
            } {
                done.push((at, build_one(case, nvcc, folder)));
            }
            done
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(take_turns)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap_or_default())
            .collect()
    });
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

fn build_one(case: &Case, nvcc: &Path, folder: &Path) -> Result<()> {
    let (program, binary) = (case.program, case.binary(folder));
    if program.skip.is_some() || !is_older(&binary, &program.source) {
        return Ok(());
    }
    let output = Command::new(nvcc)
        .args(["-gencode", "arch=compute_75,code=compute_75"])
        .args(case.arguments)
        .arg("-L")
        .arg(folder)
        .args(&program.options)
        .arg("-o")
        .arg(&binary)
        .arg(&program.source)
        .output()
        .context("nvcc cannot start")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("nvcc failed: {}", tail(&said));
    }
    Ok(())
}

/// Runs a program through `mica run` on the software GPU; it must end with `ok`, and Mica must say what
/// the program says it will.
fn run_one(program: &Program, binary: &Path) -> Result<()> {
    let output = with_options(&program.run)
        .arg(binary)
        .output()
        .context("mica cannot start")?;
    must_be_ok(&output)?;
    must_know_of_memory(&program.name, &output, true)?;
    let said = String::from_utf8_lossy(&output.stderr);
    let tells = |line: &str| program.told.iter().all(|part| line.contains(part.as_str()));
    let mut told = said.lines().filter(|line| line.starts_with("mica: "));
    if !program.told.is_empty() && !told.any(tells) {
        bail!("mica said {:?}, not {:?}", tail(&said), program.told);
    }
    Ok(())
}

/// A program must succeed and print `ok` last. Answers the lines before it that name its cases.
pub(crate) fn must_be_ok(output: &Output) -> Result<usize> {
    let printed = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || printed.lines().last() != Some("ok") {
        bail!(
            "{}; printed {:?} and {:?}",
            output.status,
            tail(&printed),
            tail(&String::from_utf8_lossy(&output.stderr))
        );
    }
    Ok(printed
        .lines()
        .filter(|line| line.starts_with("  "))
        .count())
}

/// Programs in which a running kernel and the program talk through host memory, and what Mica says to one that maps it
/// where it is copied.
const SHARE_MEMORY_WITH_KERNELS: [(&str, Option<&str>); 2] = [
    ("managed_concurrent", None),
    (
        "zero_copy",
        Some("mica: memory that is mapped into the GPU is copied"),
    ),
];

/// A program that shares memory with running kernels does so where memory is shared; elsewhere the device's attributes keep
/// it from that, and the user is told if it maps memory all the same.
pub(crate) fn must_know_of_memory(name: &str, output: &Output, is_shared: bool) -> Result<()> {
    let mut known = SHARE_MEMORY_WITH_KERNELS.iter();
    let Some((_, warning)) = known.find(|(other, _)| *other == name) else {
        return Ok(());
    };
    let printed = String::from_utf8_lossy(&output.stdout);
    let has_skipped = printed.lines().any(|line| line.starts_with("skipped: "));
    let said = String::from_utf8_lossy(&output.stderr);
    let warned = warning.map_or(0, |text| {
        said.lines().filter(|line| line.starts_with(text)).count()
    });
    let expected = usize::from(!is_shared && warning.is_some());
    if has_skipped == is_shared || warned != expected {
        bail!("host memory is shared: {is_shared}; printed {printed:?} and {said:?}");
    }
    Ok(())
}

/// `mica run` on the software GPU with a bounded time, up to the program's name.
pub(crate) fn in_virtual_gpu() -> Command {
    with_options(&[])
}

fn with_options(options: &[String]) -> Command {
    let mut command = Command::new("timeout");
    command
        .arg("300")
        .arg(target().join("release/mica"))
        .args(["run", "--memory", "1GiB", "--mode", "isolated"])
        .args(["--gpu", "software"])
        .args(options)
        .arg("--");
    command
}

fn programs(folder: &Path) -> Result<Vec<Program>> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Ok(Vec::new());
    };
    let mut programs = Vec::new();
    for entry in entries {
        let source = entry?.path();
        if source.extension().is_none_or(|extension| extension != "cu") {
            continue;
        }
        programs.push(Program::read(&source)?);
    }
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(programs)
}

/// Whether a program must be built again: its source or the header they all share is newer.
fn is_older(built: &Path, source: &Path) -> bool {
    let time = |path: &Path| {
        std::fs::metadata(path)
            .and_then(|data| data.modified())
            .ok()
    };
    let newest = time(source).max(time(&source.with_file_name("check.h")));
    time(built).is_none_or(|built| Some(built) < newest)
}

/// The end of what a program said.
pub(crate) fn tail(text: &str) -> &str {
    let start = text.len().saturating_sub(600);
    let start = (start..text.len())
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(text.len());
    text[start..].trim()
}
