//! A line a minute about what runs.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

/// Bytes at the end of an output that are searched for its last line.
const TAIL_BYTES: i64 = 4096;

/// Says once a minute how far a program is, by the last line of its output that begins with a word.
pub(super) fn each_minute<'a>(
    name: &'a str,
    log: &'a Path,
    word: &'a str,
) -> impl FnMut(Duration) + 'a {
    let mut said = 0;
    move |elapsed| {
        let minutes = elapsed.as_secs() / 60;
        if minutes > said {
            said = minutes;
            let line = last_line(log, word).unwrap_or_default();
            println!("{name}: {minutes} min  {line}");
        }
    }
}

fn last_line(log: &Path, word: &str) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len() as i64;
    file.seek(SeekFrom::End(-length.min(TAIL_BYTES))).ok()?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail).ok()?;
    let tail = String::from_utf8_lossy(&tail);
    let mut lines = tail.lines().rev();
    lines.find(|l| l.starts_with(word)).map(str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_with_the_word_is_found_in_a_long_output() {
        let path = std::env::temp_dir().join(format!("mica-progress-{}", std::process::id()));
        std::fs::write(
            &path,
            format!("#1 old\n{}#2 new\nnoise\n", "x\n".repeat(9000)),
        )
        .unwrap();
        assert_eq!(last_line(&path, "#").as_deref(), Some("#2 new"));
        assert_eq!(last_line(&path, "test"), None);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(last_line(&path, "#"), None);
    }
}
