//! Where on the command line the next word stands.

use clap::{Arg, Command};

/// Where a word is being typed.
pub(super) struct Position<'a> {
    /// The command, or the subcommand that was named.
    pub(super) command: &'a Command,
    pub(super) next: Next<'a>,
    /// What has been typed of the word.
    pub(super) typed: &'a str,
}

/// What the word can be.
#[derive(Debug, PartialEq)]
pub(super) enum Next<'a> {
    /// A part of another program's command line, which begins at the word of this number.
    Program(usize),
    /// The name of an option.
    Option,
    /// The value of an option, a positional argument, or where there is neither a subcommand.
    Word(Option<&'a Arg>),
}

impl<'a> Position<'a> {
    /// The position of the last of these words.
    pub(super) fn of(root: &'a Command, words: &'a [String]) -> Self {
        let (typed, before) = match words.split_last() {
            Some((typed, before)) => (typed.as_str(), before),
            None => ("", words),
        };
        let mut walk = Walk {
            command: root,
            value_of: None,
            positionals: 0,
            options_over: false,
        };
        for (index, word) in before.iter().enumerate() {
            if walk.begins_program(word) {
                return walk.at(Next::Program(index), typed);
            }
            walk.step(word);
        }
        if let Some(option) = walk.value_of {
            // Some shells make `--gpu=0` three words.
            let typed = if typed == "=" { "" } else { typed };
            return walk.at(Next::Word(Some(option)), typed);
        }
        if walk.begins_program(typed) {
            return walk.at(Next::Program(before.len()), typed);
        }
        if walk.is_option(typed) {
            return match typed.split_once('=') {
                Some((name, value)) => walk.at(Next::Word(long(walk.command, name)), value),
                None => walk.at(Next::Option, typed),
            };
        }
        walk.at(Next::Word(walk.positional()), typed)
    }
}

/// The way through the words before.
struct Walk<'a> {
    command: &'a Command,
    /// The option whose value comes next.
    value_of: Option<&'a Arg>,
    positionals: usize,
    /// After `--`, nothing is an option.
    options_over: bool,
}

impl<'a> Walk<'a> {
    fn at(&self, next: Next<'a>, typed: &'a str) -> Position<'a> {
        Position {
            command: self.command,
            next,
            typed,
        }
    }

    fn step(&mut self, word: &str) {
        if self.value_of.is_some() {
            if word != "=" {
                self.value_of = None;
            }
        } else if !self.is_option(word) {
            match self.command.find_subcommand(word) {
                Some(sub) => (self.command, self.positionals) = (sub, 0),
                None => self.positionals += 1,
            }
        } else if word == "--" {
            self.options_over = true;
        } else if word.starts_with("--") {
            // With `=` the value is in the word itself.
            let option = long(self.command, word).filter(|_| !word.contains('='));
            self.value_of = option.filter(|arg| takes_value(arg));
        } else {
            self.value_of = self.short(word);
        }
    }

    fn is_option(&self, word: &str) -> bool {
        word.starts_with('-') && !self.options_over
    }

    /// Whether a word is the first of another program's command line.
    fn begins_program(&self, word: &str) -> bool {
        let next = self.positional();
        self.value_of.is_none()
            && !self.is_option(word)
            && next.is_some_and(Arg::is_trailing_var_arg_set)
    }

    /// The option of `-abc` whose value comes next.
    fn short(&self, word: &str) -> Option<&'a Arg> {
        let mut letters = word.chars().skip(1);
        let option = letters.find_map(|letter| {
            let mut all = self.command.get_arguments();
            all.find(|arg| arg.get_short() == Some(letter) && takes_value(arg))
        });
        // What follows the letter is its value.
        option.filter(|_| letters.next().is_none())
    }

    /// The positional argument that comes next; the last one may take several words.
    fn positional(&self) -> Option<&'a Arg> {
        let all = || self.command.get_positionals();
        let repeats = |arg: &&Arg| arg.get_num_args().is_some_and(|n| n.max_values() > 1);
        let next = all().nth(self.positionals);
        next.or_else(|| all().last().filter(repeats))
    }
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_num_args().is_some_and(|count| count.takes_values())
}

fn long<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let name = word.strip_prefix("--")?;
    let name = name.split_once('=').map_or(name, |(name, _)| name);
    let mut all = command.get_arguments();
    all.find(|arg| arg.get_long() == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    /// What comes next, in a word, and what has been typed of it.
    fn next(line: &str) -> (String, String) {
        let mut root = Cli::command();
        root.build();
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let position = Position::of(&root, &words);
        let next = match position.next {
            Next::Program(index) => format!("program {index}"),
            Next::Option => "option".into(),
            Next::Word(argument) => argument.map_or("command".into(), |a| a.get_id().to_string()),
        };
        (next, position.typed.to_owned())
    }

    #[test]
    fn every_word_is_taken_for_what_it_is() {
        for (line, what, typed) in [
            ("", "command", ""),
            ("ru", "command", "ru"),
            ("run --m", "option", "--m"),
            ("run --gpu ", "gpu", ""),
            ("run --gpu=so", "gpu", "so"),
            ("run --gpu = so", "gpu", "so"),
            ("run --gpu =", "gpu", ""),
            ("run -s ", "share", ""),
            ("run -s30 ", "program 2", ""),
            ("show te", "name", "te"),
            ("rm a b", "names", "b"),
            ("exec ", "name", ""),
            ("events -f -n 3 ", "name", ""),
            ("resize a --priority ", "priority", ""),
            ("completions ", "shell", ""),
        ] {
            assert_eq!(next(line), (what.into(), typed.into()), "{line:?}");
        }
    }

    #[test]
    fn a_programs_own_words_are_left_alone() {
        for (line, index) in [
            ("run ", 1),
            ("run pyt", 1),
            ("run -m 8GiB -- python --ver", 4),
            ("run --cap python train.py --memory ", 2),
            ("run -- ", 2),
            ("exec a ", 2),
            ("exec a -- ls --js", 3),
            ("exec a ls -", 2),
        ] {
            assert_eq!(next(line).0, format!("program {index}"), "{line:?}");
        }
    }
}
