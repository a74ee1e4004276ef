//! The daemon's log on standard error, in the format that the configuration names.

use std::io::Write;

use mica_daemon::config::LogFormat;
use mica_wire::host::printable::printable;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Compact, Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Has everything that is logged from now on written to standard error.
pub(crate) fn start(format: LogFormat) {
    let filter =
        EnvFilter::try_from_env("MICA_LOG_LEVEL").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false);
    match format {
        LogFormat::Text => log.with_writer(|| PrintableLines(std::io::stderr())).init(),
        // JSON has escapes of its own, and events hold no hidden characters.
        LogFormat::Json => log
            .json()
            .flatten_event(true)
            .with_writer(std::io::stderr)
            .init(),
        LogFormat::Journald => log
            .event_format(Journald(Format::default().compact().without_time()))
            .with_writer(|| PrintableLines(std::io::stderr()))
            .init(),
    }
}

/// Lines that begin with the priority, as systemd's journal reads them; the journal has the time itself.
struct Journald(Format<Compact, ()>);

impl<S, N> FormatEvent<S, N> for Journald
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &tracing::Event<'_>,
    ) -> std::fmt::Result {
        let priority = match *event.metadata().level() {
            tracing::Level::ERROR => 3,
            tracing::Level::WARN => 4,
            tracing::Level::INFO => 6,
            _ => 7,
        };
        write!(writer, "<{priority}>")?;
        self.0.format_event(context, writer, event)
    }
}

/// A log whose lines hold no hidden characters, whatever programs had written into them.
struct PrintableLines<W>(W);

impl<W: Write> Write for PrintableLines<W> {
    /// Takes whole records: the log writes each with one call.
    fn write(&mut self, record: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(record);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        self.0
            .write_all(format!("{}\n", printable(line)).as_bytes())?;
        Ok(record.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_the_log_is_one_line_whatever_is_in_it() {
        let mut log = PrintableLines(Vec::new());
        log.write_all(b"a\n2026 forged\x1b[2J\xff\n").unwrap();
        let text = String::from_utf8(log.0).unwrap();
        assert_eq!(text, "a\\n2026 forged\\u{1b}[2J\u{fffd}\n");
    }
}
