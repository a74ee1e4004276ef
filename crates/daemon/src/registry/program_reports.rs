//! Reports of commands about the programs that they start: command lines, which programs have not ended, and which
//! processes only test the limits.

use mica_wire::host::printable::printable;

use super::Vgpu;
use crate::enforce::parent_of;
use crate::watched::Watched;

/// Probes of one virtual GPU that are known at a time.
const MOST_PROBES: usize = 64;
/// Programs of one virtual GPU whose command lines are known at a time.
const MOST_COMMANDS: usize = 256;

/// A program whose start was told.
#[derive(Debug)]
pub(crate) struct StartedProgram {
    process: Watched,
    command: String,
    /// The process that told it is its parent: the number was not one of another process namespace, nor a stranger's.
    is_own_child: bool,
}

impl Vgpu {
    /// Takes what a process does from now on for a test of the limits.
    pub(crate) fn expect_probe(&mut self, pid: u32) {
        self.probes.retain(Watched::alive);
        if self.probes.len() < MOST_PROBES {
            self.probes.extend(Watched::open(pid));
        }
    }

    /// Whether a process, by number and start time, tests the limits.
    pub(crate) fn is_probe(&self, process: (u32, u64)) -> bool {
        let mut probes = self.probes.iter();
        probes.any(|probe| (probe.pid, probe.start) == process)
    }

    /// Remembers the command line of a program that was started by `teller`.
    pub(crate) fn program_started(&mut self, pid: u32, teller: Option<u32>, command: &str) {
        self.started.retain(|program| program.process.alive());
        if self.started.len() >= MOST_COMMANDS {
            return;
        }
        let Some(process) = Watched::open(pid) else {
            return;
        };
        self.started.push(StartedProgram {
            process,
            command: printable(command).into_owned(),
            is_own_child: teller.is_some() && parent_of(pid) == teller,
        });
    }

    /// A program of `mica run` or `mica exec` that has not ended, whether or not it has used the GPU: its number and its
    /// command line.
    pub(crate) fn program_in_flight(&self) -> Option<(u32, &str)> {
        let mut started = self.started.iter();
        let found = started.find(|program| program.is_own_child && program.process.alive())?;
        Some((found.process.pid, &found.command))
    }

    /// The command line of a process, by number and start time; empty where nobody told it.
    pub(crate) fn command_of(&self, process: (u32, u64)) -> String {
        let mut started = self.started.iter();
        let told = started.find(|one| (one.process.pid, one.process.start) == process);
        told.map_or_else(String::new, |one| one.command.clone())
    }
}
