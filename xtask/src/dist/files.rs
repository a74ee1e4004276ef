//! Files of a package, in the memory of this process: names, modes and contents, sorted by name.

use std::collections::BTreeMap;

use anyhow::Result;

use super::archive;

/// What a name in a package is.
#[derive(Clone)]
pub(super) enum Node {
    Folder,
    /// Anybody may write, and remove what is theirs.
    OpenFolder,
    File(Vec<u8>),
    Program(Vec<u8>),
}

/// Sorted paths without a leading slash.
#[derive(Clone, Default)]
pub(super) struct Files(BTreeMap<String, Node>);

impl Files {
    /// Adds a file or a folder, and the folders above it.
    pub(super) fn add(&mut self, path: &str, node: Node) {
        let path = path.trim_start_matches('/');
        for (end, _) in path.match_indices('/') {
            let above = path[..end].to_owned();
            self.0.entry(above).or_insert(Node::Folder);
        }
        self.0.insert(path.to_owned(), node);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.0.iter().map(|(path, node)| (path.as_str(), node))
    }

    /// The same files in a folder.
    pub(super) fn below(&self, folder: &str) -> Self {
        let mut moved = Self::default();
        for (path, node) in self.iter() {
            moved.add(&format!("{folder}/{path}"), node.clone());
        }
        moved
    }

    /// A compressed archive in which every file has the same time.
    pub(super) fn tar_gz(&self, date: u64) -> Result<Vec<u8>> {
        archive::gzip(&archive::tar(self, date)?)
    }

    /// Size of all files in bytes.
    pub(super) fn bytes(&self) -> usize {
        let size = |node: &Node| match node {
            Node::File(content) | Node::Program(content) => content.len(),
            Node::Folder | Node::OpenFolder => 0,
        };
        self.0.values().map(size).sum()
    }
}
