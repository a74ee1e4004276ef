//! Arithmetic of measured spans: joining two, cutting one.

use mica_control::api::Point;

/// One span made of two; averages count by the seconds measured.
pub(crate) fn joined(a: &Point, b: &Point) -> Point {
    let (first, last) = match a.time_seconds <= b.time_seconds {
        true => (a, b),
        false => (b, a),
    };
    let seconds = a.measured_seconds + b.measured_seconds;
    let part = match seconds > 0.0 {
        true => a.measured_seconds / seconds,
        false => 0.5,
    };
    let average = |a: f32, b: f32| a * part + b * (1.0 - part);
    let bytes = |a: u64, b: u64| {
        (a as f64 * f64::from(part) + b as f64 * f64::from(1.0 - part)).round() as u64
    };
    Point {
        time_seconds: first.time_seconds,
        measured_seconds: seconds,
        share_asked_percent: average(a.share_asked_percent, b.share_asked_percent),
        share_unreserved_percent: average(a.share_unreserved_percent, b.share_unreserved_percent),
        share_got_percent: average(a.share_got_percent, b.share_got_percent),
        waiting_percent: average(a.waiting_percent, b.waiting_percent),
        memory_used_bytes: bytes(a.memory_used_bytes, b.memory_used_bytes),
        memory_peak_bytes: a.memory_peak_bytes.max(b.memory_peak_bytes),
        memory_limit_bytes: last.memory_limit_bytes,
        processes: a.processes.max(b.processes),
        alloc_denied: a.alloc_denied.saturating_add(b.alloc_denied),
        launches: a.launches.saturating_add(b.launches),
    }
}

/// The part of a span within `begin..end`. What was counted belongs to the part with the span's begin.
pub(crate) fn clipped(point: &Point, begin: u64, end: u64) -> Option<Point> {
    let from = point.time_seconds.max(begin);
    let until = end_of(point).min(end as f64);
    let seconds = until - from as f64;
    if seconds <= 0.0 {
        return None;
    }
    let has_begin = from == point.time_seconds;
    let counted = |count: u64| if has_begin { count } else { 0 };
    Some(Point {
        time_seconds: from,
        measured_seconds: seconds as f32,
        alloc_denied: counted(point.alloc_denied),
        launches: counted(point.launches),
        ..*point
    })
}

/// When a span ends.
pub(crate) fn end_of(point: &Point) -> f64 {
    point.time_seconds as f64 + f64::from(point.measured_seconds)
}

/// Whether nothing happened: spans like this follow each other for hours.
pub(crate) fn is_idle(point: &Point) -> bool {
    point.share_got_percent == 0.0
        && point.waiting_percent == 0.0
        && point.memory_peak_bytes == 0
        && (point.processes, point.alloc_denied, point.launches) == (0, 0, 0)
}

/// The same with as many digits as were measured.
pub(crate) fn rounded(mut point: Point) -> Point {
    for (value, steps) in [
        (&mut point.measured_seconds, 10.0),
        (&mut point.share_asked_percent, 100.0),
        (&mut point.share_unreserved_percent, 100.0),
        (&mut point.share_got_percent, 100.0),
        (&mut point.waiting_percent, 100.0),
    ] {
        *value = (*value * steps).round() / steps;
    }
    point
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(time_seconds: u64, measured_seconds: f32, got: f32) -> Point {
        Point {
            time_seconds,
            measured_seconds,
            share_got_percent: got,
            memory_used_bytes: got as u64 * 1000,
            memory_peak_bytes: got as u64 * 2000,
            launches: 5,
            ..Point::default()
        }
    }

    #[test]
    fn joined_spans_keep_their_sums() {
        let sum = joined(&point(100, 1.0, 100.0), &point(101, 3.0, 20.0));
        assert_eq!(sum.time_seconds, 100);
        assert!((sum.gpu_seconds() - 1.6).abs() < 1e-6);
        assert_eq!(sum.memory_used_bytes, 40_000);
        assert_eq!(sum.memory_peak_bytes, 200_000);
        assert_eq!(sum.launches, 10);
    }

    #[test]
    fn a_span_cut_in_two_is_the_whole_and_counts_once() {
        let whole = point(100, 60.0, 50.0);
        let left = clipped(&whole, 0, 130).unwrap();
        let right = clipped(&whole, 130, 1000).unwrap();
        assert_eq!(
            (left.measured_seconds, right.measured_seconds),
            (30.0, 30.0)
        );
        assert_eq!((left.launches, right.launches), (5, 0));
        assert!((left.gpu_seconds() + right.gpu_seconds() - whole.gpu_seconds()).abs() < 1e-6);
        assert_eq!(clipped(&whole, 160, 1000), None);
        assert_eq!(clipped(&whole, 0, 100), None);
    }
}
