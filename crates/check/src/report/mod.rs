//! How findings are shown: text, SARIF, and what is not shown.

mod sarif;
mod suppress;
mod text;

pub use sarif::sarif;
pub use suppress::{SuppressError, Suppressions};
pub use text::{summary, text};
