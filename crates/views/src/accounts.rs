//! `mica stats --since` and `mica report`: what was measured, for people who look back.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use mica_command::output::print_json;
use mica_command::refusal::explain;
use mica_command::size::show_bytes;
use mica_command::table::{Paint, Table};
use mica_command::users::user_name;
use mica_command::when::{date_and_time, month_begin};
use mica_control::api::{AccountBy, Point, Subject, Timelines, UsageAccount, UsageReport};
use mica_control::client::{ControlClient, Span};
use mica_wire::host::printable::printable;

use crate::args::{AccountArg, ReportArgs};

/// Rows of `mica stats --since` for one virtual GPU, about.
const ROWS: u64 = 24;
/// Seconds that `mica report` goes back where nothing is said.
const USUAL_SECONDS: u64 = 30 * 86_400;

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

/// Prints what was measured since a time (seconds since the epoch), of one virtual GPU or all.
///
/// # Errors
/// The daemon does not answer, or refuses.
pub fn past(client: &ControlClient, since: f64, vgpu: Option<&str>, json: bool) -> Result<()> {
    let now = now();
    let since = since.max(0.0) as u64;
    check_span(since, None, now)?;
    let step = match json {
        true => None,
        false => Some(step(now - since)),
    };
    let span = Span {
        since_seconds: since,
        until_seconds: None,
        step_seconds: step,
    };
    let mut answer = client.timelines(&span, vgpu).map_err(explain)?;
    if json {
        return print_json(&answer);
    }
    answer
        .timelines
        .retain(|line| line.subject == Subject::Vgpu);
    if answer.timelines.is_empty() {
        let begin = date_and_time(since as f64);
        let of = vgpu.map_or_else(String::new, |name| format!(" of {}", printable(name)));
        outln!("nothing{of} was measured since {begin}");
        return Ok(());
    }
    out!("{}", past_table(&answer).render());
    let points = answer.timelines.iter().flat_map(|line| &line.points);
    if points
        .clone()
        .any(|point| point.share_unreserved_percent > 0.0)
    {
        outln!("~ not reserved");
    }
    for line in refused(&answer) {
        outln!("{}", Paint::stdout().warn(&line));
    }
    Ok(())
}

/// Refuses a span in which nothing can have been measured, with times as people read them.
fn check_span(since: u64, until: Option<u64>, now: u64) -> Result<()> {
    let time = |seconds: u64| date_and_time(seconds as f64);
    if since > now {
        bail!("{} is yet to come: nothing is measured ahead", time(since));
    }
    if let Some(until) = until.filter(|until| *until <= since) {
        let (begin, end) = (time(since), time(until));
        bail!("the time from {begin} until {end} is empty: --until must be later than the begin");
    }
    Ok(())
}

/// A step that gives about [`ROWS`] rows.
fn step(span: u64) -> u32 {
    let steps = [
        10, 30, 60, 300, 600, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400,
    ];
    let enough = |step: &&u64| span / **step <= ROWS;
    let step = steps.iter().find(enough).copied();
    let step = step.unwrap_or_else(|| (span / ROWS).next_multiple_of(86_400));
    u32::try_from(step).unwrap_or(u32::MAX)
}

fn past_table(answer: &Timelines) -> Table {
    let mut table = Table::new(&[
        "TIME", "NAME", "GOT", "SHARE", "WAITS", "MEMORY", "PEAK", "LAUNCHES",
    ])
    .cut(1);
    let lines = answer.timelines.iter();
    let mut all: Vec<(&str, &Point)> = lines
        .flat_map(|line| line.points.iter().map(|point| (line.name.as_str(), point)))
        .collect();
    all.sort_by(|a, b| (a.0, a.1.time_seconds).cmp(&(b.0, b.1.time_seconds)));
    for (name, point) in all {
        let time = date_and_time(point.time_seconds as f64);
        table.row(vec![
            // The year is known.
            time.get(5..16).unwrap_or(&time).to_owned(),
            name.to_owned(),
            format!("{:.1} %", point.share_got_percent),
            format!(
                "{}{:.0} %",
                mark(point.share_unreserved_percent > 0.0),
                point.share_asked_percent
            ),
            format!("{:.0} %", point.waiting_percent),
            show_bytes(point.memory_used_bytes),
            show_bytes(point.memory_peak_bytes),
            point.launches.to_string(),
        ]);
    }
    table
}

/// What stands before a share that nobody reserved, as in `mica top`.
fn mark(is_unreserved: bool) -> &'static str {
    match is_unreserved {
        true => "~",
        false => "",
    }
}

/// A line for each virtual GPU in which allocations were refused.
fn refused(answer: &Timelines) -> Vec<String> {
    let refused = |points: &[Point]| points.iter().map(|point| point.alloc_denied).sum::<u64>();
    let lines = answer.timelines.iter();
    lines
        .filter_map(|line| match refused(&line.points) {
            0 => None,
            1 => Some(format!("{}: 1 allocation was refused", line.name)),
            many => Some(format!("{}: {many} allocations were refused", line.name)),
        })
        .collect()
}

/// Prints accounts.
///
/// # Errors
/// The daemon does not answer, or refuses.
pub fn report(client: &ControlClient, args: &ReportArgs) -> Result<()> {
    let now = now();
    let since = match (args.month, args.since) {
        (true, _) => month_begin(now as f64).unwrap_or(now as f64),
        (false, Some(since)) => since.0,
        (false, None) => now.saturating_sub(USUAL_SECONDS) as f64,
    };
    let by = match args.by {
        AccountArg::User => AccountBy::User,
        AccountArg::Vgpu => AccountBy::Vgpu,
        AccountArg::Container => AccountBy::Container,
    };
    let span = Span {
        since_seconds: since.max(0.0) as u64,
        until_seconds: args.until.map(|until| until.0.max(0.0) as u64),
        step_seconds: None,
    };
    check_span(span.since_seconds, span.until_seconds, now)?;
    let report = client.usage(&span, by).map_err(explain)?;
    if args.json {
        return print_json(&report);
    }
    if args.csv {
        out!("{}", csv(&report, user_name));
        return Ok(());
    }
    let (begin, end) = (report.since_seconds, report.until_seconds);
    outln!(
        "{} to {}",
        date_and_time(begin as f64),
        date_and_time(end as f64)
    );
    if report.accounts.is_empty() {
        outln!("nothing was measured in this time");
        return Ok(());
    }
    out!("{}", report_table(&report, user_name).render());
    let mut accounts = report.accounts.iter();
    if accounts.any(|account| account.share_unreserved_hours > 0.0) {
        outln!("~ with shares that were not reserved");
    }
    // Who divides a bill must know what is missing.
    if let Some(oldest) = report.oldest_seconds.filter(|oldest| *oldest > begin + 120) {
        outln!(
            "measured from {} on; nothing is kept from before",
            date_and_time(oldest as f64)
        );
    }
    Ok(())
}

/// The name of an account as people know it.
fn account_name(account: &UsageAccount, by: AccountBy, user: impl Fn(u32) -> String) -> String {
    match by {
        AccountBy::User => account.key.parse().map_or(account.key.clone(), user),
        AccountBy::Container if account.key.is_empty() => "(none)".to_owned(),
        AccountBy::Container | AccountBy::Vgpu => account.key.clone(),
    }
}

fn title(by: AccountBy) -> &'static str {
    match by {
        AccountBy::User => "USER",
        AccountBy::Vgpu => "VGPU",
        AccountBy::Container => "CONTAINER",
    }
}

fn report_table(report: &UsageReport, user: impl Fn(u32) -> String) -> Table {
    let mut table = Table::new(&[
        title(report.by),
        "GPU HOURS",
        "SHARE HOURS",
        "IDLE",
        "MEMORY GIB H",
        "WAITED",
        "REFUSED",
    ]);
    let all = UsageAccount {
        key: "all".to_owned(),
        ..sum(&report.accounts)
    };
    let mut row = |name: String, account: &UsageAccount| {
        table.row(vec![
            name,
            format!("{:.2}", account.gpu_hours),
            format!(
                "{}{:.2}",
                mark(account.share_unreserved_hours > 0.0),
                account.share_hours
            ),
            format!("{:.0} %", account.idle_percent),
            format!("{:.2}", account.memory_gib_hours),
            format!("{:.2} h", account.waiting_hours),
            account.alloc_denied.to_string(),
        ]);
    };
    for account in &report.accounts {
        row(account_name(account, report.by, &user), account);
    }
    if report.accounts.len() > 1 {
        row("all".to_owned(), &all);
    }
    table
}

fn sum(accounts: &[UsageAccount]) -> UsageAccount {
    let mut all = UsageAccount::default();
    let mut idle_hours = 0.0;
    for account in accounts {
        all.gpu_hours += account.gpu_hours;
        all.share_hours += account.share_hours;
        all.share_unreserved_hours += account.share_unreserved_hours;
        all.memory_gib_hours += account.memory_gib_hours;
        all.waiting_hours += account.waiting_hours;
        all.alloc_denied += account.alloc_denied;
        idle_hours += account.idle_percent / 100.0 * account.share_hours;
    }
    if all.share_hours > 0.0 {
        all.idle_percent = idle_hours / all.share_hours * 100.0;
    }
    all
}

/// One line for each account, all figures, as RFC 4180 has it.
fn csv(report: &UsageReport, user: impl Fn(u32) -> String) -> String {
    let mut text = format!(
        "{},since_seconds,until_seconds,vgpus,measured_hours,gpu_hours,share_hours,share_unreserved_hours,idle_percent,memory_gib_hours,memory_limit_gib_hours,waiting_hours,alloc_denied,launches\n",
        title(report.by).to_lowercase()
    );
    for account in &report.accounts {
        let name = account_name(account, report.by, &user);
        text += &format!(
            "{},{},{},{},{:.6},{:.6},{:.6},{:.6},{:.3},{:.6},{:.6},{:.6},{},{}\n",
            quoted(&name),
            report.since_seconds,
            report.until_seconds,
            account.vgpus,
            account.measured_hours,
            account.gpu_hours,
            account.share_hours,
            account.share_unreserved_hours,
            account.idle_percent,
            account.memory_gib_hours,
            account.memory_limit_gib_hours,
            account.waiting_hours,
            account.alloc_denied,
            account.launches
        );
    }
    text
}

/// A cell of a file of values. A spreadsheet takes what begins with a sign for a formula: such text gets an apostrophe.
fn quoted(text: &str) -> String {
    let text = printable(text);
    let is_formula = text.starts_with(['=', '+', '-', '@']);
    match (is_formula, text.contains([',', '"'])) {
        (false, false) => text.into_owned(),
        (true, _) => format!("\"'{}\"", text.replace('"', "\"\"")),
        (false, true) => format!("\"{}\"", text.replace('"', "\"\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report_of(by: AccountBy) -> UsageReport {
        let account = |key: &str, gpu_hours, idle_percent| UsageAccount {
            key: key.into(),
            vgpus: 1,
            gpu_hours,
            share_hours: 10.0,
            share_unreserved_hours: if key.is_empty() { 10.0 } else { 0.0 },
            idle_percent,
            memory_gib_hours: 40.0,
            alloc_denied: 3,
            ..UsageAccount::default()
        };
        UsageReport {
            by,
            accounts: vec![account("7", 6.0, 40.0), account("", 1.0, 90.0)],
            ..UsageReport::default()
        }
    }

    #[test]
    fn a_report_names_users_and_adds_up() {
        let table = report_table(&report_of(AccountBy::User), |uid| format!("user-{uid}"));
        let text = table.render();
        assert!(text.contains("user-7  6.00       10.00 "), "{text}");
        assert!(text.contains("~10.00") && text.contains("~20.00"), "{text}");
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("all") && last.contains("7.00"), "{text}");
        assert!(last.contains("65 %") && last.ends_with('6'), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }

    #[test]
    fn values_with_commas_and_formulas_stay_in_their_cells() {
        let text = csv(&report_of(AccountBy::Container), |_| String::new());
        assert!(text.starts_with("container,since_seconds"), "{text}");
        assert!(
            text.lines().nth(2).unwrap().starts_with("(none),0,0,1,"),
            "{text}"
        );
        let columns = text.lines().map(|line| line.split(',').count());
        assert!(columns.into_iter().all(|n| n == 14), "{text}");
        assert_eq!(quoted("a,b"), "\"a,b\"");
        assert_eq!(quoted("=1+1"), "\"'=1+1\"");
    }

    #[test]
    fn a_span_that_can_hold_nothing_is_refused_in_readable_times() {
        let now = 1_790_000_000;
        let refusal = |since, until| check_span(since, until, now).unwrap_err().to_string();
        assert!(check_span(now, None, now).is_ok());
        assert!(check_span(now - 60, Some(now), now).is_ok());
        assert!(check_span(now - 60, Some(now + 60), now).is_ok());
        let ahead = refusal(now + 86_400, None);
        assert!(
            ahead.contains("2026-09-2") && ahead.contains("yet to come"),
            "{ahead}"
        );
        for until in [now - 60, now - 120] {
            let empty = refusal(now - 60, Some(until));
            assert!(
                empty.contains("2026-09-2") && empty.contains("--until"),
                "{empty}"
            );
        }
    }

    #[test]
    fn the_rows_of_a_span_fit_a_screen() {
        for span in [60, 7200, 86_400, 31 * 86_400] {
            let rows = span / u64::from(step(span));
            assert!((1..=ROWS).contains(&rows), "{span}: {rows}");
        }
    }
}
