//! `mica cdi`: devices for containers.

use std::path::Path;

use serde_json::Value;

use crate::home::Home;

fn document(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// Files of the caller; root's have no number.
fn file(folder: &Path, class: &str) -> std::path::PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    let number = if uid == 0 {
        String::new()
    } else {
        format!("-{uid}")
    };
    folder.join(format!("mica.dev-{class}{number}.json"))
}

#[test]
fn devices_are_written_listed_and_removed() {
    let home = Home::new();
    let folder = home.path().join("cdi");
    let output = folder.display();
    home.ok("create team-a -m 64MiB -s 30");
    let said = home.ok(&format!(
        "cdi generate --output {output} --vgpu team-a --new 32MiB-20 16MiB"
    ));
    for line in [
        "  mica.dev/vgpu=team-a",
        "  mica.dev/new=32MiB-20",
        "  mica.dev/new=16MiB",
        "try: podman run --device mica.dev/vgpu=team-a IMAGE",
    ] {
        assert!(said.lines().any(|l| l == line), "{line} is not in\n{said}");
    }
    let named = document(&file(&folder, "vgpu"));
    assert_eq!(named["cdiVersion"], "0.5.0");
    assert_eq!(named["kind"], "mica.dev/vgpu");
    let device = &named["devices"][0];
    assert_eq!(device["name"], "team-a");
    let edits = &device["containerEdits"];
    assert_eq!(edits["mounts"][0]["containerPath"], "/run/mica-vgpu");
    assert!(edits.get("deviceNodes").is_none() && edits.get("env").is_none());
    let source = edits["mounts"][0]["hostPath"].as_str().unwrap();
    assert!(Path::new(source).join("host.sock").exists());
    let libraries = named["containerEdits"]["mounts"].as_array().unwrap();
    let mounted = |path: &str| libraries.iter().find(|m| m["containerPath"] == path);
    for path in [
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "/usr/lib64/libnvidia-ml.so.1",
        "/usr/local/nvidia/lib64/libcuda.so",
    ] {
        let library = mounted(path).unwrap()["hostPath"].as_str().unwrap();
        assert!(Path::new(library).is_file(), "{library}");
    }
    let listed = home.json("cdi ls --json");
    assert_eq!(listed.as_array().unwrap().len(), 3);
    assert_eq!(listed[0]["mode"], "isolated");
    let line = format!("cdi rm --output {output} --vgpu team-a --new 16MiB");
    assert_eq!(home.ok(&line), "1 devices are left\n");
    assert!(!file(&folder, "vgpu").exists());
    let left = document(&file(&folder, "new"));
    assert_eq!(left["devices"].as_array().unwrap().len(), 1);
}

#[test]
fn what_cannot_be_a_device_is_named() {
    let home = Home::new();
    let output = home.path().join("cdi").display().to_string();
    let missing = home.fails(1, &format!("cdi generate --output {output} --vgpu nobody"));
    assert!(missing.contains("no virtual GPU named nobody"), "{missing}");
    let wrong = home.fails(2, "cdi generate --new 8GB-30");
    assert!(wrong.contains("write 8GiB-30"), "{wrong}");
    let nothing = home.fails(1, "cdi rm");
    assert!(nothing.contains("name what to remove"), "{nothing}");
    let none = home.ok(&format!("cdi generate --output {output}"));
    assert!(none.contains("no devices"), "{none}");
    let file = home.write("file", "");
    let no_folder = home.fails(1, &format!("cdi generate --output {file} --new 16MiB"));
    assert!(no_folder.contains("this is not a folder"), "{no_folder}");
    let mut command = home.command(&["cdi", "generate", "--output", &output, "--new", "999TiB"]);
    let answer = command.output().unwrap();
    let said = String::from_utf8_lossy(&answer.stderr);
    assert!(answer.status.success(), "{said}");
    assert!(said.contains("has the memory of 999TiB"), "{said}");
}
