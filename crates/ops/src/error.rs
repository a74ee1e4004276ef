//! Why an operation was refused.

use crate::DType;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Shapes that do not fit each other.
    #[error("{operation}: {left_name} {left:?} does not fit {right_name} {right:?}: {rule}")]
    Shape {
        /// The operation.
        operation: &'static str,
        /// What the first shape belongs to.
        left_name: &'static str,
        /// The first shape.
        left: Vec<usize>,
        /// What the second shape belongs to.
        right_name: &'static str,
        /// The second shape.
        right: Vec<usize>,
        /// What would fit.
        rule: &'static str,
    },
    /// Element types that do not fit each other, or that the operation does not have.
    #[error("{operation}: {left} does not go with {right}: {rule}")]
    Types {
        /// The operation.
        operation: &'static str,
        /// One type.
        left: DType,
        /// The other.
        right: DType,
        /// What would fit.
        rule: &'static str,
    },
    /// Any other argument that the operation cannot take.
    #[error("{operation}: {message}")]
    Argument {
        /// The operation.
        operation: &'static str,
        /// What is wrong with which value.
        message: String,
    },
    /// A library of the user refused.
    #[error("{library}: {message}")]
    Library {
        /// The library.
        library: &'static str,
        /// What it said.
        message: String,
    },
    /// The virtual GPU refused, or work on it failed.
    #[error(transparent)]
    Gpu(#[from] mica::Error),
}

impl Error {
    /// Whether the virtual GPU's memory limit was the reason.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Gpu(error) if error.is_out_of_memory())
    }

    pub(crate) fn argument(operation: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self::Argument { operation, message }
    }
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
