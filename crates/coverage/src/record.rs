//! What was recorded, as it is told: one JSON object a line.

use serde::{Deserialize, Serialize};

/// A file and lines of it.
pub type FileLines = (String, Vec<u32>);

/// Most lines of code that one record names: longer functions are told in several records.
pub(crate) const MOST_LINES: usize = 4096;

/// One line of what the worker tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "lowercase")]
pub enum Record {
    /// A function of a module that was loaded.
    Function {
        /// Its name in the PTX text.
        name: String,
        /// Whether the program can launch it.
        kernel: bool,
        /// The file and line of its first instruction.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        start: Option<(String, u32)>,
        /// Lines that have code of it.
        lines: Vec<FileLines>,
    },
    /// What was reached of a function since the last record.
    Reached {
        /// Its name in the PTX text.
        name: String,
        /// Launches that ended; 0 for functions that are no kernels.
        #[serde(default)]
        launches: u64,
        /// Lines that were reached for the first time.
        lines: Vec<FileLines>,
    },
    /// Modules of which nothing is known, because too many were loaded before the program took what was recorded.
    Lost {
        /// How many.
        modules: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_a_line_of_json() {
        let records = [
            Record::Function {
                name: "_Z1kPi".into(),
                kernel: true,
                start: Some(("a.cu".into(), 3)),
                lines: vec![("a.cu".into(), vec![3, 4])],
            },
            Record::Reached {
                name: "_Z1kPi".into(),
                launches: 2,
                lines: vec![],
            },
            Record::Lost { modules: 1 },
        ];
        for record in records {
            let line = serde_json::to_string(&record).unwrap();
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record);
        }
    }
}
