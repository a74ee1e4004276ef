//! Where NVIDIA's libraries are: what the dynamic linker would find, and where else they usually lie.
//!
//! Finds files and opens none: whether one is the real library is the caller's to check, for Mica's own has the same name.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Where a container that may use the card itself has the driver's libraries: in no folder that a loader searches, for Mica's
/// have these names. `mica cdi generate --mode direct` has them mounted there.
pub const CONTAINER_DRIVER_DIR: &str = "/usr/local/nvidia/mica-driver";

/// Where distributions, containers and WSL put the driver's libraries.
const USUAL_PLACES: [&str; 10] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/run/opengl-driver/lib",
    "/usr/lib/wsl/lib",
    CONTAINER_DRIVER_DIR,
];

/// Existing files of this name, best first, each real file once: by the library path that programs were given, by the
/// linker's cache, in the usual places.
pub fn library_files(name: &str, library_path: &OsStr) -> Vec<PathBuf> {
    let cached = std::fs::read("/etc/ld.so.cache").unwrap_or_default();
    let given = library_path
        .as_bytes()
        .split(|byte| matches!(byte, b':' | b';'));
    let given = given.filter(|folder| !folder.is_empty());
    let given = given.map(|folder| PathBuf::from(OsString::from_vec(folder.to_vec())).join(name));
    let usual = USUAL_PLACES.iter().map(|place| Path::new(place).join(name));
    let mut real = Vec::new();
    given
        .chain(cache_entries(&cached, name))
        .chain(usual)
        .filter(|path| match path.canonicalize() {
            Ok(file) if !real.contains(&file) => {
                real.push(file);
                true
            }
            _ => false,
        })
        .collect()
}

/// Paths that the linker's cache gives for a library, in its order.
fn cache_entries(cache: &[u8], name: &str) -> Vec<PathBuf> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache";
    const HEADER_BYTES: usize = 48;
    const ENTRY_BYTES: usize = 24;
    // Old files begin with an older table; offsets count from the newer one's header.
    let Some(start) = cache.windows(MAGIC.len()).position(|w| w == MAGIC) else {
        return Vec::new();
    };
    let table = &cache[start..];
    let word = |at: usize| {
        let bytes = table.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let text = |at: usize| {
        let bytes = table.get(at..)?;
        let end = bytes.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&bytes[..end]).ok()
    };
    let count = word(20).unwrap_or(0).min(table.len() / ENTRY_BYTES);
    let mut paths = Vec::new();
    for index in 0..count {
        let entry = HEADER_BYTES + index * ENTRY_BYTES;
        let (Some(key), Some(value)) = (word(entry + 4), word(entry + 8)) else {
            break;
        };
        if text(key) == Some(name)
            && let Some(path) = text(value)
        {
            paths.push(path.into());
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_path_goes_before_the_cache() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let own = folder.path().join("libc.so.6");
        std::fs::write(&own, "").expect("a writable folder");
        let path = OsString::from(format!("/no/such/folder::{}", folder.path().display()));
        let found = library_files("libc.so.6", &path);
        assert_eq!(found[0], own);
        assert_eq!(found[1..], library_files("libc.so.6", OsStr::new("")));
        assert!(found.len() > 1, "{found:?}");
    }

    #[test]
    fn the_linkers_cache_gives_the_c_library() {
        let cache = std::fs::read("/etc/ld.so.cache").expect("glibc systems have one");
        let found = cache_entries(&cache, "libc.so.6");
        assert!(found.iter().any(|path| path.exists()), "{found:?}");
        assert!(cache_entries(&cache, "libnothing.so.77").is_empty());
    }

    #[test]
    fn a_damaged_cache_gives_nothing() {
        let cache = std::fs::read("/etc/ld.so.cache").expect("glibc systems have one");
        for cut in [0, 10, 21, 47, 49, 60, cache.len() / 2] {
            let cut = cut.min(cache.len());
            cache_entries(&cache[..cut], "libc.so.6");
        }
        let mut noise = cache.clone();
        for byte in &mut noise[20..] {
            *byte = 0xFF;
        }
        assert!(cache_entries(&noise, "libc.so.6").is_empty());
    }
}
