//! The libraries by the C library they are for: programs in containers may have another than the host's.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{EMBEDDED, LIBRARIES, Origin, find, present, unpack};

/// A C library that programs are linked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Libc {
    /// That of most distributions.
    Gnu,
    /// That of Alpine.
    Musl,
}

impl Libc {
    /// A name for a folder.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gnu => "gnu",
            Self::Musl => "musl",
        }
    }
}

/// The names that programs ask for, and the file they lead to.
pub(crate) type NamedLibrary = (&'static [&'static str], Vec<u8>);

/// The libraries for a C library; `None` where this build has none for it.
pub(crate) fn of_libc(libc: Libc) -> Result<Option<Vec<NamedLibrary>>> {
    let carried = match (libc, &EMBEDDED) {
        (Libc::Musl, Some(embedded)) => embedded.musl,
        _ => None,
    };
    if let (Some(files), true) = (carried, std::env::var_os("MICA_LIB_DIR").is_none()) {
        let named = LIBRARIES.iter().zip(files);
        let named = named.map(|((_, names), bytes)| (*names, bytes.to_vec()));
        return Ok(Some(named.collect()));
    }
    let Some(folder) = folder_of(libc)? else {
        return Ok(None);
    };
    let read = |built: &str| {
        let file = folder.join(built);
        std::fs::read(&file).with_context(|| format!("{} cannot be read", file.display()))
    };
    let named = LIBRARIES
        .iter()
        .map(|(built, names)| Ok((*names, read(built)?)));
    named.collect::<Result<_>>().map(Some)
}

fn folder_of(libc: Libc) -> Result<Option<PathBuf>> {
    let found = find()?;
    if libc == Libc::Gnu {
        return Ok(Some(found.folder));
    }
    let folder = match found.origin {
        Origin::Carried => return Ok(None),
        Origin::Chosen => found.folder.join("musl"),
        // Cargo builds for another target beside: target/debug, target/TARGET/debug.
        Origin::Beside => {
            let profile = found.folder.file_name().unwrap_or_default();
            let target = found.folder.parent().unwrap_or(Path::new("/"));
            target.join("x86_64-unknown-linux-musl").join(profile)
        }
    };
    Ok(present(&folder).ok())
}

/// Writes the libraries for each C library into a folder of the C library's name, and says what there is.
pub(crate) fn write_for_all(folder: &Path) -> Result<()> {
    for libc in [Libc::Gnu, Libc::Musl] {
        for (names, content) in of_libc(libc)?.into_iter().flatten() {
            let file = folder.join(libc.name()).join(names[0]);
            let failed = || format!("{} cannot be written", file.display());
            std::fs::create_dir_all(folder.join(libc.name())).with_context(failed)?;
            std::fs::write(&file, content).with_context(failed)?;
            outln!("{}", file.display());
        }
    }
    Ok(())
}

/// Leaves a file with this content for everybody to read, in a folder that only this user can write.
pub(crate) fn place(file: &Path, content: &[u8]) -> Result<()> {
    if let Some(folder) = file.parent() {
        unpack::private(folder)?;
    }
    unpack::write_if_different(file, content)?;
    Ok(())
}
