//! What a snapshot is of.

use serde::{Deserialize, Serialize};

/// The device that the virtual GPU was on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceFacts {
    /// Its name.
    pub name: String,
    /// Compute capability.
    pub compute_capability: (u32, u32),
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// First address and length of the space that its addresses lie in.
    pub address_space: (u64, u64),
}

/// The program that waits for the virtual GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramFacts {
    /// Its process number, as the daemon saw it.
    pub pid: u32,
    /// The number by which its library and the snapshot know each other.
    pub session: u64,
}

/// A part of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Its first byte in the file.
    pub at: u64,
    /// Its bytes.
    pub bytes: u64,
    /// BLAKE3 of them, in hexadecimal.
    pub blake3: String,
}

/// What a snapshot is of, and what it consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the Mica that wrote it.
    pub mica: String,
    /// Version of the session protocol, which the program's library speaks.
    pub protocol: u32,
    /// Seconds since 1970.
    pub made_at_seconds: u64,
    /// Name of the virtual GPU.
    pub vgpu: String,
    /// The device that it was on.
    pub device: DeviceFacts,
    /// The program that waits for it.
    pub program: ProgramFacts,
    /// Contexts.
    pub contexts: u64,
    /// Modules.
    pub modules: u64,
    /// Allocations.
    pub allocations: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Objects and images.
    pub session: Part,
    /// Contents of memory.
    pub memory: Part,
}
