//! Times as people read and write them, in this machine's time zone.

use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

/// A time that events are wanted from, in seconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Since(pub f64);

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_secs_f64();
        since(text.trim(), now).map(Self).ok_or_else(|| {
            format!(
                "{text:?} is not a time: write 90s, 10m, 2h or 3d ago, 14:30, 2026-01-31 or \"2026-01-31 14:30\""
            )
        })
    }
}

fn since(text: &str, now: f64) -> Option<f64> {
    if let Some(ago) = seconds_ago(text) {
        return Some(now - ago);
    }
    let (date, time) = match text.split_once(['T', ' ']) {
        Some((date, time)) => (Some(date), Some(time)),
        None if text.contains(':') => (None, Some(text)),
        None => (Some(text), None),
    };
    let mut parts = local_parts(now as i64)?;
    (parts.tm_hour, parts.tm_min, parts.tm_sec) = match time {
        Some(time) => clock(time)?,
        None => (0, 0, 0),
    };
    if let Some(date) = date {
        let [year, month, day] = numbers(date, '-')?;
        if !(1..=days_of(year, month)?).contains(&day) {
            return None;
        }
        (parts.tm_year, parts.tm_mon, parts.tm_mday) = (year - 1900, month - 1, day);
    }
    // Whether it is summer time there and then is found out.
    parts.tm_isdst = -1;
    // SAFETY: reads and normalizes one `tm` of this frame.
    match unsafe { libc::mktime(&raw mut parts) } {
        -1 => None,
        seconds => Some(seconds as f64),
    }
}

/// Days of a month, which `mktime` does not check: it takes the 30th of February for one of March.
fn days_of(year: i32, month: i32) -> Option<i32> {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => Some(28 + i32::from(is_leap)),
        4 | 6 | 9 | 11 => Some(30),
        1..=12 => Some(31),
        _ => None,
    }
}

/// `10m` in seconds.
fn seconds_ago(text: &str) -> Option<f64> {
    let (at, _) = text.char_indices().next_back()?;
    let (number, unit) = text.split_at(at);
    let unit = match unit {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    (0.0..1e9).contains(&number).then_some(number * unit)
}

/// `14:30` or `14:30:59`.
fn clock(text: &str) -> Option<(i32, i32, i32)> {
    let [hour, minute, second] =
        numbers(text, ':').or_else(|| numbers::<2>(text, ':').map(|[h, m]| [h, m, 0]))?;
    let is_time = (0..24).contains(&hour) && (0..60).contains(&minute) && (0..61).contains(&second);
    is_time.then_some((hour, minute, second))
}

fn numbers<const COUNT: usize>(text: &str, separator: char) -> Option<[i32; COUNT]> {
    let numbers: Option<Vec<i32>> = text.split(separator).map(|n| n.parse().ok()).collect();
    numbers?.try_into().ok()
}

/// The begin of the month that a time is in.
pub fn month_begin(seconds: f64) -> Option<f64> {
    let mut parts = local_parts(seconds as i64)?;
    (parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec) = (1, 0, 0, 0);
    parts.tm_isdst = -1;
    // SAFETY: reads and normalizes one `tm` of this frame.
    match unsafe { libc::mktime(&raw mut parts) } {
        -1 => None,
        seconds => Some(seconds as f64),
    }
}

/// A time as `2026-01-31 14:30:59`.
pub fn date_and_time(seconds: f64) -> String {
    let Some(parts) = local_parts(seconds as i64) else {
        return format!("{seconds:.0}");
    };
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}",
        parts.tm_year + 1900,
        parts.tm_mon + 1,
        parts.tm_mday,
        parts.tm_hour,
        parts.tm_min,
        parts.tm_sec
    )
}

fn local_parts(seconds: i64) -> Option<libc::tm> {
    // SAFETY: `tm` is numbers and a pointer that may be null.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: reads a number and writes one `tm`, both of this frame.
    let done = unsafe { libc::localtime_r(&seconds, &raw mut parts) };
    (!done.is_null()).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_understood_as_people_write_them() {
        // Whatever the time zone, what is printed is understood.
        let now = 1_790_000_000.0;
        let shown = date_and_time(now);
        assert_eq!(since(&shown, 0.0), Some(now));
        assert_eq!(since(&shown.replace(' ', "T"), 0.0), Some(now));
        let (date, time) = shown.split_once(' ').unwrap();
        assert_eq!(since(time, now), Some(now), "today");
        let midnight = since(date, now).unwrap();
        assert!((0.0..90_000.0).contains(&(now - midnight)), "{midnight}");
        assert_eq!(
            since(&time[..5], now),
            since(&format!("{}:00", &time[..5]), now)
        );
        assert_eq!(since("10m", now), Some(now - 600.0));
        assert_eq!(since("1.5h", now), Some(now - 5400.0));
        assert_eq!(since("2d", now), Some(now - 172_800.0));
        assert!(since("2024-02-29", now).is_some(), "a leap year");
    }

    #[test]
    fn a_month_begins_on_its_first_day() {
        let shown = date_and_time(month_begin(1_790_000_000.0).unwrap());
        assert_eq!(shown, "2026-09-01 00:00:00");
    }

    #[test]
    fn other_words_are_no_time() {
        for text in [
            "",
            "yesterday",
            "10",
            "m",
            "-5m",
            "25:00",
            "2026-13-01",
            "2026-00-10",
            "2026-02-30",
            "2026-04-31 10:00",
            "2025-02-29",
            "2026-01",
            "1é",
        ] {
            assert!(text.parse::<Since>().is_err(), "{text}");
        }
    }
}
