//! Records as few bytes: a record holds only what differs from the last record of its series.
//!
//! ```text
//!   mask: which values differ │ series, unless it is the next one │ second mask, if needed │ each difference as a varint
//! ```
//!
//! A noisy record of a busy virtual GPU takes 5 to 8 bytes, one that repeats the last takes 1.

use std::collections::HashMap;

use mica_control::api::Point;

use super::record::Record;

/// Longest bytes of one packed record: two masks and thirteen numbers of five bytes.
pub(crate) const MOST_BYTES: usize = 67;

/// Memory is counted in pages of this size, which reaches 256 TiB.
const PAGE_BYTES: u64 = 64 << 10;
/// Shares are kept in hundredths of a percent: bills are made of them.
const HUNDREDTHS: f32 = 100.0;
/// Tenths of a second, as the monitor's seconds are not whole ones, and of a percent of waiting.
const TENTHS: f32 = 10.0;
/// Longest time that a record can be about, in tenths.
const MOST_MEASURED: u32 = 65_535;
/// The series is the one after that of the record before.
const IS_NEXT: u8 = 1 << 7;
/// A second mask follows.
const HAS_MORE: u8 = 1 << 6;
/// Values of the first mask; the others are in the second one, whose bits of later values are clear in older files.
const OFTEN: usize = 6;
const VALUES: usize = 12;
const TIME: usize = 0;
const MEASURED: usize = 1;

/// The values of a record, those that change often first.
type Values = [u32; VALUES];

/// What was packed or unpacked so far. Both sides begin with an empty one.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    last: HashMap<u32, Values>,
    /// Series and time of the record before, within one chunk.
    series: u32,
    time: u32,
}

impl Memory {
    /// A chunk begins. The values of the series are still known.
    pub(crate) fn begin_chunk(&mut self) {
        (self.series, self.time) = (0, 0);
    }

    /// The values that the next record of a series is compared with.
    fn expected(&self, series: u32) -> Values {
        match self.last.get(&series) {
            Some(last) => {
                let mut expected = *last;
                let seconds = (last[MEASURED] as f32 / TENTHS).round() as u32;
                expected[TIME] = last[TIME].wrapping_add(seconds);
                expected
            }
            None => {
                let mut expected = Values::default();
                expected[TIME] = self.time;
                expected
            }
        }
    }

    fn remember(&mut self, series: u32, values: Values) {
        self.last.insert(series, values);
        (self.series, self.time) = (series, values[TIME]);
    }

    /// Appends a record to bytes.
    pub(crate) fn pack(&mut self, record: &Record, out: &mut Vec<u8>) {
        let values = values_of(&record.point);
        let expected = self.expected(record.series);
        let differs = |index: &usize| values[*index] != expected[*index];
        let bit = |index: usize| 1_u8 << index;
        let first = (0..OFTEN).filter(differs).fold(0, |mask, n| mask | bit(n));
        let second = (OFTEN..VALUES).filter(differs);
        let second = second.fold(0, |mask, n| mask | bit(n - OFTEN));
        let is_next = record.series == self.series.wrapping_add(1);
        let flags = (u8::from(is_next) * IS_NEXT) | (u8::from(second != 0) * HAS_MORE);
        out.push(first | flags);
        if !is_next {
            put(out, record.series.wrapping_sub(self.series));
        }
        if second != 0 {
            out.push(second);
        }
        for index in (0..VALUES).filter(differs) {
            put(out, values[index].wrapping_sub(expected[index]));
        }
        self.remember(record.series, values);
    }

    /// Takes a record off the front of bytes; `None` where they hold none.
    pub(crate) fn unpack(&mut self, bytes: &mut &[u8]) -> Option<Record> {
        let first = take_byte(bytes)?;
        let step = match first & IS_NEXT != 0 {
            true => 1,
            false => take(bytes)?,
        };
        let series = self.series.wrapping_add(step);
        let second = match first & HAS_MORE != 0 {
            true => take_byte(bytes)?,
            false => 0,
        };
        let mut values = self.expected(series);
        for (index, value) in values.iter_mut().enumerate() {
            let (mask, bit) = match index < OFTEN {
                true => (first, index),
                false => (second, index - OFTEN),
            };
            if mask & (1 << bit) != 0 {
                *value = value.wrapping_add(take(bytes)?);
            }
        }
        self.remember(series, values);
        let point = point_of(&values);
        Some(Record { series, point })
    }
}

/// What does not fit is saturated.
fn values_of(point: &Point) -> Values {
    let pages = |bytes: u64| u32::try_from(bytes.div_ceil(PAGE_BYTES)).unwrap_or(u32::MAX);
    let hundredths = |percent: f32| (percent * HUNDREDTHS).round() as u32;
    [
        u32::try_from(point.time_seconds).unwrap_or(u32::MAX),
        ((point.measured_seconds * TENTHS).round() as u32).min(MOST_MEASURED),
        hundredths(point.share_got_percent),
        (point.waiting_percent * TENTHS).round() as u32,
        short_of(point.launches),
        pages(point.memory_used_bytes),
        pages(point.memory_peak_bytes),
        hundredths(point.share_asked_percent),
        pages(point.memory_limit_bytes),
        point.processes,
        u32::try_from(point.alloc_denied).unwrap_or(u32::MAX),
        hundredths(point.share_unreserved_percent),
    ]
}

fn point_of(values: &Values) -> Point {
    let [
        time,
        measured,
        got,
        waiting,
        launches,
        used,
        peak,
        asked,
        limit,
        processes,
        denied,
        unreserved,
    ] = *values;
    let percent = |hundredths: u32| hundredths as f32 / HUNDREDTHS;
    let bytes = |pages: u32| u64::from(pages) * PAGE_BYTES;
    Point {
        time_seconds: time.into(),
        measured_seconds: measured.min(MOST_MEASURED) as f32 / TENTHS,
        share_asked_percent: percent(asked),
        share_unreserved_percent: percent(unreserved),
        share_got_percent: percent(got),
        waiting_percent: waiting as f32 / TENTHS,
        memory_used_bytes: bytes(used),
        memory_peak_bytes: bytes(peak),
        memory_limit_bytes: bytes(limit),
        processes,
        alloc_denied: denied.into(),
        launches: long_of(launches),
    }
}

/// Bits of a count that are kept: counts below 4096 are exact, larger ones within 1/4096.
const DIGITS: u32 = 12;
const HALF: u32 = 1 << (DIGITS - 1);

/// A count as a number that grows with it and is small: neighbours differ by little.
fn short_of(count: u64) -> u32 {
    let exponent = (u64::BITS - count.leading_zeros()).saturating_sub(DIGITS);
    let Some(half) = (1_u64 << exponent).checked_shr(1).filter(|half| *half > 0) else {
        return count as u32;
    };
    let digits = (count.saturating_add(half) >> exponent) as u32;
    exponent * HALF + digits
}

fn long_of(short: u32) -> u64 {
    let exponent = (short / HALF).saturating_sub(1);
    let digits = u64::from(short - exponent * HALF);
    match exponent <= u64::BITS - DIGITS {
        true => digits.saturating_mul(1 << exponent),
        false => u64::MAX,
    }
}

/// Appends a difference, seven bits a byte; small ones of either sign take one byte.
fn put(out: &mut Vec<u8>, difference: u32) {
    let signed = difference as i32;
    let mut rest = ((signed << 1) ^ (signed >> 31)) as u32;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u32> {
    let mut value = 0_u32;
    for shift in (0..35).step_by(7) {
        let byte = take_byte(bytes)?;
        value |= u32::from(byte & 0x7f).wrapping_shl(shift);
        if byte < 0x80 {
            return Some((value >> 1) ^ (value & 1).wrapping_neg());
        }
    }
    None
}

fn take_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point() -> Point {
        Point {
            time_seconds: 1_790_000_000,
            measured_seconds: 10.1,
            share_asked_percent: 33.33,
            share_unreserved_percent: 11.11,
            share_got_percent: 12.34,
            waiting_percent: 2500.5,
            memory_used_bytes: 3 << 30,
            memory_peak_bytes: 141 << 30,
            memory_limit_bytes: 141 << 30,
            processes: 7,
            alloc_denied: 3,
            launches: 4095,
        }
    }

    fn there_and_back(records: &[Record]) -> (usize, Vec<Record>) {
        let mut bytes = Vec::new();
        let mut memory = Memory::default();
        for record in records {
            let before = bytes.len();
            memory.pack(record, &mut bytes);
            assert!(bytes.len() - before <= MOST_BYTES);
        }
        let (mut rest, mut memory) = (&bytes[..], Memory::default());
        let back = std::iter::from_fn(|| memory.unpack(&mut rest)).collect();
        (bytes.len(), back)
    }

    #[test]
    fn records_come_back_within_their_resolution() {
        let later = Point {
            time_seconds: 1_790_000_010,
            share_got_percent: 99.99,
            memory_used_bytes: 0,
            ..point()
        };
        let record = |series, point| Record { series, point };
        let records = [
            record(9, point()),
            record(u32::MAX, Point::default()),
            record(9, later),
            record(0, later),
        ];
        assert_eq!(there_and_back(&records).1, records);
        // What does not fit stays as large as can be kept.
        let large = Point {
            time_seconds: u64::MAX,
            waiting_percent: f32::INFINITY,
            alloc_denied: u64::MAX,
            ..point()
        };
        let kept = there_and_back(&[record(9, large)]).1[0].point;
        assert_eq!(
            (kept.time_seconds, kept.alloc_denied),
            (u32::MAX.into(), u32::MAX.into())
        );
    }

    #[test]
    fn a_record_that_repeats_the_last_is_one_byte() {
        let mut records = Vec::new();
        for step in 0..100 {
            for series in 1..=10 {
                let point = Point {
                    time_seconds: 1_790_000_000 + step * 10,
                    measured_seconds: 10.0,
                    ..point()
                };
                records.push(Record { series, point });
            }
        }
        let (bytes, back) = there_and_back(&records);
        assert_eq!(back, records);
        // The first of each step names its series.
        assert!(bytes < 1000 + 100 + 10 * 40, "{bytes}");
    }

    #[test]
    fn counts_are_exact_when_small_and_close_when_large() {
        let mut before = 0;
        for count in (0..5000).chain((12..64).flat_map(|bits| {
            let power = 1_u64 << bits;
            [power - 1, power, power + power / 3]
        })) {
            let short = short_of(count);
            assert!(count < 5000 || short >= before, "{count}");
            before = short;
            let long = long_of(short);
            let error = long.abs_diff(count);
            assert!(
                error <= count / 4096 && (count >= 4096 || error == 0),
                "{count}: {long}"
            );
        }
        for short in [u32::MAX, 60 * HALF, 53 * HALF + HALF] {
            assert_eq!(long_of(short), u64::MAX);
        }
    }

    #[test]
    fn bytes_that_end_early_hold_no_record() {
        let mut bytes = Vec::new();
        let record = Record {
            series: 300,
            point: point(),
        };
        Memory::default().pack(&record, &mut bytes);
        for length in 0..bytes.len() {
            assert_eq!(Memory::default().unpack(&mut &bytes[..length]), None);
        }
        assert_eq!(Memory::default().unpack(&mut &[0xff; 80][..]), None);
    }
}
