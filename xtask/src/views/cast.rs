//! A short film of `mica top` from a real run, as an SVG that moves by itself: no script, no player.
//!
//! tmux has the terminal. Rows that are the same in several pictures are in the file once.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::stage::Stage;

const COLUMNS: u32 = 100;
const ROWS: u32 = 22;
/// Between two pictures.
const EVERY: Duration = Duration::from_millis(700);
/// Keys, and how many pictures are taken after them.
const SCRIPT: [(&str, usize); 8] = [
    ("", 5),
    ("s", 3),
    ("j", 2),
    ("j", 2),
    ("z", 2),
    ("y", 4),
    ("r", 2),
    ("y", 4),
];
/// Size of a character.
const WIDE: f32 = 8.43;
const HIGH: f32 = 18.0;
const MARGIN: f32 = 14.0;
const BACK: &str = "#0e1118";
const TEXT: &str = "#d7dce6";

/// Films `mica top` on a stage whose tenants work.
pub(super) fn film(stage: &Stage, file: &Path) -> Result<()> {
    let terminal = Terminal::start(stage)?;
    std::thread::sleep(Duration::from_secs(4));
    let mut pictures = Vec::new();
    for (key, count) in SCRIPT {
        if !key.is_empty() {
            terminal.tmux(&["send-keys", key])?;
        }
        for _ in 0..count {
            std::thread::sleep(EVERY);
            let text = terminal.tmux(&["capture-pane", "-p", "-e"])?;
            ensure!(text.contains("mica"), "mica top shows nothing:\n{text}");
            pictures.push(text);
        }
    }
    let svg = render(&pictures);
    std::fs::write(file, &svg).with_context(|| file.display().to_string())?;
    println!(
        "    {} pictures, {} kB: {}",
        pictures.len(),
        svg.len() / 1000,
        file.display()
    );
    Ok(())
}

/// A terminal with `mica top` in it, which ends with it.
struct Terminal(PathBuf);

impl Terminal {
    fn start(stage: &Stage) -> Result<Self> {
        let terminal = Self(stage.folder().join("tmux"));
        let line = format!(
            "env MICA_RUNTIME_DIR={} LC_ALL=C.UTF-8 TERM=screen-256color {} top --sort share",
            stage.folder().join("run").display(),
            stage.mica().display()
        );
        let (columns, rows) = (COLUMNS.to_string(), ROWS.to_string());
        terminal.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            &columns,
            "-y",
            &rows,
            &line,
        ])?;
        Ok(terminal)
    }

    fn tmux(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(&self.0).args(words);
        let output = command.env("LC_ALL", "C.UTF-8").output().context("tmux")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "tmux {words:?}: {errors}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}

/// How a piece of a row looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Look {
    colour: Option<u8>,
    back: Option<u8>,
    is_bold: bool,
    is_turned: bool,
}

impl Look {
    /// Takes the numbers of one escape sequence.
    fn take(&mut self, codes: &str) {
        let numbers: Vec<u8> = codes.split(';').map(|c| c.parse().unwrap_or(0)).collect();
        let mut rest = &numbers[..];
        while let [code, after @ ..] = rest {
            rest = after;
            match (code, after) {
                (38, [5, colour, more @ ..]) => (self.colour, rest) = (Some(*colour), more),
                (48, [5, colour, more @ ..]) => (self.back, rest) = (Some(*colour), more),
                (0, _) => *self = Self::default(),
                (1, _) => self.is_bold = true,
                (22, _) => self.is_bold = false,
                (7, _) => self.is_turned = true,
                (27, _) => self.is_turned = false,
                (30..=37, _) => self.colour = Some(code - 30),
                (90..=97, _) => self.colour = Some(code - 82),
                (40..=47, _) => self.back = Some(code - 40),
                (39, _) => self.colour = None,
                (49, _) => self.back = None,
                _ => {}
            }
        }
    }

    fn colours(&self) -> (String, Option<String>) {
        let text = self.colour.map_or(TEXT.to_owned(), palette);
        let back = self.back.map(palette);
        match self.is_turned {
            true => (back.unwrap_or_else(|| BACK.to_owned()), Some(text)),
            false => (text, back),
        }
    }
}

fn palette(number: u8) -> String {
    const NAMED: [&str; 16] = [
        "#1b202c", "#ff7b72", "#6fd79b", "#f0c36a", "#7aa2ff", "#c58fff", "#5ad1d8", "#d7dce6",
        "#6b7589", "#ff9b92", "#8be8b0", "#ffd98a", "#9dbbff", "#d9b3ff", "#8ae6ec", "#ffffff",
    ];
    match NAMED.get(usize::from(number)) {
        Some(named) => (*named).to_owned(),
        None if number >= 232 => {
            let grey = 8 + 10 * (u32::from(number) - 232);
            format!("#{grey:02x}{grey:02x}{grey:02x}")
        }
        None => {
            let level = |n: u32| if n == 0 { 0 } else { 55 + 40 * n };
            let n = u32::from(number) - 16;
            format!(
                "#{:02x}{:02x}{:02x}",
                level(n / 36),
                level(n / 6 % 6),
                level(n % 6)
            )
        }
    }
}

/// A row as pieces of one look each, with the column where each begins.
fn pieces(row: &str) -> Vec<(usize, String, Look)> {
    let mut all: Vec<(usize, String, Look)> = Vec::new();
    let mut look = Look::default();
    let mut column = 0;
    for (number, part) in row.split("\x1b[").enumerate() {
        let text = match (number, part.split_once('m')) {
            (0, _) | (_, None) => part,
            (_, Some((codes, text))) => {
                look.take(codes);
                text
            }
        };
        if !text.is_empty() {
            all.push((column, text.to_owned(), look.clone()));
            column += text.chars().count();
        }
    }
    all
}

fn row_svg(row: &str) -> String {
    let mut svg = String::new();
    for (column, text, look) in pieces(row) {
        let (colour, back) = look.colours();
        let wide = text.chars().count() as f32 * WIDE;
        let x = column as f32 * WIDE;
        if let Some(back) = back {
            let _ = write!(
                svg,
                r#"<rect x="{x:.1}" y="-14" width="{wide:.1}" height="{HIGH}" fill="{back}"/>"#
            );
        }
        if text.trim().is_empty() {
            continue;
        }
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let weight = if look.is_bold {
            r#" font-weight="700""#
        } else {
            ""
        };
        // The length keeps the columns where they are, whatever font there is.
        let _ = write!(
            svg,
            r#"<text x="{x:.1}" fill="{colour}" textLength="{wide:.1}" xml:space="preserve"{weight}>{text}</text>"#
        );
    }
    svg
}

fn render(pictures: &[String]) -> String {
    let mut rows: HashMap<&str, usize> = HashMap::new();
    let (mut symbols, mut frames) = (String::new(), String::new());
    let each = EVERY.as_secs_f32();
    for (number, picture) in pictures.iter().enumerate() {
        let _ = write!(
            frames,
            r#"<g class="f" style="animation-delay:{:.1}s">"#,
            number as f32 * each
        );
        for (line, row) in picture
            .lines()
            .enumerate()
            .filter(|(_, row)| !row.trim().is_empty())
        {
            let next = rows.len();
            let id = *rows.entry(row).or_insert_with(|| {
                let _ = write!(symbols, r#"<g id="r{next}">{}</g>"#, row_svg(row));
                next
            });
            let y = MARGIN + 14.0 + line as f32 * HIGH;
            let _ = write!(frames, r##"<use href="#r{id}" x="{MARGIN}" y="{y:.0}"/>"##);
        }
        frames += "</g>\n";
    }
    let (width, height) = (
        COLUMNS as f32 * WIDE + 2.0 * MARGIN,
        ROWS as f32 * HIGH + 2.0 * MARGIN,
    );
    let (all, part) = (pictures.len() as f32 * each, 100.0 / pictures.len() as f32);
    // Who wants no motion sees the first picture.
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" role="img" aria-label="mica top with six tenants">
<style>text{{font:14px ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace}}.f{{visibility:hidden;animation:f {all:.1}s step-end infinite}}
@keyframes f{{0%{{visibility:visible}}{part:.3}%{{visibility:hidden}}}}
@media (prefers-reduced-motion:reduce){{.f{{animation:none}}.f:first-of-type{{visibility:visible}}}}</style>
<rect width="100%" height="100%" rx="10" fill="{BACK}"/>
<defs>{symbols}</defs>
{frames}</svg>
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_columns_and_colours() {
        let row = "ab\x1b[32mcd\x1b[0;7m e<\x1b[0m\x1b[38;5;244mg";
        let pieces = pieces(row);
        let texts: Vec<(usize, &str)> = pieces.iter().map(|(x, t, _)| (*x, t.as_str())).collect();
        assert_eq!(texts, [(0, "ab"), (2, "cd"), (4, " e<"), (7, "g")]);
        assert_eq!(pieces[1].2.colours().0, palette(2));
        assert_eq!(pieces[2].2.colours(), (BACK.into(), Some(TEXT.into())));
        assert_eq!(pieces[3].2.colours().0, "#808080");
        assert!(row_svg(row).contains("e&lt;"));
    }

    #[test]
    fn a_row_that_repeats_is_in_the_file_once() {
        let film = render(&["same\nfirst".into(), "same\nlast".into()]);
        assert_eq!(film.matches(">same<").count(), 1);
        assert_eq!(film.matches(r##"href="#r0""##).count(), 2);
    }
}
