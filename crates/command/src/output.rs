//! Standard output and standard error, the one place where writing to them can fail.
//!
//! A reader that has gone ends the command quietly. A full disk ends it with one sentence and code 1. What cannot be
//! written to standard error is dropped: there is nobody left to tell.

use std::fmt::Arguments;
use std::io::{ErrorKind, IsTerminal, Write};

use mica_wire::host::printable::printable_json;

/// Prints to standard output.
#[macro_export]
macro_rules! out {
    ($($words:tt)*) => { $crate::output::write(format_args!($($words)*)) };
}

/// Prints a line to standard output.
#[macro_export]
macro_rules! outln {
    () => { $crate::output::write(format_args!("\n")) };
    ($($words:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($words)*))) };
}

/// Prints a line to standard error.
#[macro_export]
macro_rules! errln {
    ($($words:tt)*) => { $crate::output::complain(format_args!($($words)*)) };
}

/// Writes to standard output; does not return where that is impossible.
pub fn write(words: Arguments<'_>) {
    crate::progress::erase();
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_fmt(words).and_then(|()| out.flush()) {
        give_up(&error);
    }
}

/// Prints any answer as JSON.
///
/// # Errors
/// It cannot be written as JSON.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(value)?;
    write(format_args!("{}\n", printable_json(&json)));
    Ok(())
}

/// Writes a line to standard error.
pub fn complain(words: Arguments<'_>) {
    crate::progress::erase();
    // One write, so that lines of several processes do not mix.
    let line = format!("{words}\n");
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Ends this process because standard output takes nothing more.
pub fn give_up(error: &std::io::Error) -> ! {
    if error.kind() != ErrorKind::BrokenPipe {
        complain(format_args!("mica: the output cannot be written: {error}"));
    }
    std::process::exit(1)
}

/// Columns of the terminal that standard output is; `None` for files and pipes.
pub fn terminal_columns() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: writes one `winsize`.
    let known = unsafe { libc::ioctl(1, libc::TIOCGWINSZ, &raw mut size) } == 0;
    Some(match (known, size.ws_col) {
        (true, columns @ 1..) => columns.into(),
        _ => 80,
    })
}

/// Whether standard output shows colours: a terminal that can, and nobody who has asked for none.
pub fn shows_colours() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    std::io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

/// Lines of at most `room` columns, broken between words; a longer word has a line of its own.
pub fn wrap(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split_whitespace() {
        let wide = word.chars().count();
        if used > 0 && used + 1 + wide > room {
            lines.push(String::new());
            used = 0;
        }
        if let Some(line) = lines.last_mut() {
            if used > 0 {
                line.push(' ');
                used += 1;
            }
            line.push_str(word);
            used += wide;
        }
    }
    lines
}

/// Text whose lines after the first begin below the first one's words: the first begins after so many columns. Files and
/// pipes get it as one line.
pub fn hanging(text: &str, indent: usize, columns: Option<usize>) -> String {
    match columns {
        Some(columns) if columns > indent + 20 => {
            let lines = wrap(text, columns - indent);
            lines.join(&format!("\n{}", " ".repeat(indent)))
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("immeasurable x", 5), ["immeasurable", "x"]);
        assert_eq!(hanging("a b", 2, None), "a b");
        let text = "word ".repeat(10);
        let hung = hanging(text.trim(), 4, Some(30));
        assert_eq!(
            hung,
            "word word word word word\n    word word word word word"
        );
    }
}
