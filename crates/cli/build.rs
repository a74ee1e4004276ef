//! Builds the two libraries that a release `mica` carries, and writes `embedded.rs` with their bytes.
//!
//! Cargo has no stable way for a program to depend on another package's shared library, so this script runs cargo
//! again, in a target folder of its own: the outer cargo holds the lock of the usual one. A debug build carries nothing, so
//! that `cargo check`, lints and tests stay fast; a debug `mica` takes the libraries that lie beside it.
//!
//! Where the compiler has a standard library for musl and `musl-gcc` is installed, both libraries are built for musl too, for programs
//! in containers such as Alpine's.

#[path = "build/old_glibc.rs"]
mod old_glibc;

use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Package and library; `libraries::LIBRARIES` has the same order.
const LIBRARIES: [(&str, &str); 2] = [
    ("mica-shim", "libmica_shim"),
    ("mica-nvml-shim", "libmica_nvml_shim"),
];

/// The target and the linker for musl.
const MUSL: &str = "x86_64-unknown-linux-musl";
const MUSL_LINKER: &str = "musl-gcc";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build/old_glibc.rs");
    let out = PathBuf::from(variable("OUT_DIR")?);
    let text = match variable("PROFILE")?.to_str() {
        Some("release") => {
            let target = variable("TARGET")?;
            let libraries = out.join("libraries");
            let folder = build(&libraries, &target, &flags_for_glibc(&out, &target))?;
            watch(&folder)?;
            let musl = match unwinder_for_musl(&target) {
                Some(unwinder) => {
                    let flags = flags_for_musl(&out, &unwinder)?;
                    Some(build(&libraries, MUSL.as_ref(), &flags)?)
                }
                None => None,
            };
            embedded(&folder, musl.as_deref())?
        }
        _ => "pub(super) const EMBEDDED: Option<Embedded> = None;\n".into(),
    };
    std::fs::write(out.join("embedded.rs"), text)?;
    Ok(())
}

/// What the compiler is told so that the libraries load where glibc is older than here.
fn flags_for_glibc(out: &Path, target: &OsStr) -> Vec<OsString> {
    let folder = out.join("old-glibc");
    if target != "x86_64-unknown-linux-gnu" {
        return Vec::new();
    }
    if let Err(error) = old_glibc::write(&folder) {
        println!("cargo::warning=the libraries need a glibc as new as this machine's: {error}");
        return Vec::new();
    }
    vec![search(&folder)]
}

/// What the compiler is told so that the libraries need nothing but musl: the program's own copy of musl, and the unwinder inside.
fn flags_for_musl(out: &Path, unwinder: &Path) -> Result<Vec<OsString>, Box<dyn Error>> {
    let folder = out.join("musl");
    std::fs::create_dir_all(&folder)?;
    // The standard library asks for GCC's shared unwinder, which an image of Alpine need not have.
    std::fs::copy(unwinder, folder.join("libgcc_s.a"))?;
    Ok(vec![
        "-Ctarget-feature=-crt-static".into(),
        // What musl has not is an error here, not in a program that loads the library.
        "-Clink-arg=-Wl,-z,defs".into(),
        search(&folder),
    ])
}

fn search(folder: &Path) -> OsString {
    let mut flag = OsString::from("-Lnative=");
    flag.push(folder);
    flag
}

/// The unwinder for musl, where the compiler has a standard library and a linker for musl.
fn unwinder_for_musl(target: &OsStr) -> Option<PathBuf> {
    println!("cargo::rerun-if-env-changed=PATH");
    let answers = |program: &OsStr, words: &[&str]| {
        let output = Command::new(program).args(words).output().ok()?;
        output.status.success().then_some(output.stdout)
    };
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let words = ["--print", "target-libdir", "--target", MUSL];
    let libraries = String::from_utf8(answers(&rustc, &words)?).ok()?;
    let unwinder = Path::new(libraries.trim()).join("self-contained/libunwind.a");
    let has_linker = answers(MUSL_LINKER.as_ref(), &["-dumpversion"]).is_some();
    (target == "x86_64-unknown-linux-gnu" && has_linker && unwinder.is_file()).then_some(unwinder)
}

/// Builds the libraries for a target; the folder they are in.
fn build(target_dir: &Path, target: &OsStr, flags: &[OsString]) -> Result<PathBuf, Box<dyn Error>> {
    // This script's own flags come first: cargo gives them to whoever asks, apart by this character.
    let own = std::env::var_os("CARGO_ENCODED_RUSTFLAGS").filter(|own| !own.is_empty());
    let flags: Vec<OsString> = own.into_iter().chain(flags.iter().cloned()).collect();
    let flags = flags.join(OsStr::new("\x1f"));
    let mut cargo = Command::new(variable("CARGO")?);
    cargo
        .args(["build", "--release", "--locked", "--target"])
        .arg(target)
        .arg("--target-dir")
        .arg(target_dir)
        .current_dir(workspace()?)
        // Under `cargo clippy` the wrapper checks and builds nothing.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        // Without line tables the libraries have 5 MB instead of 25.
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo")
        .env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER", MUSL_LINKER)
        .env("CARGO_ENCODED_RUSTFLAGS", flags);
    for (package, _) in LIBRARIES {
        cargo.args(["--package", package]);
    }
    let output = cargo.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{cargo:?} failed ({}):\n{said}", output.status).into());
    }
    Ok(target_dir.join(target).join("release"))
}

/// Has cargo run this script again when a source or a manifest of the libraries changes.
fn watch(folder: &Path) -> Result<(), Box<dyn Error>> {
    let workspace = workspace()?;
    let mut files = BTreeSet::from([workspace.join("Cargo.toml"), workspace.join("Cargo.lock")]);
    for (_, library) in LIBRARIES {
        let path = folder.join(library).with_extension("d");
        for source in sources(&std::fs::read_to_string(path)?) {
            let manifests = source.ancestors().map(|dir| dir.join("Cargo.toml"));
            files.extend(manifests.take(4).find(|manifest| manifest.is_file()));
            files.insert(source);
        }
    }
    for file in files {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    Ok(())
}

/// The sources in a `.d` file, `target: source source…`, where a blank in a path is written `\ `.
fn sources(text: &str) -> BTreeSet<PathBuf> {
    let listed = text.lines().filter_map(|line| line.split_once(": "));
    listed
        .flat_map(|(_, rest)| {
            let rest = rest.replace("\\ ", "\0");
            let paths = rest.split(' ').filter(|path| !path.is_empty());
            paths
                .map(|path| PathBuf::from(path.replace('\0', " ")))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// The source of `EMBEDDED`.
fn embedded(folder: &Path, musl: Option<&Path>) -> Result<String, Box<dyn Error>> {
    // FNV-1a: it only tells versions apart. The bytes themselves are compared before use.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for (_, library) in LIBRARIES {
        for byte in std::fs::read(file(folder, library))? {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    let included = |folder: &Path| {
        let files = LIBRARIES.map(|(_, library)| file(folder, library));
        files
            .map(|path| format!("include_bytes!({path:?}), "))
            .concat()
    };
    let files = included(folder);
    let musl = match musl {
        Some(folder) => format!("Some([{}])", included(folder)),
        None => "None".into(),
    };
    Ok(format!(
        "pub(super) const EMBEDDED: Option<Embedded> = Some(Embedded {{ hash: \"{hash:016x}\", files: [{files}], musl: {musl} }});\n"
    ))
}

fn file(folder: &Path, library: &str) -> PathBuf {
    folder.join(library).with_extension("so")
}

fn workspace() -> Result<PathBuf, Box<dyn Error>> {
    let package = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let root = package.parent().and_then(Path::parent);
    Ok(root.ok_or("the package lies in no workspace")?.to_owned())
}

fn variable(name: &str) -> Result<OsString, Box<dyn Error>> {
    std::env::var_os(name)
        .ok_or_else(|| format!("{name} is not set: cargo runs this script").into())
}
