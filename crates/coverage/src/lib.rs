//! Which lines of device code a program's kernels reached: the engine of `mica cov`.
//!
//! Owns the map from instructions to lines, what was reached of it, and the reports: lcov tracefiles, tables, JSON. Does
//! not run kernels: the device says which instructions were reached, and when a launch ended.
//!
//! ```text
//!   device ── instructions reached ──► ModuleMap ── changed ──► CoverageLog ── JSON lines ──► program's library
//!   mica cov ── JSON lines ──► Report ◄── lcov tracefiles ──► table, JSON, lcov, exit code
//! ```
//!
//! A line is reached if any copy of it is: inlined, in another kernel, in another instance of a template, in another process.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod json;
pub mod lcov;
mod log;
mod map;
mod record;
mod report;

pub use json::json;
pub use lcov::{LcovError, Tracefile};
pub use log::CoverageLog;
pub use map::ModuleMap;
pub use record::{FileLines, Record};
pub use report::{FileReport, FunctionReport, KernelReport, Report, percent};
