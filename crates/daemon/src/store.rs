//! The registry on disk: one file, replaced as a whole, so that a crash leaves the old or the new.

use std::io::{Read, Write};
use std::path::Path;

use mica_control::api::VgpuSpec;
use serde::{Deserialize, Serialize};

use crate::containers::StoredSocket;
use crate::registry::{MadeFor, StoredRegion};
use crate::snapshots::Parked;

/// Layout of the file.
const VERSION: u32 = 1;

/// Why state cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be read or written.
    #[error("the state file {path} cannot be {operation}")]
    Io {
        /// The file.
        path: String,
        /// What was tried.
        operation: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is not one of ours.
    #[error("the state file {path} is damaged or from another version: {message}")]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong.
        message: String,
    },
}

/// A virtual GPU as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoredVgpu {
    pub(crate) name: String,
    pub(crate) spec: VgpuSpec,
    pub(crate) memory_limit_bytes: u64,
    pub(crate) gpu_key: String,
    pub(crate) token: [u8; 16],
    pub(crate) worker_token: [u8; 16],
    pub(crate) owner_uid: u32,
    pub(crate) created_at_seconds: u64,
    pub(crate) suspended: bool,
    /// The program that waits for a snapshot to be restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parked: Option<Parked>,
    /// Creator of an ephemeral one: process number and start time.
    #[serde(default)]
    pub(crate) holder: Option<(u32, u64)>,
    #[serde(default)]
    pub(crate) gpu_seconds: f64,
    /// Programs that its worker serves: process numbers and start times.
    #[serde(default)]
    pub(crate) programs: Vec<(u32, u64)>,
    /// Which worker serves which of them, by the same numbers.
    #[serde(default)]
    pub(crate) served: Vec<((u32, u64), (u32, u64))>,
    /// The container that it was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) made_for: Option<MadeFor>,
}

/// Everything that is kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stored {
    version: u32,
    pub(crate) vgpus: Vec<StoredVgpu>,
    /// The sockets that are mounted into containers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) sockets: Vec<StoredSocket>,
    /// Memory that virtual GPUs share.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) regions: Vec<StoredRegion>,
}

impl Stored {
    pub(crate) fn new(vgpus: Vec<StoredVgpu>, sockets: Vec<StoredSocket>) -> Self {
        Self {
            version: VERSION,
            vgpus,
            sockets,
            regions: Vec::new(),
        }
    }

    /// The state with regions.
    pub(crate) fn with_regions(self, regions: Vec<StoredRegion>) -> Self {
        Self { regions, ..self }
    }
}

/// Reads the file; a missing one is an empty registry.
pub(crate) fn load(path: &Path) -> Result<Stored, StoreError> {
    let mut text = Vec::new();
    match mica_control::files::open(path).and_then(|mut file| file.read_to_end(&mut text)) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Stored::new(Vec::new(), Vec::new()));
        }
        Err(source) => return Err(io(path, "read", source)),
    }
    let damaged = |message: String| StoreError::Damaged {
        path: path.display().to_string(),
        message,
    };
    let stored: Stored =
        serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    if stored.version != VERSION {
        return Err(damaged(format!(
            "layout {} where this Mica writes {VERSION}",
            stored.version
        )));
    }
    Ok(stored)
}

/// What a saved file must outlive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outlives {
    /// The end of this process, however sudden.
    Daemon,
    /// The end of the machine too; costs a wait for the disk.
    Machine,
}

/// Replaces the file.
pub(crate) fn save(path: &Path, stored: &Stored, outlives: Outlives) -> Result<(), StoreError> {
    let text = serde_json::to_vec_pretty(stored).map_err(|error| StoreError::Damaged {
        path: path.display().to_string(),
        message: error.to_string(),
    })?;
    let temporary = path.with_extension("json.new");
    let write = || -> std::io::Result<()> {
        // The file holds tokens: nobody else may read it.
        let mut file = mica_control::files::replace(&temporary)?;
        file.write_all(&text)?;
        if outlives == Outlives::Machine {
            file.sync_data()?;
        }
        std::fs::rename(&temporary, path)?;
        if let Some(dir) = path.parent().filter(|_| outlives == Outlives::Machine) {
            std::fs::File::open(dir)?.sync_all()?;
        }
        Ok(())
    };
    write().map_err(|source| io(path, "written", source))
}

fn io(path: &Path, operation: &'static str, source: std::io::Error) -> StoreError {
    StoreError::Io {
        path: path.display().to_string(),
        operation,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded_and_a_torn_write_leaves_the_old() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        let vgpu = StoredVgpu {
            name: "a".into(),
            spec: VgpuSpec::default(),
            memory_limit_bytes: 5,
            gpu_key: "software".into(),
            token: [1; 16],
            worker_token: [2; 16],
            owner_uid: 3,
            created_at_seconds: 4,
            suspended: false,
            parked: Some(Parked {
                program: (7, 8),
                session: 9,
                worker: Some((5, 6)),
            }),
            holder: Some((1, 2)),
            gpu_seconds: 0.5,
            programs: vec![(7, 8)],
            served: vec![((5, 6), (7, 8))],
            made_for: Some(MadeFor {
                socket: 9,
                key: "k".into(),
                info: Default::default(),
            }),
        };
        let socket = StoredSocket {
            number: 9,
            owner_uid: 3,
            name: "8GiB-30".into(),
            new: Some(VgpuSpec::default()),
        };
        let stored = Stored::new(vec![vgpu], vec![socket]);
        save(&path, &stored, Outlives::Machine).unwrap();
        std::fs::write(path.with_extension("json.new"), b"{\"ver").unwrap();
        assert_eq!(load(&path).unwrap(), stored);
    }

    #[test]
    fn a_damaged_file_is_refused_and_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        std::fs::write(&path, b"{}").unwrap();
        assert!(load(&path).is_err());
        std::fs::write(&path, b"{\"version\": 99, \"vgpus\": []}").unwrap();
        assert!(load(&path).unwrap_err().to_string().contains("99"));
    }
}
