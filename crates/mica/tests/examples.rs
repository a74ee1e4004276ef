//! Runs the examples: each must end well and print what a newcomer is to see.

use std::path::PathBuf;
use std::process::Command;

/// What an example is given, and what it prints at least.
const EXAMPLES: &[(&str, &[&str], &[&str])] = &[
    ("basic", &[], &["sums are right"]),
    (
        "copies",
        &[],
        &[
            "device to device",
            "GB/s",
            "the source has 20 values, the buffer 10",
            "another virtual GPU",
        ],
    ),
    ("device_info", &[], &["compute capability", "WarpSize"]),
    (
        "fragmentation",
        &[],
        &["one buffer in all the holes", "requests were refused"],
    ),
    ("graph", &[], &["recorded 20 nodes", "first sum is 20"]),
    ("memory", &[], &["copied there and back: true"]),
    ("multi_tenant", &["0.5"], &["asked 50.0 %"]),
    ("profile", &[], &["SHARE", "kernel vadd", "kernel work"]),
    ("ptx_kernel", &[], &["blocks fit a multiprocessor"]),
    ("resize", &[], &["down to 16 MiB once freed"]),
    ("saturate", &["0.3"], &["of GPU time"]),
    ("shared_work", &[], &["round 3"]),
    ("streams", &[], &["4 batches"]),
    ("texture", &[], &["8 x 8 pixels became 64 x 64", "@"]),
    (
        "two_tenants",
        &[],
        &["TENSOR CORES", "research", "allowed", "refused"],
    ),
    ("utilization", &[], &["WARNING: above 80 %", "warnings"]),
];

/// Where cargo puts the examples of this package, beside this test.
fn folder() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("examples")
}

#[test]
fn every_example_runs() {
    let folder = folder();
    let mut sources = Vec::new();
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap() {
        let name = file.unwrap().path();
        sources.push(name.file_stem().unwrap().to_string_lossy().into_owned());
    }
    sources.sort();
    let known: Vec<_> = EXAMPLES
        .iter()
        .map(|(name, ..)| (*name).to_owned())
        .collect();
    assert_eq!(sources, known, "an example is not in the list of this test");
    for (name, arguments, wanted) in EXAMPLES {
        let program = folder.join(name);
        assert!(
            program.exists(),
            "{} is not there: build it with `cargo build -p mica --examples`",
            program.display()
        );
        let output = Command::new(&program).args(*arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {text}{errors}");
        for wanted in *wanted {
            assert!(
                text.contains(wanted),
                "{name} does not print {wanted:?}: {text}"
            );
        }
    }
}
