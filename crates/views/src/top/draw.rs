//! A frame: a pure function of the state.

use mica_control::api::{GpuInfo, Subject, VgpuInfo, VgpuState};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;

use super::layout::{Column, KEYS, Places, WIDE, first_row, keys_line, table};
use super::paint::{Paint, Tone, columns};
use super::rows::{Row, rows};
use super::state::{Link, Prompt, State};
use super::{detail, help};
use mica_command::size::show_bytes;

/// Draws everything.
pub(crate) fn draw(state: &State, area: Rect, buffer: &mut Buffer) {
    let paint = Paint {
        colours: state.colours,
        unicode: state.unicode,
    };
    let places = Places::of(state, area);
    let mut frame = Frame {
        state,
        paint,
        buffer,
    };
    frame.header(places.header);
    frame.gpus(places.gpus);
    frame.titles(places.titles);
    frame.rows(places.rows);
    if let Some(place) = places.detail {
        detail::draw(state, paint, place, frame.buffer);
    }
    frame.status(places.status);
    frame.keys(places.keys);
    if state.prompt == Some(Prompt::Help) {
        help::draw(paint, area, frame.buffer);
    }
}

struct Frame<'a> {
    state: &'a State,
    paint: Paint,
    buffer: &'a mut Buffer,
}

impl Frame<'_> {
    fn text(&mut self, place: (u16, u16, u16), text: &str, tone: Tone) {
        self.paint.text(self.buffer, place, text, tone);
    }

    fn header(&mut self, place: Rect) {
        let state = self.state;
        let right = format!("{} │ {}", state.span().1, state.clock);
        let right = self.plain(right);
        let left = match &state.link {
            Link::Waiting => "mica top: waiting for the daemon".to_owned(),
            _ => {
                let daemon = &state.stats.daemon;
                let vgpus = state.stats.vgpus.len();
                let processes: usize = state.stats.vgpus.iter().map(|v| v.processes.len()).sum();
                format!(
                    "mica {} {} │ up {} │ {} │ {}",
                    daemon.version,
                    state.host,
                    duration(daemon.uptime_seconds),
                    counted(vgpus, "vGPU"),
                    counted(processes, "program"),
                )
            }
        };
        let left = self.plain(left);
        let wide = right.chars().count() as u16;
        let room = place.width.saturating_sub(wide + 1);
        self.text((place.x, place.y, room), &left, Tone::Strong);
        self.text((place.x + room + 1, place.y, wide), &right, Tone::Plain);
    }

    /// Without lines that only Unicode has.
    fn plain(&self, text: String) -> String {
        match self.paint.unicode {
            true => text,
            false => text.replace('│', "|"),
        }
    }

    fn gpus(&mut self, place: Rect) {
        let all = self.state.stats.gpus.len();
        let shown = usize::from(place.height);
        for (line, gpu) in self.state.stats.gpus.iter().take(shown).enumerate() {
            let y = place.y + line as u16;
            if line + 1 == shown && all > shown {
                let text = format!("and {} more GPUs", all - shown + 1);
                return self.text((place.x, y, place.width), &text, Tone::Dim);
            }
            self.gpu(gpu, Rect::new(place.x, y, place.width, 1));
        }
    }

    fn gpu(&mut self, gpu: &GpuInfo, place: Rect) {
        let wide = place.width >= WIDE;
        let (label, bar) = if wide { (34, 24) } else { (16, 9) };
        let name = match gpu.name.is_empty() {
            true => gpu.kind.to_string(),
            false => gpu.name.clone(),
        };
        let (mut x, y) = (place.x, place.y);
        let label_tone = if gpu.lost.is_some() || gpu.drained.is_some() {
            Tone::Bad
        } else {
            Tone::Strong
        };
        self.text(
            (x, y, label),
            &format!("GPU {} {name}", gpu.index),
            label_tone,
        );
        x += label + 1;
        let busy = gpu.utilization_percent;
        let reserved = gpu.share_reserved_percent.as_ratio();
        self.paint.bar(
            self.buffer,
            (x, y, bar),
            busy / 100.0,
            Some(reserved),
            Tone::Good,
        );
        x += bar + 1;
        self.text((x, y, 10), &format!("{busy:>3.0} % busy"), Tone::Plain);
        x += 11;
        let used = gpu.memory_used_bytes;
        let total = gpu.memory_total_bytes;
        let ratio = ratio(used, total);
        self.paint
            .bar(self.buffer, (x, y, bar), ratio, None, memory_tone(ratio));
        x += bar + 1;
        self.text((x, y, 15), &pair(used, total), Tone::Plain);
        x += 16;
        let room = (place.x + place.width).saturating_sub(x);
        let name = gpu.index.to_string();
        self.history(Subject::Gpu, &name, (x, y, room), Tone::Good);
    }

    /// The line of the share that was had, over the span that is shown.
    fn history(&mut self, subject: Subject, name: &str, (x, y, room): (u16, u16, u16), tone: Tone) {
        let history = &self.state.history;
        let span = (history.since_seconds, history.until_seconds);
        let points = self.state.points(subject, name);
        let values = columns(points, span, history.step_seconds, room, |point| {
            f64::from(point.share_got_percent) / 100.0
        });
        self.paint.sparks(self.buffer, (x, y), &values, tone);
    }

    fn titles(&mut self, place: Rect) {
        let turned = self.paint.style(Tone::Turned);
        self.buffer.set_style(place, turned);
        for (column, x, width) in table(place.width) {
            let mark = match (column.sort() == Some(self.state.sort), self.state.reversed) {
                (false, _) => "",
                (true, false) => "*",
                (true, true) => "^",
            };
            let title = format!("{}{mark}", column.title());
            self.text((place.x + x, place.y, width), &title, Tone::Turned);
        }
    }

    fn rows(&mut self, place: Rect) {
        let all = rows(self.state);
        let selected = all
            .iter()
            .position(|row| Some(row.key()) == self.state.selected);
        let first = first_row(selected, all.len(), place.height.into());
        if all.is_empty() {
            return self.text((place.x, place.y, place.width), &self.nothing(), Tone::Dim);
        }
        for (line, row) in all.iter().skip(first).take(place.height.into()).enumerate() {
            let line_place = Rect::new(place.x, place.y + line as u16, place.width, 1);
            match row {
                Row::Vgpu(vgpu) => self.vgpu(vgpu, line_place),
                other => self.below(other, line_place),
            }
            if Some(first + line) == selected {
                let style = self.paint.style(Tone::Turned);
                self.buffer.set_style(line_place, style);
            }
        }
    }

    fn nothing(&self) -> String {
        match (self.state.stats.vgpus.is_empty(), &self.state.link) {
            (_, Link::Waiting) => String::new(),
            // None has answered yet.
            _ if self.state.stats.daemon.version.is_empty() => String::new(),
            (true, _) => "no virtual GPUs; `mica run -- CMD` makes one".to_owned(),
            (false, _) => format!("nothing contains {:?}", self.state.filter),
        }
    }

    fn vgpu(&mut self, vgpu: &VgpuInfo, place: Rect) {
        for (column, x, width) in table(place.width) {
            self.cell(vgpu, column, (place.x + x, place.y, width));
        }
    }

    fn cell(&mut self, vgpu: &VgpuInfo, column: Column, place: (u16, u16, u16)) {
        let rate = self.state.rate(&vgpu.name);
        let plain = |text: String| (text, Tone::Plain);
        let (text, tone) = match column {
            Column::Name => (vgpu.name.clone(), Tone::Strong),
            Column::State => (vgpu.state.to_string(), state_tone(vgpu.state)),
            Column::Share => return self.share(vgpu, place),
            Column::Memory => return self.memory(vgpu, place),
            Column::Waiting => {
                let percent = rate.waiting_percent;
                (format!("{percent:>4.0} %"), waiting_tone(percent))
            }
            Column::Peak => plain(format!("{:>9}", show_bytes(vgpu.memory_peak_bytes))),
            Column::Launches => plain(format!("{:>9}", short_count(rate.launches_per_second))),
            Column::GpuTime => plain(format!("{:>9}", duration(vgpu.gpu_seconds))),
            Column::User => plain(self.state.user(vgpu.owner_uid)),
            Column::Priority => plain(format!("{:?}", vgpu.priority).to_lowercase()),
            Column::History => {
                return self.history(Subject::Vgpu, &vgpu.name, place, Tone::Good);
            }
        };
        self.text(place, &text, tone);
    }

    fn share(&mut self, vgpu: &VgpuInfo, (x, y, width): (u16, u16, u16)) {
        let asked = vgpu.share_percent.as_f64();
        let got = vgpu.share_measured_percent;
        let bar = width.saturating_sub(9);
        let tone = if got > asked + 2.0 {
            Tone::More
        } else {
            Tone::Good
        };
        self.paint.bar(
            self.buffer,
            (x, y, bar),
            got / 100.0,
            Some(asked / 100.0),
            tone,
        );
        let mark = match (vgpu.share_reserved, vgpu.cap) {
            (_, true) => "^",
            (true, false) => "",
            (false, false) => "~",
        };
        let text = format!("{got:>3.0}/{mark}{asked:.0}");
        self.text((x + bar + 1, y, 8), &text, Tone::Plain);
    }

    fn memory(&mut self, vgpu: &VgpuInfo, (x, y, width): (u16, u16, u16)) {
        let bar = width.saturating_sub(14);
        let used = ratio(vgpu.memory_used_bytes, vgpu.memory_limit_bytes);
        let peak = ratio(vgpu.memory_peak_bytes, vgpu.memory_limit_bytes);
        let tone = memory_tone(used);
        self.paint
            .bar(self.buffer, (x, y, bar), used, Some(peak), tone);
        let text = pair(vgpu.memory_used_bytes, vgpu.memory_limit_bytes);
        self.text((x + bar + 1, y, 13), &text, Tone::Plain);
    }

    /// A container or a process, below its virtual GPU.
    fn below(&mut self, row: &Row<'_>, place: Rect) {
        let branch = |is_last: bool| match (self.paint.unicode, is_last) {
            (true, true) => "└─ ",
            (true, false) => "├─ ",
            (false, _) => "`- ",
        };
        let line = |goes_on: bool| match (self.paint.unicode, goes_on) {
            (true, true) => "│  ",
            (false, true) => "|  ",
            (_, false) => "   ",
        };
        let text = match row {
            Row::Vgpu(_) => return,
            Row::Container {
                name,
                processes,
                is_last,
                ..
            } => {
                let programs = counted(*processes, "program");
                format!(" {}container {name}: {programs}", branch(*is_last))
            }
            Row::Process {
                process,
                below,
                is_last,
                ..
            } => {
                let command = match process.command.is_empty() {
                    true => &process.name,
                    false => &process.command,
                };
                let user = process
                    .uid
                    .map_or_else(String::new, |uid| self.state.user(uid));
                let memory = show_bytes(process.memory_used_bytes);
                let indent = below.map_or("", line);
                let branch = branch(*is_last);
                let pid = process.pid;
                let time = duration(process.gpu_seconds);
                format!(" {indent}{branch}{pid} {user}  {memory}  {time}  {command}")
            }
        };
        self.text((place.x, place.y, place.width), &text, Tone::Plain);
    }

    fn status(&mut self, place: Rect) {
        let place = (place.x, place.y, place.width);
        let state = self.state;
        let cursor = if self.paint.unicode { "▏" } else { "_" };
        match &state.prompt {
            Some(Prompt::Confirm(action)) => {
                let text = format!("{}? (y/n)", action.question());
                return self.text(place, &text, Tone::Warn);
            }
            Some(Prompt::Filter) => {
                let text = format!("filter: {}{cursor}", state.filter);
                return self.text(place, &text, Tone::Strong);
            }
            Some(Prompt::Resize { vgpu, text, wrong }) => {
                let wrong = wrong
                    .as_ref()
                    .map_or_else(String::new, |why| format!("  {why}"));
                let text = format!("resize {vgpu}: {text}{cursor}{wrong}");
                return self.text(place, &text, Tone::Strong);
            }
            Some(Prompt::Help) | None => {}
        }
        if let Link::Down(since, why) = &state.link {
            let seconds = (state.now - since).max(0.0);
            let picture = match state.stats.daemon.version.is_empty() {
                true => "",
                false => ", this is the last picture",
            };
            let text = format!("no daemon for {seconds:.0} s{picture}: {why}");
            return self.text(place, &text, Tone::Bad);
        }
        if let Some((text, is_bad)) = &state.message {
            let tone = if *is_bad { Tone::Bad } else { Tone::Good };
            return self.text(place, text, tone);
        }
        let wrong = state.stats.vgpus.iter().find_map(|vgpu| {
            let reason = vgpu.reasons.first()?;
            Some(format!("{} is {}: {reason}", vgpu.name, vgpu.state))
        });
        if let Some(wrong) = wrong {
            return self.text(place, &wrong, Tone::Bad);
        }
        let order = if state.reversed { " reversed" } else { "" };
        let filter = match state.filter.is_empty() {
            true => String::new(),
            false => format!(", only what contains {:?}", state.filter),
        };
        let text = format!("sorted by {}{order}{filter}", state.sort.words());
        self.text(place, &text, Tone::Dim);
    }

    fn keys(&mut self, place: Rect) {
        for ((key, x, wide), (_, words)) in keys_line(place.width).into_iter().zip(KEYS) {
            let x = place.x + x;
            self.text((x, place.y, 1), &key.to_string(), Tone::Strong);
            self.text(
                (x + 1, place.y, wide - 1),
                &format!(" {words}"),
                Tone::Turned,
            );
        }
    }
}

fn state_tone(state: VgpuState) -> Tone {
    match state {
        VgpuState::Active => Tone::Good,
        VgpuState::Ready => Tone::Dim,
        VgpuState::Suspended | VgpuState::Snapshotted => Tone::Warn,
        VgpuState::Degraded | VgpuState::Lost => Tone::Bad,
    }
}

fn waiting_tone(percent: f64) -> Tone {
    match percent {
        50.0.. => Tone::Bad,
        20.0.. => Tone::Warn,
        _ => Tone::Plain,
    }
}

pub(crate) fn memory_tone(ratio: f64) -> Tone {
    match ratio {
        0.9.. => Tone::Bad,
        0.75.. => Tone::Warn,
        _ => Tone::Good,
    }
}

pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => part as f64 / whole as f64,
    }
}

/// Two sizes with one unit, the larger one's: `3.2/4 GiB`.
pub(crate) fn pair(part: u64, whole: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.iter().find(|(_, shift)| whole >= 1 << shift);
    let (unit, shift) = unit.copied().unwrap_or(("B", 0));
    let number = |bytes: u64| {
        let value = bytes as f64 / (1_u64 << shift) as f64;
        match value {
            100.0.. => format!("{value:.0}"),
            _ if value.fract() < 0.05 => format!("{value:.0}"),
            _ => format!("{value:.1}"),
        }
    };
    format!("{}/{} {unit}", number(part), number(whole))
}

/// `5 s`, `3:05`, `2:03:05`, `4 d 2 h`.
pub(crate) fn duration(seconds: f64) -> String {
    let all = seconds.max(0.0) as u64;
    let (hours, minutes, rest) = (all / 3600, all / 60 % 60, all % 60);
    match all {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{minutes}:{rest:02}"),
        3600..86_400 => format!("{hours}:{minutes:02}:{rest:02}"),
        _ => format!("{} d {} h", hours / 24, hours % 24),
    }
}

fn short_count(number: f64) -> String {
    match number {
        1e6.. => format!("{:.1} M", number / 1e6),
        1e4.. => format!("{:.0} k", number / 1e3),
        _ => format!("{number:.0}"),
    }
}

fn counted(number: usize, one: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        number => format!("{number} {one}s"),
    }
}
