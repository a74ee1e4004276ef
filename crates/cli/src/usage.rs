//! Answers to a command line that clap refuses: hints, and the exit code.

use std::process::ExitCode;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use mica_command::output;

use crate::args::Cli;
use crate::not_started::OWN_FAILURE;

/// Commands that people know from elsewhere, and what Mica has instead.
const KNOWN_ELSEWHERE: [(&[&str], &str); 8] = [
    (
        &["nvidia-smi", "nvsmi"],
        "`mica smi` prints the same picture, with virtual GPUs",
    ),
    (
        &["htop", "nvtop", "nvitop", "watch"],
        "`mica top` shows everything live; `mica stats` prints it once",
    ),
    (
        &["logs", "log", "journal"],
        "`mica events` prints what happened; -f follows it",
    ),
    (
        &["status", "info"],
        "`mica ls` lists virtual GPUs; `mica doctor` checks their limits",
    ),
    (
        &["inspect", "describe"],
        "`mica show NAME` shows all about a virtual GPU",
    ),
    (
        &["remove", "delete"],
        "`mica rm NAME` removes a virtual GPU",
    ),
    (
        &["kill", "stop"],
        "`mica cancel` ends kernels; `mica rm --force` ends programs",
    ),
    (
        &["start"],
        "`mica run -- CMD` runs a program in a virtual GPU of its own",
    ),
];

/// Options that people try, and what Mica has instead.
const OTHER_OPTIONS: [(&[&str], &str); 2] = [
    (
        &["--regions", "--region", "--shmem"],
        "--ivshmem N is the number of shared-memory devices of a machine",
    ),
    (
        &["-f"],
        "-f follows (`mica events -f`); write --force to end what runs",
    ),
];

/// Prints what clap has to say (help, or what is wrong), with hints; returns the exit code.
pub(crate) fn report(mut error: clap::Error) -> ExitCode {
    if let Some(tip) = tip(&error) {
        // What sounds alike is not what was meant.
        error.remove(ContextKind::SuggestedSubcommand);
        drop_option(&mut error);
        let tips = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tips);
    }
    if suggests_what_every_command_has(&error) {
        drop_option(&mut error);
    }
    let is_help = !error.use_stderr();
    if let Err(failure) = error.print()
        && is_help
    {
        output::give_up(&failure);
    }
    let starts_program = || {
        std::env::args_os()
            .nth(1)
            .is_some_and(|w| w == "run" || w == "exec")
    };
    ExitCode::from(match error.exit_code() {
        0 => 0,
        // Any other code could be the program's.
        _ if starts_program() => OWN_FAILURE as u8,
        code => u8::try_from(code).unwrap_or(2),
    })
}

/// Whether the option that sounds alike is one that every command has: nobody who types `--regions` means `--version`.
fn suggests_what_every_command_has(error: &clap::Error) -> bool {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    let typed = text(ContextKind::InvalidArg).unwrap_or_default();
    match text(ContextKind::SuggestedArg) {
        Some("--version") => !typed.starts_with("--v"),
        Some("--help") => !typed.starts_with("--h"),
        _ => false,
    }
}

/// Takes back the option that clap suggests, in the usage too.
fn drop_option(error: &mut clap::Error) {
    if error.remove(ContextKind::SuggestedArg).is_some() {
        error.remove(ContextKind::Usage);
    }
}

/// A hint that clap does not have.
fn tip(error: &clap::Error) -> Option<String> {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = context(ContextKind::InvalidSubcommand)?;
            let mut known = KNOWN_ELSEWHERE.iter();
            match known.find(|(words, _)| words.contains(&word)) {
                Some((_, tip)) => Some((*tip).to_owned()),
                // clap has nothing for two letters that changed places in a short word.
                None if error.get(ContextKind::SuggestedSubcommand).is_none() => {
                    let meant = anagram(word)?;
                    Some(format!("a similar subcommand exists: '{meant}'"))
                }
                None => None,
            }
        }
        ErrorKind::UnknownArgument => {
            let word = context(ContextKind::InvalidArg)?;
            let mut known = OTHER_OPTIONS.iter();
            let (_, tip) = known.find(|(words, _)| words.contains(&word))?;
            Some((*tip).to_owned())
        }
        _ => None,
    }
}

/// The command that has the letters of this word in another order.
fn anagram(word: &str) -> Option<String> {
    let letters = |word: &str| {
        let mut letters: Vec<char> = word.chars().collect();
        letters.sort_unstable();
        letters
    };
    let wanted = letters(word);
    let shown = Cli::command();
    let mut shown = shown.get_subcommands().filter(|c| !c.is_hide_set());
    let meant = shown.find(|command| letters(command.get_name()) == wanted)?;
    Some(meant.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_that_changed_places_are_recognised() {
        assert_eq!(anagram("rnu").as_deref(), Some("run"));
        assert_eq!(anagram("sl").as_deref(), Some("ls"));
        assert_eq!(anagram("rune"), None);
    }

    #[test]
    fn every_hint_names_commands_that_exist() {
        let command = Cli::command();
        for (words, tip) in KNOWN_ELSEWHERE {
            for word in words {
                assert!(
                    command.find_subcommand(word).is_none(),
                    "{word} is a command"
                );
            }
            let named: Vec<&str> = tip.split("mica ").skip(1).collect();
            assert!(!named.is_empty(), "{tip}");
            for rest in named {
                let name = rest.split([' ', '`']).next().unwrap();
                assert!(command.find_subcommand(name).is_some(), "mica {name}");
            }
        }
    }
}
