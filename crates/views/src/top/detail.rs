//! The history of the selected virtual GPU as three charts: share, waiting, memory.

use mica_control::api::{Point, Subject};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;

use super::draw::{memory_tone, pair, ratio};
use super::layout::WIDE;
use super::paint::{Paint, Tone, columns};
use super::state::State;

struct Chart {
    title: String,
    tone: Tone,
    value: fn(&Point) -> f64,
    /// A line through the chart: the share asked for, the peak.
    line: Option<fn(&Point) -> f64>,
}

pub(crate) fn draw(state: &State, paint: Paint, place: Rect, buffer: &mut Buffer) {
    let Some(vgpu) = state.selected_vgpu() else {
        let text = "select a virtual GPU to see its history";
        return paint.text(buffer, (place.x, place.y, place.width), text, Tone::Dim);
    };
    let used = ratio(vgpu.memory_used_bytes, vgpu.memory_limit_bytes);
    let memory = pair(vgpu.memory_used_bytes, vgpu.memory_limit_bytes);
    let charts = [
        Chart {
            title: format!(
                "{}: share {:.1} % of {} % asked",
                vgpu.name, vgpu.share_measured_percent, vgpu.share_percent
            ),
            tone: Tone::Good,
            value: |point| f64::from(point.share_got_percent) / 100.0,
            line: Some(|point| f64::from(point.share_asked_percent) / 100.0),
        },
        Chart {
            title: format!(
                "waiting for its turn: {:.0} %",
                state.rate(&vgpu.name).waiting_percent
            ),
            tone: Tone::Warn,
            value: |point| f64::from(point.waiting_percent) / 100.0,
            line: None,
        },
        Chart {
            title: format!("memory {memory}"),
            tone: memory_tone(used),
            value: |point| ratio(point.memory_used_bytes, point.memory_limit_bytes),
            line: Some(|point| ratio(point.memory_peak_bytes, point.memory_limit_bytes)),
        },
    ];
    // A narrow screen has room for one.
    let count: u16 = if place.width >= WIDE { 3 } else { 1 };
    let width = (place.width - (count - 1)) / count;
    for (index, chart) in charts.iter().take(count.into()).enumerate() {
        let x = place.x + index as u16 * (width + 1);
        let place = Rect::new(x, place.y, width, place.height);
        chart.draw(state, &vgpu.name, paint, place, buffer);
    }
}

impl Chart {
    fn draw(&self, state: &State, name: &str, paint: Paint, place: Rect, buffer: &mut Buffer) {
        paint.text(
            buffer,
            (place.x, place.y, place.width),
            &self.title,
            Tone::Strong,
        );
        let rows = place.height.saturating_sub(2);
        let history = &state.history;
        let span = (history.since_seconds, history.until_seconds);
        let values = |value: fn(&Point) -> f64| {
            let points = state.points(Subject::Vgpu, name);
            columns(points, span, history.step_seconds, place.width, value)
        };
        let bottom = place.y + rows;
        for (column, value) in values(self.value).into_iter().enumerate() {
            let Some(value) = value else { continue };
            for row in 0..rows {
                let symbol = paint.level(value, rows, row);
                if symbol != " " {
                    let x = place.x + column as u16;
                    paint.put(buffer, x, bottom - row, symbol, self.tone);
                }
            }
        }
        let lines = self.line.map(values).unwrap_or_default();
        for (column, value) in lines.into_iter().enumerate() {
            let Some(value) = value.filter(|value| *value > 0.0) else {
                continue;
            };
            let row = ((value.min(1.0) * f64::from(rows)).ceil() as u16).clamp(1, rows.max(1)) - 1;
            let at = (place.x + column as u16, bottom - row);
            let is_free = buffer.cell(at).is_some_and(|cell| cell.symbol() == " ");
            if is_free {
                let symbol = if paint.unicode { "─" } else { "-" };
                paint.put(buffer, at.0, at.1, symbol, Tone::Dim);
            }
        }
        let (_, words, _) = state.span();
        let begin = format!("{words} ago");
        let y = place.y + place.height.saturating_sub(1);
        paint.text(buffer, (place.x, y, place.width), &begin, Tone::Dim);
        let now = "now";
        let x = place.x + place.width.saturating_sub(now.len() as u16);
        paint.text(buffer, (x, y, 3), now, Tone::Dim);
    }
}
