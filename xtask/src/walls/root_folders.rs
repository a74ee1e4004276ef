//! Root folders for containers, made of what this host has: no image is downloaded.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::root;

/// Programs that a root of glibc has.
const TOOLS: [&str; 8] = ["sh", "ls", "cat", "sleep", "env", "id", "timeout", "mount"];
/// Commands of busybox that a root of musl has.
const APPLETS: [&str; 6] = ["sh", "ls", "cat", "sleep", "env", "timeout"];
/// Parts of glibc that have been one library since 2.34: images have their files still, for programs and libraries that were linked earlier.
const FORMER_PARTS: [&str; 4] = ["libpthread.so.0", "libdl.so.2", "librt.so.1", "libm.so.6"];
const MUSL_LOADER: &str = "/lib/ld-musl-x86_64.so.1";

/// A root folder and what is special about it.
pub(super) struct RootFolder {
    pub(super) path: PathBuf,
    pub(super) name: &'static str,
}

/// A root with glibc: a shell, a few tools, the libraries that they and C++ programs need, and `programs`.
pub(super) fn glibc(folder: &Path, programs: &[PathBuf]) -> Result<RootFolder> {
    let path = folder.join("glibc");
    make_folders(&path, &["lib64", "usr/lib/x86_64-linux-gnu"])?;
    // As in Debian, where `/lib` is `/usr/lib`.
    symlink("usr/lib", path.join("lib"))?;
    for tool in TOOLS {
        let found = which(tool)?;
        copy(&found, &path.join("bin").join(tool))?;
        add_libraries(&found, &path)?;
    }
    for program in programs {
        let name = program.file_name().context("a program has no name")?;
        copy(program, &path.join("programs").join(name))?;
        add_libraries(program, &path)?;
    }
    let shell = libraries_of(&which("sh")?)?;
    let folders = shell.iter().filter_map(|library| library.parent());
    for part in FORMER_PARTS {
        let mut files = folders.clone().map(|folder| folder.join(part));
        if let Some(file) = files.find(|file| file.is_file()) {
            copy_library(&file, &path)?;
        }
    }
    build_probe("cc", &path.join("bin/probe"))?;
    let name = "glibc";
    Ok(RootFolder { path, name })
}

/// A root as Alpine has: musl and busybox; `None` where this host has not what it takes.
pub(super) fn musl(folder: &Path) -> Result<Option<RootFolder>> {
    let Ok(busybox) = which("busybox") else {
        return Ok(None);
    };
    if which("musl-gcc").is_err() || !Path::new(MUSL_LOADER).exists() {
        return Ok(None);
    }
    let path = folder.join("musl");
    make_folders(&path, &["lib", "usr/lib"])?;
    copy(
        Path::new(MUSL_LOADER),
        &path.join("lib/ld-musl-x86_64.so.1"),
    )?;
    // As in Alpine: the C library is the loader.
    symlink(
        "ld-musl-x86_64.so.1",
        path.join("lib/libc.musl-x86_64.so.1"),
    )?;
    copy(&busybox, &path.join("bin/busybox"))?;
    for applet in APPLETS {
        symlink("busybox", path.join("bin").join(applet))?;
    }
    build_probe("musl-gcc", &path.join("bin/probe"))?;
    let name = "musl";
    Ok(Some(RootFolder { path, name }))
}

fn make_folders(path: &Path, more: &[&str]) -> Result<()> {
    let usual = ["bin", "programs", "proc", "sys", "dev", "etc", "run", "tmp"];
    for folder in usual.iter().chain(more) {
        std::fs::create_dir_all(path.join(folder))?;
    }
    Ok(())
}

/// Adds the libraries that a program or library needs.
pub(super) fn add_libraries(program: &Path, root: &Path) -> Result<()> {
    for library in libraries_of(program)? {
        copy_library(&library, root)?;
    }
    Ok(())
}

/// Builds the program that checks a GPU.
pub(super) fn build_probe(compiler: &str, file: &Path) -> Result<()> {
    let built = Command::new(compiler)
        .args(["-O1", "-o"])
        .arg(file)
        .arg(root().join("tests/walls/probe.c"))
        .arg("-ldl")
        .output()
        .with_context(|| format!("{compiler} cannot start"))?;
    if !built.status.success() {
        bail!("{compiler}: {}", String::from_utf8_lossy(&built.stderr));
    }
    Ok(())
}

/// A program's file.
pub(super) fn which(program: &str) -> Result<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&folders).map(|folder| folder.join(program));
    let found = files.find(|file| file.is_file());
    Ok(found
        .with_context(|| format!("{program} is not installed"))?
        .canonicalize()?)
}

/// The libraries that the loader would take for a program.
fn libraries_of(program: &Path) -> Result<Vec<PathBuf>> {
    let listed = Command::new("ldd").arg(program).output()?;
    let text = String::from_utf8_lossy(&listed.stdout);
    let words = text.lines().flat_map(str::split_whitespace);
    let files = words.filter(|word| word.starts_with('/') && Path::new(word).is_file());
    // A program that links the driver finds the library of this build; in a container it finds the mounted one.
    Ok(files
        .filter(|file| !file.contains("mica") && !file.contains("libcuda"))
        .map(PathBuf::from)
        .collect())
}

fn copy_library(library: &Path, root: &Path) -> Result<()> {
    let name = library.file_name().context("a library has no name")?;
    let folder = match name.to_string_lossy().starts_with("ld-linux") {
        true => "lib64",
        false => "usr/lib/x86_64-linux-gnu",
    };
    copy(library, &root.join(folder).join(name))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if !to.exists() {
        std::fs::copy(from, to).with_context(|| format!("{} cannot be copied", from.display()))?;
    }
    Ok(())
}
