//! What was found, as it is told: one JSON object a line.

use serde::{Deserialize, Serialize};

/// Who looks for mistakes of one class.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tool {
    /// Accesses outside allocations, of freed memory, misaligned ones; faults of kernels.
    Memcheck = 0,
    /// Accesses of two threads that nothing orders.
    Racecheck = 1,
    /// Reads of memory that nobody wrote.
    Initcheck = 2,
    /// Barriers and `_sync` operations that are used as they must not be.
    Synccheck = 3,
    /// Memory that is not freed when the program ends.
    Leakcheck = 4,
}

impl Tool {
    /// All of them.
    pub const EVERY: [Self; 5] = [
        Self::Memcheck,
        Self::Racecheck,
        Self::Initcheck,
        Self::Synccheck,
        Self::Leakcheck,
    ];

    /// The word that people type.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memcheck => "memcheck",
            Self::Racecheck => "racecheck",
            Self::Initcheck => "initcheck",
            Self::Synccheck => "synccheck",
            Self::Leakcheck => "leakcheck",
        }
    }
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something the check could not do.
    Note,
    /// Undefined by CUDA's rules, and harmless if the result is not used.
    Warning,
    /// A mistake.
    Error,
}

/// A place in the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The source file, where the program was built with `-lineinfo`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub file: Option<String>,
    /// Its line; 0 when unknown.
    #[serde(default)]
    pub line: u32,
    /// The line of the PTX text.
    #[serde(default)]
    pub ptx_line: u32,
}

/// One thread and what it did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Party {
    /// `read`, `write`, `atomic`, or nothing where the thread accessed no memory.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub access: String,
    /// Bytes of the access.
    #[serde(default)]
    pub bytes: u32,
    /// The block's index.
    pub block: [u32; 3],
    /// The thread's index in the block.
    pub thread: [u32; 3],
    /// Where.
    pub place: Place,
}

/// What is known of an allocation's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AllocationState {
    /// It can be used.
    Live,
    /// It was freed.
    Freed,
}

/// The allocation that an address is in, or nearest to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Its first address.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Whether it was freed.
    pub state: AllocationState,
    /// Bytes from the end of the allocation to the access, negative before its start; 0 inside.
    pub distance: i64,
    /// What kind of memory it is, where that is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
    /// Milliseconds after the program's first call that it was made, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_ms: Option<u64>,
    /// Calls of the host program that led to the allocation, innermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<String>,
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Who found it.
    pub tool: Tool,
    /// What it is, in one word with hyphens.
    pub kind: String,
    /// How much it matters.
    pub severity: Severity,
    /// What it is, as a sentence without the place.
    pub message: String,
    /// The kernel, readable; nothing for findings of the host program.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kernel: String,
    /// Where the address is: `global`, `shared`, `local`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub space: String,
    /// The address, for accesses. Relative to the block's shared memory for `shared`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<u64>,
    /// The thread, and for races the other thread.
    #[serde(default)]
    pub parties: Vec<Party>,
    /// The allocation, where one is near.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<Allocation>,
    /// How often it was seen: blocks for faults, accesses for the rest.
    pub count: u64,
}

impl Finding {
    /// Whether another finding is the same mistake: the class, the kernel and the places agree.
    pub fn is_same(&self, other: &Self) -> bool {
        let where_ = |f: &Self| f.allocation.as_ref().map(|a| a.address);
        self.key() == other.key()
            && self.kernel == other.kernel
            && (!self.parties.is_empty() || where_(self) == where_(other))
    }

    /// What makes two findings one: the class and the places.
    pub(crate) fn key(&self) -> (Tool, &str, Vec<&Place>, &str) {
        let places = self.parties.iter().map(|p| &p.place).collect();
        (self.tool, &self.kind, places, &self.space)
    }
}

/// One line of the file that the check writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "lowercase")]
pub enum Record {
    /// A mistake.
    Finding(Finding),
    /// The program allocated memory or made an object: where, how much, who asked.
    Allocation {
        /// Its first address, or the object's handle.
        address: u64,
        /// Its size.
        bytes: u64,
        /// What it is; nothing for memory.
        #[serde(default)]
        what: String,
        /// Frames of the host program: file and offset in it, innermost first.
        frames: Vec<(String, u64)>,
    },
    /// A kernel ended: how much was watched.
    Kernel {
        /// Its readable name.
        name: String,
        /// Blocks of the launch.
        blocks: u64,
    },
    /// A program that was asked what it has not freed ends, and has said all of it.
    Ended {
        /// A kernel had faulted, after which a program can free nothing: nothing was said.
        faulted: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_a_line_of_json() {
        let finding = Finding {
            tool: Tool::Racecheck,
            kind: "race".into(),
            severity: Severity::Error,
            message: "m".into(),
            kernel: "k(int*)".into(),
            space: "shared".into(),
            address: Some(4),
            parties: vec![],
            allocation: None,
            count: 3,
        };
        let line = serde_json::to_string(&Record::Finding(finding.clone())).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(
            serde_json::from_str::<Record>(&line).unwrap(),
            Record::Finding(finding)
        );
    }
}
