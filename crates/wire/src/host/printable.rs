//! Text of programs, made safe for terminals and logs.
//!
//! Names of processes, sentences of notes, names of files and of kernels are chosen by programs. Written as they are, they
//! could move the cursor, forge lines of a log, or show letters in another order than they stand in.

use std::borrow::Cow;

/// Whether a character does something else than to be seen: control characters, line and paragraph separators, marks that
/// change the direction of writing, and characters without a width.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// One line of text with every hidden character written as an escape, such as `\u{1b}` and `\n`.
pub fn printable(text: &str) -> Cow<'_, str> {
    replace(text, |c, into| match is_hidden(c) {
        // Letters beyond ASCII would be escaped too.
        true => into.extend(c.escape_default()),
        false => into.push(c),
    })
}

/// As [`printable`], for text of several lines.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    replace(text, |c, into| match is_hidden(c) && c != '\n' {
        true => into.extend(c.escape_default()),
        false => into.push(c),
    })
}

/// The same JSON, with hidden characters of its strings written as `\u202e`. Control characters stand only between its values,
/// where they are white space.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    replace(json, |c, into| {
        match is_hidden(c) && !c.is_ascii_control() {
            true => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    into.push_str(&format!("\\u{unit:04x}"));
                }
            }
            false => into.push(c),
        }
    })
}

fn replace(text: &str, mut put: impl FnMut(char, &mut String)) -> Cow<'_, str> {
    if !text.chars().any(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    text.chars().for_each(|c| put(c, &mut safe));
    Cow::Owned(safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A title, a forged line, a cleared screen by one byte, and words that run backwards.
    const HOSTILE: &str =
        "\x1b]0;x\x07a\nroot: ok\r\u{9b}2J\u{202e}gpj.exe\u{2066}\u{200b}\u{e0041}\x7f\0";

    #[test]
    fn hidden_characters_are_written_out_and_letters_stay() {
        let safe = printable(HOSTILE);
        assert!(!safe.chars().any(is_hidden), "{safe}");
        assert!(safe.starts_with("\\u{1b}]0;x\\u{7}a\\nroot: ok\\r\\u{9b}2J\\u{202e}gpj"));
        for plain in ["", "gpu-0 50 %", "Größe 日本語 µs é 🦀", "C:\\n"] {
            assert!(matches!(printable(plain), Cow::Borrowed(text) if text == plain));
        }
        assert_eq!(printable_lines("a\n\tb\x1b"), "a\n\\tb\\u{1b}");
    }

    #[test]
    fn hidden_characters_in_json_keep_its_meaning() {
        let json = "{\n  \"a\": \"\\u001b \u{202e}x\u{9b}\u{e0041}\"\n}";
        let safe = printable_json(json);
        assert!(safe.is_ascii());
        assert_eq!(
            safe,
            "{\n  \"a\": \"\\u001b \\u202ex\\u009b\\udb40\\udc41\"\n}"
        );
    }
}
