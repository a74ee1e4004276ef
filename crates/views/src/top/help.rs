//! The page of keys, over everything else.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;

use super::paint::{Paint, Tone};

const LINES: [&str; 19] = [
    "up down j k    select a row; PgUp PgDn Home End go further",
    "Enter          fold or unfold the programs of a virtual GPU",
    "/              show only rows that contain some letters; Esc shows all",
    "s              sort by the next column; S turns the order",
    "+ -            zoom in and out in time, from a minute to a month",
    "",
    "z              suspend the virtual GPU        r   resume it",
    "e              resize it: memory, share, cap, priority",
    "c              cancel its queued and running kernels",
    "x              end the program (SIGTERM); X kills it (SIGKILL)",
    "               on a virtual GPU: all programs in it",
    "",
    "mouse          select, wheel, click on a title to sort, on keys to press",
    "Space          stop and go on        Ctrl-L  draw again        q  quit",
    "",
    "SHARE          bar: had now; line in it: asked for; ~ not reserved, ^ cap",
    "WAITS          time that threads waited for their turn, all threads",
    "MEMORY         bar: in use; line in it: the most ever in use",
    "               any key closes this page",
];

pub(crate) fn draw(paint: Paint, area: Rect, buffer: &mut Buffer) {
    let wide = LINES.iter().map(|line| line.len()).max().unwrap_or(0) as u16 + 2;
    let width = wide.min(area.width);
    let height = (LINES.len() as u16 + 2).min(area.height);
    let x = area.x + (area.width - width) / 2;
    let y = area.y + (area.height - height) / 2;
    for row in 0..height {
        for column in 0..width {
            paint.put(buffer, x + column, y + row, " ", Tone::Plain);
        }
    }
    buffer.set_style(Rect::new(x, y, width, 1), paint.style(Tone::Turned));
    paint.text(buffer, (x + 1, y, width - 1), "Keys", Tone::Turned);
    for (row, line) in LINES.iter().enumerate().take(usize::from(height) - 1) {
        paint.text(
            buffer,
            (x + 1, y + 1 + row as u16, width - 1),
            line,
            Tone::Plain,
        );
    }
}
