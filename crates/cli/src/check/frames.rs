//! Names for the frames of host stacks.

use std::collections::BTreeMap;
use std::path::Path;

/// Who made which allocation.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    /// By what was made, nothing for memory, and its address or handle.
    made: BTreeMap<(String, u64), Vec<(String, u64)>>,
}

impl Stacks {
    pub(super) fn add(&mut self, what: String, address: u64, frames: Vec<(String, u64)>) {
        self.made.insert((what, address), frames);
    }

    /// The frames of what was made at an address, readable.
    pub(super) fn of(&self, what: &str, address: u64) -> Vec<String> {
        let frames = self.made.get(&(what.to_owned(), address));
        let frames = frames.into_iter().flatten();
        let wanted = frames.filter(|(file, _)| !is_below_programs(file));
        wanted.map(|(file, offset)| shown(file, *offset)).collect()
    }
}

/// Libraries whose frames say nothing about a program: its start, and CUDA's runtime.
fn is_below_programs(file: &str) -> bool {
    let name = Path::new(file).file_name().unwrap_or_default();
    let name = name.to_string_lossy();
    ["libc.so", "libcudart", "ld-linux"]
        .iter()
        .any(|known| name.starts_with(known))
}

fn shown(file: &str, offset: u64) -> String {
    format!("{file}+{offset:#x}")
}
