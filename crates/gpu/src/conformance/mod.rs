//! What every backend must do, as cases that run on any [`Gpu`].
//!
//! The real GPU is the oracle: a case only asks for what CUDA promises. What a device may lack
//! (suspending, cancelling, registering host memory) it refuses with `NotSupported`, and the case
//! counts as skipped, with the reason.
//!
//! ```ignore
//! let report = mica_gpu::conformance::run(&gpu, &Ptx);
//! assert!(report.failures().is_empty(), "{report}");
//! ```

mod arrays;
mod control;
mod copies;
mod events;
mod faults;
mod frames;
mod graphs;
mod handles;
mod launches;
mod memory;
mod modules;
mod session;
mod streams;

use std::fmt;

use mica_cuda_abi::CuResult;

use crate::{Gpu, GpuError};
pub use session::Session;

/// The images the suite needs, in the form that the backend loads.
pub trait Fixture: Sync {
    /// The kernels of `kernels.ptx`.
    fn kernels(&self) -> Vec<u8>;
    /// The kernel of `large_params.ptx`.
    fn large_params(&self) -> Vec<u8>;
    /// Whether a fault in one context leaves others of the process alone. NVIDIA's driver answers
    /// every later call of the process with the fault, so a backend on it says no, and runs each
    /// case that [`Case::faults`] in a process of its own.
    fn contains_faults(&self) -> bool {
        true
    }
}

/// The PTX texts themselves, zero-terminated as drivers want them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ptx;

impl Fixture for Ptx {
    fn kernels(&self) -> Vec<u8> {
        concat!(include_str!("kernels.ptx"), "\0")
            .as_bytes()
            .to_vec()
    }
    fn large_params(&self) -> Vec<u8> {
        concat!(include_str!("large_params.ptx"), "\0")
            .as_bytes()
            .to_vec()
    }
}

/// Why a case did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The device did something else than CUDA.
    Wrong(String),
    /// The device says that it cannot.
    Skipped(String),
}

impl From<GpuError> for Problem {
    fn from(error: GpuError) -> Self {
        Self::Wrong(format!("unexpected error: {error}"))
    }
}

/// What a case answers.
pub type Check = Result<(), Problem>;

/// One case.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name: what is promised.
    pub name: &'static str,
    /// It makes a kernel fault: see [`Fixture::contains_faults`].
    pub faults: bool,
    run: fn(&Session<'_>) -> Check,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Case {
    /// Runs the case in a context of its own.
    ///
    /// # Errors
    /// What is wrong, or why it was skipped.
    pub fn run(&self, gpu: &dyn Gpu, fixture: &dyn Fixture) -> Check {
        let session = Session::new(gpu, fixture)?;
        let result = (self.run)(&session);
        session.close();
        result
    }
}

/// How each case went.
#[derive(Debug)]
pub struct Report(pub Vec<(Case, Check)>);

impl Report {
    /// The cases that show a fault of the device.
    pub fn failures(&self) -> Vec<&str> {
        let failed = |(case, check): &(Case, Check)| match check {
            Err(Problem::Wrong(_)) => Some(case.name),
            _ => None,
        };
        self.0.iter().filter_map(failed).collect()
    }

    /// The cases that the device does not take part in.
    pub fn skipped(&self) -> Vec<&str> {
        let skipped = |(case, check): &(Case, Check)| match check {
            Err(Problem::Skipped(_)) => Some(case.name),
            _ => None,
        };
        self.0.iter().filter_map(skipped).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (case, check) in &self.0 {
            match check {
                Ok(()) => writeln!(f, "ok    {}", case.name)?,
                Err(Problem::Skipped(why)) => writeln!(f, "skip  {}: {why}", case.name)?,
                Err(Problem::Wrong(why)) => writeln!(f, "WRONG {}: {why}", case.name)?,
            }
        }
        Ok(())
    }
}

/// All cases, by subject.
pub fn cases() -> Vec<Case> {
    [
        memory::CASES,
        copies::CASES,
        streams::CASES,
        events::CASES,
        modules::CASES,
        launches::CASES,
        graphs::CASES,
        faults::CASES,
        frames::CASES,
        arrays::CASES,
        control::CASES,
        handles::CASES,
    ]
    .concat()
}

/// The cases that a device without graphs skips.
pub fn graph_cases() -> &'static [Case] {
    graphs::CASES
}

/// Runs every case.
pub fn run(gpu: &dyn Gpu, fixture: &dyn Fixture) -> Report {
    let run = |case: Case| {
        let check = case.run(gpu, fixture);
        (case, check)
    };
    Report(cases().into_iter().map(run).collect())
}

/// Fails the case unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($why:tt)+) => {
        let holds: bool = $condition;
        if !holds {
            return Err($crate::conformance::Problem::Wrong(format!($($why)+)));
        }
    };
}

/// Names a list of case functions.
macro_rules! case_list {
    ($($name:ident),* $(,)? $(; faulting: $($faulting:ident),+ $(,)?)?) => {
        pub(super) const CASES: &[$crate::conformance::Case] = &[
            $($crate::conformance::Case {
                name: stringify!($name),
                faults: false,
                run: $name,
            },)*
            $($($crate::conformance::Case {
                name: stringify!($faulting),
                faults: true,
                run: $faulting,
            },)+)?
        ];
    };
}

pub(crate) use {case_list, ensure};

/// Fails the case unless the call was refused with one of these codes.
fn refused<T: fmt::Debug>(result: crate::Result<T>, codes: &[CuResult], what: &str) -> Check {
    match result {
        Err(error) if codes.contains(&error.code) => Ok(()),
        other => Err(Problem::Wrong(format!(
            "{what}: expected one of {codes:?}, got {other:?}"
        ))),
    }
}

/// Skips the case if the device says that it cannot.
fn possible<T>(result: crate::Result<T>, what: &str) -> Result<T, Problem> {
    match result {
        Err(error) if error.code == CuResult::NotSupported => {
            Err(Problem::Skipped(format!("{what}: {}", error.message)))
        }
        other => Ok(other?),
    }
}
