//! The files of NVIDIA's driver on this machine: where its libraries are, how one is opened, and what a process that uses a
//! card needs of the file system.
//!
//! Owns the search and the opening of shared libraries. What their functions are and when they are called is for others.
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod confined;
pub mod library;
mod places;

pub use confined::{driver_libraries, nodes_of};
pub use places::{CONTAINER_DRIVER_DIR, library_files};
