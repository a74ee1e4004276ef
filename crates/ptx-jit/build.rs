//! Names the sources that decide what machine code is made, so that code kept on disk is used only
//! by the very compiler that made it.

use std::path::{Path, PathBuf};

fn list(dir: &Path, out: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for e in entries.flatten() {
        let p = e.path();
        if p.is_dir() {
            list(&p, out);
        } else if p.extension().is_some_and(|e| e == "rs") {
            out.push(p);
        }
    }
}

fn main() {
    let mut files = Vec::new();
    for dir in ["src", "../ptx/src", "../ptx-ops/src", "../kernel/src"] {
        println!("cargo:rerun-if-changed={dir}");
        list(Path::new(dir), &mut files);
    }
    files.sort();
    // FNV-1a: it only has to tell versions apart.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for f in files {
        for b in std::fs::read(&f).unwrap_or_default() {
            hash = (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
        }
    }
    println!("cargo:rustc-env=MICA_JIT_SOURCES={hash:016x}");
}
