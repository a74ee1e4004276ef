//! The examples in C and C++, compiled against the header and the shared library as a user would, and run.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of this crate.
const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// A folder with the shared library under the names that the linker and the loader look for.
fn library() -> tempfile::TempDir {
    let test = std::env::current_exe().unwrap();
    let built = test.with_file_name("libmica_c.so");
    let folder = tempfile::tempdir().unwrap();
    for name in ["libmica.so", "libmica.so.0"] {
        std::os::unix::fs::symlink(&built, folder.path().join(name)).unwrap();
    }
    folder
}

fn compile(compiler: &str, words: &[&str], source: &str, library: &Path) -> PathBuf {
    let program = library.join("program");
    let mut command = Command::new(compiler);
    command
        .args(["-Wall", "-Wextra", "-Werror", "-pedantic"])
        .args(words)
        .arg("-I")
        .arg(Path::new(HERE).join("include"))
        .arg(Path::new(HERE).join("examples").join(source))
        .arg("-L")
        .arg(library)
        .args(["-lmica", "-o"])
        .arg(&program);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler} {source}: {said}");
    program
}

/// What a program prints; it must succeed.
fn run(program: &Path, library: &Path) -> String {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", library);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn matmul_in_c() {
    let library = library();
    let program = compile("gcc", &["-std=c11"], "matmul.c", library.path());
    assert_eq!(
        run(&program, library.path()),
        "8 0\n8 0\n128 MiB in a virtual GPU of 64 MiB: MICA_ERROR_OUT_OF_MEMORY\n"
    );
}

#[test]
fn int4_in_c() {
    let library = library();
    let program = compile("gcc", &["-std=c11"], "int4.c", library.path());
    assert_eq!(
        run(&program, library.path()),
        "26 -112\n101.5 -50\n\
         MICA_ERROR_ARGUMENT: a tensor: 6 bytes for i4 of shape [2, 3], which has 3\n"
    );
}

#[test]
fn kernel_in_c() {
    let library = library();
    let program = compile("gcc", &["-std=c11"], "kernel.c", library.path());
    assert_eq!(
        run(&program, library.path()),
        "0.5 250 499.5\n\
         two parameters: MICA_ERROR_ARGUMENT\n\
         freed twice: MICA_ERROR_HANDLE: buffer is not the handle of a buffer: it was freed, or no function returned it\n"
    );
}

#[test]
fn matmul_in_cpp() {
    let library = library();
    let program = compile("g++", &["-std=c++17"], "matmul.cpp", library.path());
    let printed = run(&program, library.path());
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[0], "-2 -4 -2 -7 ");
    assert!(
        lines[1].starts_with("MICA_ERROR_ARGUMENT: ") && lines[1].contains("[2, 3]"),
        "{}",
        lines[1]
    );
    assert_eq!(lines[2..], ["4", "MICA_ERROR_GPU"]);
}

/// The header is generated and committed: each function and each constant of the source is in the header.
#[test]
fn the_header_has_everything_that_the_source_exports() {
    let header = std::fs::read_to_string(Path::new(HERE).join("include/mica.h")).unwrap();
    let mut functions = 0;
    for file in std::fs::read_dir(Path::new(HERE).join("src")).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        for line in text.lines() {
            let name = line
                .strip_prefix("pub unsafe extern \"C\" fn ")
                .or_else(|| line.strip_prefix("pub extern \"C\" fn "))
                .and_then(|rest| rest.split('(').next());
            if let Some(name) = name {
                functions += 1;
                assert!(header.contains(&format!("{name}(")), "{name} is missing");
            }
            let constant = line.strip_prefix("pub const ");
            if let Some(name) = constant.and_then(|rest| rest.split(':').next()) {
                assert!(header.contains(&format!("#define {name} ")), "{name}");
            }
        }
    }
    assert!(functions > 30, "{functions}");
    let declared = header.matches("mica_status mica_").count();
    let others = ["mica_last_error(", "mica_status_name(", "mica_version("];
    assert_eq!(
        declared + others.len(),
        functions,
        "run `cargo xtask header`"
    );
}
