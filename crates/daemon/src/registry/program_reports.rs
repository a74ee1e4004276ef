//! Reports of commands about the programs that they start: command lines, and which processes only test the limits.

use mica_wire::host::printable::printable;

use super::Vgpu;
use crate::watched::Watched;

/// Probes of one virtual GPU that are known at a time.
const MOST_PROBES: usize = 64;
/// Programs of one virtual GPU whose command lines are known at a time.
const MOST_COMMANDS: usize = 256;

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

    /// Remembers the command line of a program that was started.
    pub(crate) fn program_started(&mut self, pid: u32, command: &str) {
        self.commands.retain(|(program, _)| program.alive());
        if let Some(program) = Watched::open(pid).filter(|_| self.commands.len() < MOST_COMMANDS) {
            self.commands
                .push((program, printable(command).into_owned()));
        }
    }

    /// The command line of a process, by number and start time; empty where nobody told it.
    pub(crate) fn command_of(&self, process: (u32, u64)) -> String {
        let mut commands = self.commands.iter();
        let told = commands.find(|(program, _)| (program.pid, program.start) == process);
        told.map_or_else(String::new, |(_, command)| command.clone())
    }
}
