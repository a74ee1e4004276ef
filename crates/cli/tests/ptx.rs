//! `mica ptx`, as someone sees it who has a file and wonders what is in it.

use std::path::Path;
use std::process::{Command, Output};

fn mica(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mica"))
        .arg("ptx")
        .args(args)
        .output()
        .expect("mica runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn fixture(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join(name).display().to_string()
}

fn file(dir: &tempfile::TempDir, name: &str, contents: &str) -> String {
    let path = dir.path().join(name);
    std::fs::write(&path, contents).expect("writes");
    path.display().to_string()
}

const HEAD: &str = ".version 8.4\n.target sm_90\n.address_size 64\n";

#[test]
fn kernels_are_compiled_when_asked() {
    let path = fixture("tests/ptx/matmul.80.ptx");
    let plain = mica(&[&path]);
    assert!(plain.status.success());
    for part in ["kernel ", "parameters:", "registers:", "shared memory:"] {
        assert!(text(&plain.stdout).contains(part), "{part}");
    }
    assert!(!text(&plain.stdout).contains("compiled for this machine"));
    let checked = mica(&[&path, "--check"]);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    assert!(text(&checked.stdout).contains("compiled for this machine"));
    assert!(text(&checked.stdout).contains(" ms  "));
}

#[test]
fn what_cannot_run_is_listed_and_fails_the_check() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = file(
        &dir,
        "k.ptx",
        &format!(
            "{HEAD}.visible .entry k() {{\n.reg .b64 %d;\n\
             tcgen05.wait::ld.sync.aligned;\nret; }}"
        ),
    );
    let plain = mica(&[&path]);
    assert!(plain.status.success(), "looking is no failure");
    let listing = text(&plain.stdout);
    assert!(
        listing.contains("not supported\n  line 6: tcgen05.wait::ld.sync.aligned in k"),
        "{listing}"
    );
    let checked = mica(&[&path, "--check"]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(text(&checked.stderr).contains("cannot run one thing"));
    let json = mica(&[&path, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    let refused = &json[0]["ptx"]["unsupported"][0];
    assert_eq!(refused["what"], "tcgen05.wait::ld.sync.aligned");
    assert_eq!(
        (&refused["line"], &refused["function"]),
        (&6.into(), &"k".into())
    );
}

#[test]
fn what_only_the_interpreter_runs_is_said_and_passes_the_check() {
    let dir = tempfile::tempdir().expect("a directory");
    let body = "  .reg .b64 %d<2>;\n  alloca.u64 %d0, 16, 8;\n  ret;";
    let path = file(
        &dir,
        "k.ptx",
        &format!("{HEAD}.visible .entry k() {{\n{body}\n}}"),
    );
    let checked = mica(&[&path, "--check"]);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    let shown = text(&checked.stdout);
    assert!(shown.contains("interpreted  k: `k` uses alloca"), "{shown}");
}

#[test]
fn variables_that_are_nowhere_are_listed() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = file(
        &dir,
        "k.ptx",
        &format!("{HEAD}.extern .global .u32 gone;\n.visible .entry k() {{ ret; }}"),
    );
    let shown = text(&mica(&[&path]).stdout);
    assert!(shown.contains("not supported"), "{shown}");
    assert!(shown.contains("`gone`"), "{shown}");
}

#[test]
fn a_mistake_is_shown_where_it_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = file(
        &dir,
        "k.ptx",
        &format!("{HEAD}.visible .entry k() {{\n  .reg .b32 %r<2>;\n  add.s32 %r0, %r1, %r9;\n}}"),
    );
    let shown = text(&mica(&[&path]).stderr);
    assert!(shown.contains("line 6, column 21"), "{shown}");
    assert!(shown.contains("add.s32 %r0, %r1, %r9;"), "{shown}");
    assert!(shown.contains('^'), "{shown}");
}

#[test]
fn machine_code_alone_is_explained() {
    let cubins = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fatbin/tests/data");
    let cubin = std::fs::read_dir(cubins)
        .expect("fixtures")
        .map(|f| f.expect("a file").path())
        .find(|p| p.extension().is_some_and(|e| e == "cubin"))
        .expect("a cubin");
    let shown = mica(&[&cubin.display().to_string()]);
    assert!(shown.status.success());
    let shown = text(&shown.stdout);
    assert!(shown.contains("machine code"), "{shown}");
    assert!(shown.contains("kernel "), "{shown}");
    assert!(shown.contains("compiles PTX and cannot run it"), "{shown}");
}

#[test]
fn files_without_gpu_code_say_what_they_are() {
    let dir = tempfile::tempdir().expect("a directory");
    let notes = file(&dir, "notes.txt", "hello\n");
    for (path, why) in [
        (notes.as_str(), "not a fatbin, ELF, archive or PTX"),
        ("/bin/true", "ELF file without GPU code"),
        ("/nonexistent", "cannot be read"),
    ] {
        let shown = mica(&[path]);
        assert_eq!(shown.status.code(), Some(1));
        assert!(text(&shown.stderr).contains(why), "{}", text(&shown.stderr));
    }
}
