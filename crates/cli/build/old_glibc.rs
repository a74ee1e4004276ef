//! Stand-ins for glibc's libraries, so that what is linked here also loads where glibc is older.
//!
//! A linker binds a name to the newest version that the library has on this machine: `pthread_create` of glibc 2.34, which
//! an image with glibc 2.31 refuses to load. The stand-ins have every function of this machine's glibc under the version
//! that a linker takes where glibc is [`NEWEST`]; newer ones keep those versions for programs that were linked earlier. Still
//! older versions differ in what they do: `realpath` without a buffer fails. Functions younger than [`NEWEST`] are left out: Rust's
//! standard library asks for those weakly and has other ways, except for the `stat` functions, which are system calls
//! behind old names and are defined here. Up to glibc 2.33 threads and `dlopen` were libraries of their own, and are here.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The newest glibc whose functions are used: that of RHEL 7 and of manylinux2014.
const NEWEST: [u32; 3] = [2, 17, 0];

/// `dlopen` and those that come with it.
const LOADING: [&str; 8] = [
    "dladdr", "dladdr1", "dlclose", "dlerror", "dlinfo", "dlmopen", "dlopen", "dlsym",
];

/// Name and number of the system call.
const STAT_CALLS: [(&str, u32); 4] = [("stat", 4), ("fstat", 5), ("lstat", 6), ("fstatat", 262)];

/// A function or variable, and its version.
struct Symbol {
    name: String,
    version: String,
    is_function: bool,
}

/// Writes the stand-ins into a folder; a linker that searches the folder first takes them.
///
/// # Errors
/// The compiler, `nm` or `ar` fails, or this machine has no glibc.
pub(crate) fn write(folder: &Path) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(folder)?;
    let real = file_of("libc.so.6")?;
    let mut words = Command::new("nm");
    words.args(["-D", "--with-symbol-versions", "--defined-only"]);
    let symbols = of_newest(&output(words.arg(&real))?);
    let library_of = |symbol: &Symbol| {
        let name = symbol.name.as_str();
        let is_thread = name.starts_with("pthread_") || name.starts_with("sem_");
        match (LOADING.contains(&name), is_thread) {
            (true, _) => "libdl.so.2",
            (false, true) => "libpthread.so.0",
            (false, false) => "libc.so.6",
        }
    };
    for library in ["libc.so.6", "libpthread.so.0", "libdl.so.2"] {
        let own: Vec<&Symbol> = symbols
            .iter()
            .filter(|s| library_of(s) == library)
            .collect();
        build_library(folder, library, &own)?;
    }
    for (name, library) in [
        ("libpthread.so", "libpthread.so.0"),
        ("libdl.so", "libdl.so.2"),
    ] {
        std::fs::copy(folder.join(library), folder.join(name))?;
    }
    let stat = build_stat(folder)?;
    // As the real one, which also names what is linked into every program.
    let script = format!(
        "GROUP ( {} {} {} AS_NEEDED ( {} ) )\n",
        folder.join("libc.so.6").display(),
        stat.display(),
        file_of("libc_nonshared.a")?.display(),
        file_of("ld-linux-x86-64.so.2")?.display()
    );
    std::fs::write(folder.join("libc.so"), script)?;
    Ok(())
}

/// Each symbol with the version that it had in [`NEWEST`].
fn of_newest(listing: &str) -> Vec<Symbol> {
    let mut all: BTreeMap<String, ([u32; 3], Symbol)> = BTreeMap::new();
    for line in listing.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, kind, symbol] = words[..] else {
            continue;
        };
        let Some((name, version)) = symbol.split_once('@') else {
            continue;
        };
        let version = version.trim_start_matches('@');
        let Some(number) = version.strip_prefix("GLIBC_").and_then(number) else {
            continue;
        };
        if number > NEWEST || all.get(name).is_some_and(|(known, _)| *known >= number) {
            continue;
        }
        let symbol = Symbol {
            name: name.into(),
            version: version.into(),
            is_function: matches!(kind, "T" | "W" | "i"),
        };
        all.insert(name.into(), (number, symbol));
    }
    all.into_values().map(|(_, symbol)| symbol).collect()
}

/// `2.3.4` as numbers.
fn number(version: &str) -> Option<[u32; 3]> {
    let mut parts = version.split('.').map(|part| part.parse().ok());
    Some([
        parts.next()??,
        parts.next()??,
        parts.next().unwrap_or(Some(0))?,
    ])
}

fn build_library(folder: &Path, library: &str, symbols: &[&Symbol]) -> Result<(), Box<dyn Error>> {
    let mut source = String::new();
    let mut versions: BTreeMap<_, (&str, String)> = BTreeMap::new();
    for Symbol {
        name,
        version,
        is_function,
    } in symbols
    {
        let of_version = versions.entry(number(version.trim_start_matches("GLIBC_")));
        let names = &mut of_version.or_insert((version, String::new())).1;
        write!(names, "\"{name}\"; ")?;
        let (section, kind) = match is_function {
            true => (".text", "@function"),
            false => (".data", "@object"),
        };
        write!(
            source,
            "{section}\n.globl \"{name}\"\n.type \"{name}\", {kind}\n\"{name}\": .quad 0\n.size \"{name}\", 8\n"
        )?;
    }
    let mut script = String::new();
    for (version, names) in versions.values() {
        let hidden = if script.is_empty() { "local: *;" } else { "" };
        writeln!(script, "{version} {{ global: {names}{hidden} }};")?;
    }
    let (assembly, map) = (folder.join("stand_in.s"), folder.join("stand_in.map"));
    std::fs::write(&assembly, source)?;
    std::fs::write(&map, script)?;
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-nostdlib", "-o"])
        .arg(folder.join(library));
    cc.arg(format!("-Wl,-soname,{library}"));
    cc.arg(format!("-Wl,--version-script={}", map.display()));
    output(cc.arg(&assembly))?;
    Ok(())
}

/// The `stat` functions, for this library alone: nobody else sees the names.
fn build_stat(folder: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let mut source = String::from(".text\n");
    for (name, call) in STAT_CALLS {
        // `stat64` has the layout of `stat` on 64-bit machines.
        write!(
            source,
            ".globl {name}, {name}64\n.hidden {name}, {name}64\n.type {name}, @function\n.type {name}64, @function\n\
             {name}:\n{name}64:\n mov %rcx, %r10\n mov ${call}, %eax\n syscall\n cmp $-4095, %rax\n jae failed\n ret\n"
        )?;
    }
    source += "failed:\n neg %eax\n push %rax\n call __errno_location@PLT\n pop %rcx\n mov %ecx, (%rax)\n mov $-1, %eax\n ret\n\
         .section .note.GNU-stack,\"\",@progbits\n";
    let (assembly, object) = (folder.join("stat.s"), folder.join("stat.o"));
    std::fs::write(&assembly, source)?;
    output(
        Command::new("cc")
            .arg("-c")
            .arg(&assembly)
            .arg("-o")
            .arg(&object),
    )?;
    let archive = folder.join("libstat.a");
    let _ = std::fs::remove_file(&archive);
    output(Command::new("ar").arg("rcs").arg(&archive).arg(&object))?;
    Ok(archive)
}

/// A file of the compiler's.
fn file_of(name: &str) -> Result<PathBuf, Box<dyn Error>> {
    let path = output(Command::new("cc").arg(format!("-print-file-name={name}")))?;
    let path = PathBuf::from(path.trim());
    match path.is_absolute() {
        true => Ok(path),
        false => Err(format!("the compiler has no {name}").into()),
    }
}

fn output(command: &mut Command) -> Result<String, Box<dyn Error>> {
    let output = command.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?} failed ({}):\n{said}", output.status).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
