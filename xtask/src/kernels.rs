//! `cargo xtask kernels`: the kernels of the compute library, from CUDA C++ to PTX.
//!
//! The PTX is committed, so that nobody needs a compiler to build Mica. Its first line has a hash of
//! everything that it was made from; a test of `mica-ops` compares it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::command::root;
use crate::toolkit;

/// The oldest PTX version that has what the kernels use, so that older drivers take them too.
const PTX_VERSION: &str = ".version 8.3";

/// Compiles the kernels of `crates/ops/kernels/list.txt` whose name contains the filter and whose
/// sources have changed.
pub(crate) fn run(filter: &str) -> Result<()> {
    let folder = root().join("crates/ops/kernels");
    let list = std::fs::read_to_string(folder.join("list.txt"))?;
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, source, architecture, define] = words[..] else {
            bail!("list.txt: {line:?} is not NAME SOURCE ARCHITECTURE DEFINE");
        };
        if !name.contains(filter) {
            continue;
        }
        let mut hash = Sha256::new();
        hash.update(line.as_bytes());
        for file in sources(&folder, source)? {
            hash.update(&std::fs::read(folder.join(file))?);
        }
        let digest = hash.finalize();
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let first = format!("// made by `cargo xtask kernels` from {digest}");
        let target = folder.join(format!("{name}.ptx"));
        let present = std::fs::read_to_string(&target).unwrap_or_default();
        if present.lines().next() == Some(first.as_str()) {
            continue;
        }
        println!("{name}");
        let text = compile(&folder, source, architecture, define)?;
        std::fs::write(&target, format!("{first}\n{text}"))?;
    }
    Ok(())
}

/// A source and all files that it includes, in the order of their names.
fn sources(folder: &Path, source: &str) -> Result<BTreeSet<String>> {
    let mut files = BTreeSet::new();
    let mut open = vec![source.to_owned()];
    while let Some(file) = open.pop() {
        let text = std::fs::read_to_string(folder.join(&file)).with_context(|| file.clone())?;
        let names = text
            .lines()
            .filter_map(|line| line.strip_prefix("#include \""));
        let names = names.map(|name| name.trim_end_matches('"').to_owned());
        open.extend(names.filter(|name| !files.contains(name)));
        files.insert(file);
    }
    Ok(files)
}

fn compile(folder: &Path, source: &str, architecture: &str, define: &str) -> Result<String> {
    let made = folder.join("made.ptx.new");
    let output = Command::new(toolkit::nvcc()?)
        .current_dir(folder)
        .args(["-ptx", "-O3", "-std=c++17", "-o"])
        .arg(&made)
        .arg(format!("-arch=compute_{architecture}"))
        .arg(format!("-D{define}"))
        .arg(source)
        .output()
        .context("nvcc cannot start")?;
    if !output.status.success() {
        bail!("{source}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = std::fs::read_to_string(&made)?;
    std::fs::remove_file(&made)?;
    let lines = text
        .lines()
        .map(|line| match line.starts_with(".version ") {
            true => PTX_VERSION,
            false => line,
        });
    // Comments are for readers of PTX, and a third of the text.
    let lines = lines.filter(|line| !line.trim_start().starts_with("//") && !line.is_empty());
    Ok(lines.map(|line| format!("{line}\n")).collect())
}
