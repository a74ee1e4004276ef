//! Which clock decides: the wall clock can jump, so no limit may depend on it.

use std::path::{Path, PathBuf};

/// Files that may read the wall clock: it is shown there, and nothing is decided by it.
const SHOWN_ONLY: [&str; 3] = [
    "daemon/src/events.rs",
    // Compares the time stamps of files, which the clock has set.
    "daemon/src/kernel_caches.rs",
    // Says in a file when the file was made.
    "worker/src/saving/save.rs",
];

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn nothing_that_enforces_reads_the_wall_clock() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for name in [
        "daemon",
        "limits",
        "scheduler",
        "worker",
        "wire",
        "vgpu",
        "shim",
    ] {
        sources(&crates.join(name).join("src"), &mut files);
    }
    assert!(files.len() > 100);
    let mut readers = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let name = file.strip_prefix(&crates).unwrap().display().to_string();
        let reads = [
            "SystemTime",
            "CLOCK_REALTIME",
            "ClockId::Realtime",
            "gettimeofday",
        ];
        if reads.iter().any(|word| text.contains(word)) && !SHOWN_ONLY.contains(&name.as_str()) {
            readers.push(name);
        }
    }
    assert!(readers.is_empty(), "{readers:?} read the wall clock");
}
