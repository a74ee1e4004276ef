//! Answers to a command line that clap refuses: hints, and the exit code.

use std::error::Error as _;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::process::ExitCode;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use mica_command::output;

use crate::args::Cli;
use crate::args::texts::WELCOME;
use crate::not_started::OWN_FAILURE;

/// Commands that people know from elsewhere, and what Mica has instead.
const KNOWN_ELSEWHERE: [(&[&str], &str); 15] = [
    (
        &["nvidia-smi", "nvsmi"],
        "`mica smi` prints the same picture, with virtual GPUs",
    ),
    (
        &["htop", "nvtop", "nvitop", "watch", "monitor"],
        "`mica top` shows everything live; `mica stats` prints it once",
    ),
    (
        &["usage", "use", "billing", "history"],
        "`mica stats` prints what is used, `mica report` what was used",
    ),
    (
        &["logs", "log", "journal"],
        "`mica events` prints what happened; -f follows it",
    ),
    (
        &["status", "info", "vgpu", "vgpus"],
        "`mica ls` lists virtual GPUs; `mica doctor` checks their limits",
    ),
    (
        &["inspect", "describe", "get"],
        "`mica show NAME` shows all about a virtual GPU",
    ),
    (
        &["remove", "delete", "del", "destroy"],
        "`mica rm NAME` removes a virtual GPU",
    ),
    (
        &["add", "new", "make"],
        "`mica create NAME -m 8GiB -s 30` makes a virtual GPU",
    ),
    (
        &["set", "update", "edit", "change", "limit", "limits"],
        "`mica resize NAME -m 8GiB -s 30` changes limits",
    ),
    (
        &["kill", "stop"],
        "`mica cancel` ends kernels; `mica rm --force` ends programs",
    ),
    (&["pause"], "`mica suspend NAME` holds what runs"),
    (
        &["attach", "enter", "shell", "join"],
        "`mica exec NAME -- CMD` runs a program in a virtual GPU",
    ),
    (
        &["start", "init", "install", "setup"],
        "`mica run -- CMD` runs a program in a virtual GPU of its own; nothing is set up before",
    ),
    (
        &["web", "ui", "gui", "page"],
        "`mica dashboard` opens the web page",
    ),
    (&["version"], "`mica --version` prints the version"),
];

/// Options that people try, and what Mica has instead.
const OTHER_OPTIONS: [(&[&str], &str); 3] = [
    (
        &["--regions", "--region", "--shmem"],
        "--ivshmem N is the number of shared-memory devices of a machine",
    ),
    (
        &["--gpu"],
        "a virtual GPU gets its GPU when it is made; `mica migrate NAME --gpu N` moves it",
    ),
    (&["-f"], "-f follows (`mica events -f`); write --force"),
];

/// Prints what clap has to say (help, or what is wrong), with hints; returns the exit code.
pub(crate) fn report(error: clap::Error) -> ExitCode {
    if std::env::args_os().len() <= 1 {
        errln!("{WELCOME}");
        return ExitCode::from(2);
    }
    let mut error = in_plain_words(error);
    hide_internal_commands(&mut error);
    let tip = tip(&error);
    if let Some(tip) = &tip {
        // What sounds alike is not what was meant.
        error.remove(ContextKind::SuggestedSubcommand);
        drop_option(&mut error);
        let tips = ContextValue::StyledStrs(vec![tip.clone().into()]);
        error.insert(ContextKind::Suggested, tips);
    }
    if suggests_what_every_command_has(&error) {
        drop_option(&mut error);
    }
    if error.kind() == ErrorKind::UnknownArgument && tip.is_none() {
        // That a program or a virtual GPU may be called `-p`.
        error.remove(ContextKind::Suggested);
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

/// An error whose reason is a number's in words that say what to write, instead of Rust's.
fn in_plain_words(error: clap::Error) -> clap::Error {
    let Some(reason) = error.source().and_then(reason) else {
        return error;
    };
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    let (Some(value), Some(argument)) = (
        text(ContextKind::InvalidValue),
        text(ContextKind::InvalidArg),
    ) else {
        return error;
    };
    let sentence = format!(
        "invalid value '{value}' for '{argument}': {reason}\n\nFor more information, try '--help'.\n"
    );
    clap::Error::raw(ErrorKind::ValueValidation, sentence).with_cmd(&Cli::command())
}

/// What to write instead of a number that was not understood.
fn reason(source: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(wrong) = source.downcast_ref::<ParseIntError>() {
        let words = match wrong.kind() {
            IntErrorKind::PosOverflow => "the number is too large",
            _ => "write a whole number, such as 4",
        };
        return Some(words.to_owned());
    }
    if source.is::<ParseFloatError>() {
        return Some("write a number, such as 30 or 0.5".to_owned());
    }
    // clap's words for a range.
    let text = source.to_string();
    let (_, range) = text.split_once(" is not in ")?;
    let (least, most) = range.split_once("..=").or_else(|| range.split_once(".."))?;
    Some(match most {
        "" => format!("write a whole number from {least} up"),
        most => format!("write a whole number from {least} to {most}"),
    })
}

/// Takes back suggestions of commands that are not for people.
fn hide_internal_commands(error: &mut clap::Error) {
    let command = Cli::command();
    let is_shown = |name: &String| {
        let found = command.find_subcommand(name);
        found.is_none_or(|command| !command.is_hide_set())
    };
    let Some(suggested) = error.remove(ContextKind::SuggestedSubcommand) else {
        return;
    };
    let names = match suggested {
        ContextValue::String(name) => vec![name],
        ContextValue::Strings(names) => names,
        _ => Vec::new(),
    };
    let mut names: Vec<String> = names.into_iter().filter(is_shown).collect();
    let kept = match names.len() {
        0 => {
            // Without it clap leaves the place of a tip empty.
            error.remove(ContextKind::Suggested);
            return;
        }
        1 => ContextValue::String(names.remove(0)),
        _ => ContextValue::Strings(names),
    };
    error.insert(ContextKind::SuggestedSubcommand, kept);
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
                    let similar = anagram(word)
                        .map(|meant| format!("a similar subcommand exists: '{meant}'"));
                    similar.or_else(|| {
                        let tip = format!("`mica run -- {word}` runs a program in a virtual GPU");
                        is_program(word).then_some(tip)
                    })
                }
                None => None,
            }
        }
        ErrorKind::UnknownArgument => {
            let word = context(ContextKind::InvalidArg)?;
            if std::env::args_os()
                .nth(1)
                .is_some_and(|first| first == word)
            {
                let is_meant = error.get(ContextKind::SuggestedArg).is_some()
                    && !suggests_what_every_command_has(error);
                if is_meant {
                    return None;
                }
                return Some("options follow a command: mica run -m 8GiB -- ./program".to_owned());
            }
            let mut known = OTHER_OPTIONS.iter();
            let (_, tip) = known.find(|(words, _)| words.contains(&word))?;
            Some((*tip).to_owned())
        }
        ErrorKind::MissingRequiredArgument => missing(error),
        _ => None,
    }
}

/// What to write where a program or the name of a virtual GPU is missing.
fn missing(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let is_missing = |word: &str| missing.iter().any(|missing| missing.starts_with(word));
    let command = std::env::args().nth(1)?;
    let takes_existing = !["create", "region", "remote", "cdi", "vm"].contains(&command.as_str());
    if is_missing("<NAME") && takes_existing {
        return Some("`mica ls` lists virtual GPUs by name".to_owned());
    }
    is_missing("<CMD>").then(|| match command.as_str() {
        "exec" => "the program follows the name: mica exec NAME -- ./program".to_owned(),
        command => format!("the program follows the options: mica {command} -- ./program"),
    })
}

/// Whether a word that is no command is a program.
fn is_program(word: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path);
    word.contains('/') || folders.any(|folder| folder.join(word).is_file())
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
                assert!(
                    name.starts_with('-') || command.find_subcommand(name).is_some(),
                    "mica {name}"
                );
            }
        }
    }
}
