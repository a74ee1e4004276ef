//! What can be typed next: the answers behind the shells' completions.
//!
//! ```text
//!   shell ── mica __complete -- WORDS… ──► one candidate a line: VALUE, a tab, what it is
//!                                          or `@files`: names of files
//!                                          or `@program N`: from word N on another program is typed
//! ```
//! Everything but names comes from the definition of the command line. Names come from a daemon that runs already: no
//! key starts one.

mod position;

use std::ffi::OsString;
use std::time::Duration;

use clap::{Arg, Command, CommandFactory, ValueHint};
use mica_wire::host::printable::printable;

use crate::args::{Cli, ShellArg};
use crate::control::connect_existing;
use position::{Next, Position};

/// How long a key may wait for the daemon.
const NAMES_WITHIN: Duration = Duration::from_millis(500);

/// A candidate and what it is.
type Candidate = (String, String);

/// The script that a shell reads.
pub(crate) fn script(shell: ShellArg) -> &'static str {
    match shell {
        ShellArg::Bash => include_str!("../../completions/mica.bash"),
        ShellArg::Zsh => include_str!("../../completions/mica.zsh"),
        ShellArg::Fish => include_str!("../../completions/mica.fish"),
    }
}

/// `mica __complete`: prints what can follow these words, of which the last is being typed.
pub(crate) fn print(words: &[OsString]) {
    let words: Vec<String> = words.iter().map(|w| w.display().to_string()).collect();
    let mut root = Cli::command();
    root.build();
    let Position {
        command,
        next,
        typed,
    } = Position::of(&root, &words);
    let candidates = match next {
        Next::Program(index) => return outln!("@program {index}"),
        Next::Option => options(command),
        Next::Word(argument) => {
            if argument.is_some_and(names_files) {
                return outln!("@files");
            }
            let mut all = subcommands(command);
            all.extend(argument.map_or_else(Vec::new, |argument| values(command, argument)));
            all
        }
    };
    for (value, about) in candidates {
        if value.starts_with(typed) {
            outln!("{}\t{}", printable(&value), printable(&about));
        }
    }
}

fn subcommands(command: &Command) -> Vec<Candidate> {
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let candidate = |sub: &Command| (sub.get_name().to_owned(), about(sub.get_about()));
    shown.map(candidate).collect()
}

fn options(command: &Command) -> Vec<Candidate> {
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let candidate = |arg: &Arg| Some((format!("--{}", arg.get_long()?), about(arg.get_help())));
    shown.filter_map(candidate).collect()
}

/// What an option or a positional argument takes.
fn values(command: &Command, argument: &Arg) -> Vec<Candidate> {
    match (command.get_name(), argument.get_id().as_str()) {
        // Names that are made up, not chosen.
        ("create" | "run", "name") => Vec::new(),
        (_, "name" | "names") => vgpus(),
        (_, "gpu") => gpus(),
        _ => {
            let possible = argument.get_possible_values();
            let shown = possible.iter().filter(|value| !value.is_hide_set());
            shown
                .map(|value| (value.get_name().to_owned(), about(value.get_help())))
                .collect()
        }
    }
}

fn names_files(argument: &Arg) -> bool {
    let is_switch = argument
        .get_num_args()
        .is_some_and(|count| !count.takes_values());
    !is_switch
        && matches!(
            argument.get_value_hint(),
            ValueHint::AnyPath | ValueHint::FilePath | ValueHint::DirPath
        )
}

fn vgpus() -> Vec<Candidate> {
    let client = connect_existing().with_timeout(NAMES_WITHIN);
    let all = client.list().unwrap_or_default().into_iter();
    all.map(|vgpu| {
        let about = format!("{} on GPU {}", vgpu.state, vgpu.gpu);
        (vgpu.name, about)
    })
    .collect()
}

fn gpus() -> Vec<Candidate> {
    let client = connect_existing().with_timeout(NAMES_WITHIN);
    let gpus = client.gpus().unwrap_or_default();
    let mut all: Vec<Candidate> = gpus
        .iter()
        .map(|gpu| (gpu.index.to_string(), gpu.name.clone()))
        .collect();
    for kind in ["nvidia", "software"] {
        all.push((kind.to_owned(), format!("the first {kind} GPU")));
    }
    all
}

/// The first sentence of a help text.
fn about(text: Option<&clap::builder::StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}
