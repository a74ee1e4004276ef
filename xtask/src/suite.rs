//! The CUDA programs in `tests/programs`: built by nvcc, run unmodified in a virtual GPU.
//!
//! Each `NAME.cu` checks itself: it prints `ok` on its last line and exits with 0, or says what was
//! wrong. The first comment line may carry options: `// nvcc: -std=c++17` or `// skip: reason`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{cargo, root, run as run_command, target};
use crate::toolkit;

/// One program of the suite.
struct Program {
    name: String,
    source: PathBuf,
    options: Vec<String>,
    skip: Option<String>,
}

/// Builds and runs the programs whose name contains `filter`.
pub(crate) fn run(filter: &str) -> Result<()> {
    let programs: Vec<Program> = programs()?
        .into_iter()
        .filter(|program| program.name.contains(filter))
        .collect();
    if programs.is_empty() {
        eprintln!("==> no CUDA programs to run");
        return Ok(());
    }
    let nvcc = toolkit::nvcc()?;
    run_command(
        "release build",
        &mut cargo(&["build", "--release", "--workspace"]),
    )?;
    let folder = target().join("programs");
    std::fs::create_dir_all(&folder)?;
    provide_link_library(&folder)?;
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for program in &programs {
        if let Some(reason) = &program.skip {
            println!("skip  {} ({reason})", program.name);
            skipped += 1;
            continue;
        }
        match build_and_run(program, &nvcc, &folder) {
            Ok(()) => {
                println!("pass  {}", program.name);
                passed += 1;
            }
            Err(error) => {
                println!("FAIL  {}: {error:#}", program.name);
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

/// Programs that link the driver directly need a `libcuda.so` to link against: Mica's own.
fn provide_link_library(folder: &Path) -> Result<()> {
    let link = folder.join("libcuda.so");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(target().join("release/libmica_shim.so"), link)?;
    Ok(())
}

fn build_and_run(program: &Program, nvcc: &Path, folder: &Path) -> Result<()> {
    let binary = folder.join(&program.name);
    if is_older(&binary, &program.source) {
        let output = Command::new(nvcc)
            .args([
                "-gencode",
                "arch=compute_75,code=compute_75",
                "-cudart",
                "static",
            ])
            .arg("-L")
            .arg(folder)
            .args(&program.options)
            .arg("-o")
            .arg(&binary)
            .arg(&program.source)
            .output()
            .context("nvcc cannot start")?;
        if !output.status.success() {
            bail!(
                "nvcc failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
    }
    let mica = target().join("release/mica");
    let output = Command::new("timeout")
        .arg("120")
        .arg(mica)
        .args([
            "run", "--memory", "1GiB", "--mode", "isolated", "--gpu", "software", "--",
        ])
        .arg(&binary)
        .output()
        .context("mica cannot start")?;
    let printed = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || printed.lines().last() != Some("ok") {
        bail!(
            "{}; printed {:?} and {:?}",
            output.status,
            tail(&printed),
            tail(&String::from_utf8_lossy(&output.stderr))
        );
    }
    Ok(())
}

fn programs() -> Result<Vec<Program>> {
    let folder = root().join("tests/programs");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        return Ok(Vec::new());
    };
    let mut programs = Vec::new();
    for entry in entries {
        let source = entry?.path();
        if source.extension().is_none_or(|extension| extension != "cu") {
            continue;
        }
        let text = std::fs::read_to_string(&source)?;
        let comment = |key: &str| {
            text.lines()
                .take(5)
                .find_map(|line| line.strip_prefix(&format!("// {key}: ")))
        };
        programs.push(Program {
            name: source
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            options: comment("nvcc")
                .unwrap_or("")
                .split_whitespace()
                .map(String::from)
                .collect(),
            skip: comment("skip").map(String::from),
            source,
        });
    }
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(programs)
}

fn is_older(built: &Path, source: &Path) -> bool {
    let time = |path: &Path| {
        std::fs::metadata(path)
            .and_then(|data| data.modified())
            .ok()
    };
    match (time(built), time(source)) {
        (Some(built), Some(source)) => built < source,
        _ => true,
    }
}

fn tail(text: &str) -> &str {
    let start = text.len().saturating_sub(600);
    let start = (start..text.len())
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(text.len());
    text[start..].trim()
}
