//! `mica events`: what happened, and what happens.

use anyhow::{Result, bail};
use mica_control::api::{Event, Severity};
use mica_control::client::ControlError;
use mica_wire::host::printable::{printable, printable_json};

use crate::args::EventsArgs;
use crate::control::connect;
use mica_command::output::{hanging, terminal_columns};
use mica_command::refusal::explain;
use mica_command::table::{Paint, cut};
use mica_command::when::date_and_time;

/// Columns of a virtual GPU's name, at least.
const NAME_COLUMNS: usize = 10;
/// Columns of a virtual GPU's name on a terminal, at most: the message follows it.
const MOST_NAME_COLUMNS: usize = 20;

pub(crate) fn events(args: &EventsArgs) -> Result<()> {
    let client = connect()?;
    let name = args.name.as_deref();
    let past = client.past_events_of(name).map_err(explain)?;
    let last = past.last().map(|event| event.sequence);
    let since = args.since.map_or(0.0, |since| since.0);
    let recent: Vec<&Event> = (past.iter())
        .filter(|event| event.time_seconds >= since)
        .collect();
    let left_out = recent.len().saturating_sub(args.last.unwrap_or(usize::MAX));
    for event in &recent[left_out..] {
        print_event(event, args.json)?;
    }
    if recent.is_empty() && !args.json && !args.follow {
        let of = name.map_or_else(String::new, |name| format!(" of {}", printable(name)));
        // Not among the events: scripts count lines.
        errln!("mica: no events{of}");
    }
    if args.follow {
        // Nothing that came between is missed; without a past, all that is remembered is new.
        let after = last.or(Some(0));
        for event in client.events_of(after, name).map_err(explain)? {
            match event {
                Ok(event) => print_event(&event, args.json)?,
                // A daemon that ends may cut its last answer.
                Err(ControlError::Broken(_)) => break,
                Err(error) => return Err(explain(error)),
            }
        }
        bail!("the daemon has ended, and with it what is followed");
    }
    Ok(())
}

fn print_event(event: &Event, json: bool) -> Result<()> {
    if json {
        outln!("{}", printable_json(&serde_json::to_string(event)?));
        return Ok(());
    }
    let paint = Paint::stdout();
    let time = date_and_time(event.time_seconds);
    let columns = terminal_columns();
    let vgpu = printable(event.vgpu.as_deref().unwrap_or("-"));
    let vgpu = match columns {
        Some(_) => cut(&vgpu, MOST_NAME_COLUMNS),
        None => vgpu,
    };
    // Without colours the severity must be readable, too.
    let message = match event.severity {
        Severity::Info => event.message.clone(),
        Severity::Warning => format!("warning: {}", event.message),
        Severity::Error => format!("error: {}", event.message),
    };
    let indent = time.len() + 2 + vgpu.chars().count().max(NAME_COLUMNS) + 2;
    let message = hanging(&printable(&message), indent, columns);
    let message = match event.severity {
        Severity::Info => message,
        Severity::Warning => paint.warn(&message),
        Severity::Error => paint.bad(&message),
    };
    outln!("{}  {vgpu:<NAME_COLUMNS$}  {message}", paint.dim(&time));
    Ok(())
}
