//! How programs come to the shim, and the shim to the driver.

use std::process::Command;

use crate::programs::{preloaded, printed, programs};
use crate::{MIB, eventually, limited, with_limit};

#[test]
fn the_shim_is_found_by_the_library_path_too() {
    let built = programs();
    let mut command = preloaded(&["forward"]);
    command
        .env_remove("LD_PRELOAD")
        .env("LD_LIBRARY_PATH", &built.shim_directory);
    assert_eq!(printed(&command.output().unwrap()), "ok");
}

#[test]
fn a_program_with_an_rpath_that_links_the_driver_gets_the_shim() {
    let built = programs();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(
        at("decoy.c"),
        "int cuDriverGetVersion(int *v) { *v = -42; return 0; }\n",
    )
    .unwrap();
    std::fs::write(
        at("linked.c"),
        "#include <stdio.h>\nint cuDriverGetVersion(int *);\n\
         int main(void) { int v = 0; int e = cuDriverGetVersion(&v); puts(v == -42 ? \"decoy\" : e ? \"error\" : \"shim\"); return 0; }\n",
    )
    .unwrap();
    let cc = |arguments: &[&std::ffi::OsStr]| {
        assert!(
            Command::new("cc")
                .args(arguments)
                .status()
                .unwrap()
                .success()
        );
    };
    let decoy = at("libcuda.so.1");
    let soname = "-Wl,-soname,libcuda.so.1";
    cc(&[
        "-shared".as_ref(),
        "-fPIC".as_ref(),
        soname.as_ref(),
        "-o".as_ref(),
        decoy.as_ref(),
        at("decoy.c").as_ref(),
    ]);
    // The old kind of path, which the loader follows before LD_LIBRARY_PATH, and the new kind.
    for kind in ["--disable-new-dtags", "--enable-new-dtags"] {
        let path = format!("-Wl,{kind},-rpath,{}", folder.path().display());
        let linked = at("linked");
        cc(&[
            "-o".as_ref(),
            linked.as_ref(),
            at("linked.c").as_ref(),
            decoy.as_ref(),
            path.as_ref(),
        ]);
        let run = |preload: bool| {
            let mut command = Command::new(&linked);
            command.env_clear().env("MICA_LIBCUDA", &built.driver);
            if preload {
                command.env("LD_PRELOAD", &built.shim);
            }
            printed(&command.output().unwrap())
        };
        assert_eq!(
            (run(false).as_str(), run(true).as_str()),
            ("decoy", "shim"),
            "{kind}"
        );
    }
}

#[test]
fn the_driver_is_searched_for_and_a_shim_is_never_taken_for_it() {
    let built = programs();
    let driver_directory = tempfile::tempdir().unwrap();
    std::fs::copy(&built.driver, driver_directory.path().join("libcuda.so.1")).unwrap();
    let path = format!(
        "{}:{}",
        built.shim_directory.display(),
        driver_directory.path().display()
    );
    let mut command = preloaded(&["init"]);
    command
        .env_remove("MICA_LIBCUDA")
        .env("LD_LIBRARY_PATH", &path);
    // The program opens the stand-in by this variable, which the shim would follow too.
    command.env_remove("LD_PRELOAD");
    assert_eq!(printed(&command.output().unwrap()), "0");
    command.env("MICA_LIBCUDA", &built.shim);
    assert_eq!(printed(&command.output().unwrap()), "100");
}

#[test]
fn every_entry_point_is_exported() {
    let output = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(&programs().shim)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let exported: std::collections::HashSet<_> = text
        .lines()
        .filter_map(|line| line.split(' ').next_back())
        .collect();
    for entry in mica_cuda_abi::ENTRY_POINTS {
        assert!(exported.contains(entry.symbol), "{}", entry.symbol);
    }
    // And nothing of the library's own that a program could meet by accident.
    let other = |name: &&&str| !name.starts_with("cu") && !name.starts_with("MICA_SHIM_");
    assert_eq!(exported.iter().filter(other).count(), 0, "{exported:?}");
}

/// A folder with a library that adds the stand-in's new names to the shim's.
fn with_newer_names() -> (tempfile::TempDir, std::path::PathBuf) {
    let built = programs();
    let directory = tempfile::tempdir().unwrap();
    let names = mica_backend_cuda::symbols::exported_names(&built.driver).unwrap();
    let known = |name: &&String| mica_cuda_abi::find_symbol(name).is_none();
    let of_driver = |name: &&String| name.starts_with("cu");
    let newer: Vec<String> = names
        .iter()
        .filter(of_driver)
        .filter(known)
        .cloned()
        .collect();
    assert_eq!(newer.len(), 3, "{newer:?}");
    let library = directory.path().join("libcuda.so.1");
    // As installed: under another name than the one programs ask for.
    let shim = directory.path().join("libmica_shim.so");
    std::fs::copy(&built.shim, &shim).unwrap();
    std::fs::write(&library, mica_backend_cuda::newer::library(&newer, &shim)).unwrap();
    assert!(mica_backend_cuda::symbols::is_shim(&library));
    (directory, library)
}

#[test]
fn names_newer_than_the_shim_are_found_and_reported() {
    let (_libraries, library) = with_newer_names();
    let mut bare = preloaded(&["newer"]);
    assert_eq!(
        printed(&bare.env("LD_PRELOAD", &library).output().unwrap()),
        "ok"
    );
    let mut by_path = preloaded(&["forward"]);
    by_path
        .env_remove("LD_PRELOAD")
        .env("LD_LIBRARY_PATH", library.parent().unwrap());
    assert_eq!(printed(&by_path.output().unwrap()), "ok");

    let (_directory, daemon) = with_limit(64 * MIB);
    let mut command = limited(&["newer"], &daemon);
    assert_eq!(
        printed(&command.env("LD_PRELOAD", &library).output().unwrap()),
        "ok"
    );
    eventually("the note", || !daemon.notes().is_empty());
    let notes = daemon.notes();
    assert!(notes[0].starts_with("cuLaunchSwarmNew"), "{notes:?}");
    // Limits hold as before.
    let mut command = limited(&["fill", "1000000"], &daemon);
    command.env("LD_PRELOAD", &library);
    assert!(printed(&command.output().unwrap()).starts_with("67 pieces"));
}

#[test]
fn names_newer_than_the_shim_are_not_supported_in_isolated_mode() {
    let (_libraries, library) = with_newer_names();
    let mut command = preloaded(&["newer"]);
    command
        .env("LD_PRELOAD", &library)
        .env("MICA_MODE", "isolated");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("not so: call(1"), "{text}");
}

#[test]
fn a_program_without_cuda_is_left_alone() {
    let output = preloaded(&["none"])
        .env_remove("MICA_LIBCUDA")
        .output()
        .unwrap();
    assert_eq!(printed(&output), "");
}
