//! Bars and lines of history, in blocks or in ASCII, with or without colours.

use mica_control::api::Point;
use ratatui_core::buffer::Buffer;
use ratatui_core::style::{Color, Modifier, Style};

/// How a terminal is drawn on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    pub(crate) colours: bool,
    pub(crate) unicode: bool,
}

/// What a colour means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Good,
    More,
    Warn,
    Bad,
    Dim,
    Strong,
    Turned,
}

const EIGHTHS: [&str; 9] = [" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"];
const LEVELS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
const ASCII_LEVELS: [&str; 9] = [" ", "_", ".", ":", "-", "=", "+", "*", "#"];

impl Paint {
    pub(crate) fn style(self, tone: Tone) -> Style {
        let style = Style::default();
        let colour = |colour| match self.colours {
            true => style.fg(colour),
            false => style,
        };
        match tone {
            Tone::Plain => style,
            Tone::Good => colour(Color::Green),
            Tone::More => colour(Color::Cyan),
            Tone::Warn => colour(Color::Yellow),
            Tone::Bad => colour(Color::Red).add_modifier(Modifier::BOLD),
            Tone::Dim => match self.colours {
                true => style.fg(Color::DarkGray),
                false => style,
            },
            Tone::Strong => style.add_modifier(Modifier::BOLD),
            Tone::Turned => style.add_modifier(Modifier::REVERSED),
        }
    }

    /// A bar from 0 to 1, with a mark such as a share or a peak.
    pub(crate) fn bar(
        self,
        buffer: &mut Buffer,
        (x, y, width): (u16, u16, u16),
        ratio: f64,
        mark: Option<f64>,
        tone: Tone,
    ) {
        let eighths = (ratio.clamp(0.0, 1.0) * f64::from(width) * 8.0).round() as u16;
        for column in 0..width {
            let filled = eighths.saturating_sub(column * 8).min(8);
            let (symbol, tone) = match (filled, self.unicode) {
                (0, true) => ("·", Tone::Dim),
                (0, false) => (".", Tone::Dim),
                (filled, true) => (EIGHTHS[usize::from(filled)], tone),
                (filled, false) => (if filled >= 4 { "#" } else { "." }, tone),
            };
            self.put(buffer, x + column, y, symbol, tone);
        }
        if let Some(mark) = mark.filter(|mark| *mark > 0.0) {
            let column = (mark.clamp(0.0, 1.0) * f64::from(width)).ceil() as u16;
            let symbol = if self.unicode { "│" } else { "|" };
            let column = column.saturating_sub(1).min(width.saturating_sub(1));
            self.put(buffer, x + column, y, symbol, Tone::Strong);
        }
    }

    /// A line of history: values from 0 to 1; nothing where nothing was measured.
    pub(crate) fn sparks(
        self,
        buffer: &mut Buffer,
        (x, y): (u16, u16),
        values: &[Option<f64>],
        tone: Tone,
    ) {
        for (column, value) in values.iter().enumerate() {
            if let Some(value) = value {
                let symbol = self.level(*value, 1, 0);
                self.put(buffer, x + column as u16, y, symbol, tone);
            }
        }
    }

    /// The symbol of a value in one of several rows, counted from below. What is not nothing shows.
    pub(crate) fn level(self, value: f64, rows: u16, row: u16) -> &'static str {
        let whole = value.clamp(0.0, 1.0) * f64::from(rows) * 8.0;
        let least = u16::from(value > 0.0 && row == 0);
        let eighths = (whole.round() as u16)
            .max(least)
            .saturating_sub(row * 8)
            .min(8);
        let levels = if self.unicode { &LEVELS } else { &ASCII_LEVELS };
        levels[usize::from(eighths)]
    }

    pub(crate) fn put(self, buffer: &mut Buffer, x: u16, y: u16, symbol: &str, tone: Tone) {
        if let Some(cell) = buffer.cell_mut((x, y)) {
            cell.set_symbol(symbol).set_style(self.style(tone));
        }
    }

    /// Text of at most `width` columns; longer text is cut with an ellipsis.
    pub(crate) fn text(
        self,
        buffer: &mut Buffer,
        (x, y, width): (u16, u16, u16),
        text: &str,
        tone: Tone,
    ) {
        // A screen may be smaller than anything on it.
        if buffer.cell((x, y)).is_none() {
            return;
        }
        let room = usize::from(width);
        let text = mica_wire::host::printable::printable(text);
        let long = text.chars().count() > room;
        let shown: String = match (long, self.unicode) {
            (false, _) => text.into_owned(),
            (true, true) => text
                .chars()
                .take(room.saturating_sub(1))
                .chain(['…'])
                .collect(),
            (true, false) => text
                .chars()
                .take(room.saturating_sub(1))
                .chain(['~'])
                .collect(),
        };
        buffer.set_stringn(x, y, shown, room, self.style(tone));
    }
}

/// The values of a span of time in so many columns. A column without a point of its own has the one that covers it.
pub(crate) fn columns<'a>(
    points: impl Iterator<Item = &'a Point>,
    (since, until): (u64, u64),
    step: u32,
    width: u16,
    value: impl Fn(&Point) -> f64,
) -> Vec<Option<f64>> {
    let span = until.saturating_sub(since).max(1) as f64;
    let mut sums = vec![(0.0, 0_u32); usize::from(width)];
    for point in points {
        let begin = point.time_seconds as f64 - since as f64;
        let end = begin + f64::from(point.measured_seconds).max(f64::from(step));
        let column = |time: f64| time / span * f64::from(width);
        let first = column(begin).floor().max(0.0) as usize;
        let last = column(end).ceil().max(0.0) as usize;
        for sum in sums.iter_mut().take(last).skip(first) {
            sum.0 += value(point);
            sum.1 += 1;
        }
    }
    let average = |(sum, count): (f64, u32)| (count > 0).then(|| sum / f64::from(count));
    sums.into_iter().map(average).collect()
}
