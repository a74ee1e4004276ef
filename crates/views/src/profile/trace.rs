//! A profile as a trace that Perfetto and Chrome show.

use std::collections::HashMap;
use std::io::{self, Write};

use mica_control::api::ProfileActivity;

use super::spans::{Recorded, Span};

/// Rows of what has no stream.
const COMPILE: u64 = 900;
const WAITS: u64 = 901;
const TURNS: u64 = 902;
const COPIES: u64 = 903;

/// Writes all spans that were kept, in the Trace Event Format.
///
/// # Errors
/// `out` cannot be written.
pub fn write(recorded: &Recorded, out: &mut dyn Write) -> io::Result<()> {
    let first = recorded.spans.iter().map(|span| span.begin_ns).min();
    let origin_ns = first.unwrap_or(0);
    let mut rows = Rows::default();
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    let mut comma = "\n";
    for span in &recorded.spans {
        let row = rows.of(span);
        let name = recorded.names.get(span.name as usize);
        let name = serde_json::to_string(name.map_or("", String::as_str))?;
        let pid = recorded.processes.get(usize::from(span.process));
        write!(
            out,
            "{comma}{{\"ph\":\"X\",\"name\":{name},\"cat\":\"{}\",\"pid\":{},\"tid\":{row},\"ts\":{},\"dur\":{}{}}}",
            span.activity,
            pid.unwrap_or(&0),
            micros(span.begin_ns - origin_ns),
            micros(span.end_ns - span.begin_ns),
            arguments(span),
        )?;
        comma = ",\n";
    }
    for ((process, row), title) in rows.titles() {
        let pid = recorded.processes.get(usize::from(process)).unwrap_or(&0);
        write!(
            out,
            "{comma}{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{pid},\"tid\":{row},\"args\":{{\"name\":\"{title}\"}}}}",
        )?;
        comma = ",\n";
    }
    writeln!(out, "\n]}}")
}

/// Nanoseconds as microseconds, exact.
fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

fn arguments(span: &Span) -> String {
    let queued = span.begin_ns.saturating_sub(span.queued_ns);
    let mut all = Vec::new();
    if queued > 0 {
        all.push(format!("\"queued_us\":{}", micros(queued)));
    }
    if span.bytes > 0 {
        let ns = (span.end_ns - span.begin_ns).max(1);
        let rate = span.bytes as f64 / ns as f64;
        all.push(format!("\"bytes\":{},\"GB/s\":{rate:.3}", span.bytes));
    }
    match all.is_empty() {
        true => String::new(),
        false => format!(",\"args\":{{{}}}", all.join(",")),
    }
}

/// Which row a span is drawn in: one for each stream of a process.
#[derive(Default)]
struct Rows {
    streams: HashMap<(u16, u64), u64>,
    next: HashMap<u16, u64>,
    others: std::collections::BTreeSet<(u16, u64)>,
}

impl Rows {
    fn of(&mut self, span: &Span) -> u64 {
        let row = match span.activity {
            ProfileActivity::Compile => COMPILE,
            ProfileActivity::Wait => WAITS,
            ProfileActivity::Turn => TURNS,
            _ if span.stream == 0 => COPIES,
            _ => {
                let next = self.next.entry(span.process).or_insert(0);
                let row = self.streams.entry((span.process, span.stream));
                return *row.or_insert_with(|| {
                    *next += 1;
                    *next
                });
            }
        };
        self.others.insert((span.process, row));
        row
    }

    fn titles(&self) -> Vec<((u16, u64), String)> {
        let streams = self.streams.iter();
        let mut all: Vec<((u16, u64), String)> = streams
            .map(|((process, _), row)| ((*process, *row), format!("stream {row}")))
            .collect();
        all.extend(self.others.iter().map(|key| {
            let title = match key.1 {
                COMPILE => "compiling",
                WAITS => "waits of the program",
                TURNS => "waits for a turn",
                _ => "copies by the program",
            };
            (*key, title.to_owned())
        }));
        all.sort();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_json_with_exact_times_and_a_row_for_each_stream() {
        let mut recorded = Recorded::default();
        for line in [
            r#"["process",7]"#,
            r#"["kernel","a<\"b\">",90,1000,2000,3500,0]"#,
            r#"["copy","host to device",91,4000,4000,5000,2000]"#,
            r#"["wait","cuStreamSynchronize",90,2000,2000,3600,0]"#,
        ] {
            recorded.take(line.as_bytes());
        }
        let mut text = Vec::new();
        write(&recorded, &mut text).unwrap();
        let trace: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 6);
        assert_eq!(events[0]["name"], "a<\"b\">");
        assert_eq!(
            (&events[0]["ts"], &events[0]["dur"]),
            (&0.0.into(), &1.5.into())
        );
        assert_eq!(events[0]["args"]["queued_us"], 1.0);
        assert_eq!(events[1]["args"]["GB/s"], 2.0);
        assert_ne!(events[0]["tid"], events[1]["tid"]);
        assert_eq!(events[5]["args"]["name"], "waits of the program");
    }
}
