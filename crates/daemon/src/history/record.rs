//! What one record of the history holds, and who it is about, as bytes.

use mica_control::api::{Point, Subject};

/// Bytes of a [`Record`].
pub(crate) const RECORD_BYTES: usize = 40;
/// Bytes of an identity.
pub(crate) const IDENTITY_BYTES: usize = 184;

/// Memory is counted in pages of this size, which reaches 256 TiB.
const PAGE_BYTES: u64 = 64 << 10;
/// Percentages are kept in hundredths, up to 655 %.
const HUNDREDTHS: f32 = 100.0;

/// A series number and what was measured in a span of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Record {
    pub(crate) series: u32,
    pub(crate) point: Point,
}

/// Who a series is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) subject: Subject,
    pub(crate) name: String,
    pub(crate) gpu: u32,
    pub(crate) gpu_uuid: String,
    pub(crate) owner_uid: u32,
    /// Empty where there is none.
    pub(crate) container: String,
}

impl Record {
    /// The bytes, with what does not fit saturated.
    pub(crate) fn encode(&self) -> [u8; RECORD_BYTES] {
        let point = &self.point;
        let hundredths = |percent: f32| (percent * HUNDREDTHS).round() as u16;
        let pages = |bytes: u64| u32::try_from(bytes.div_ceil(PAGE_BYTES)).unwrap_or(u32::MAX);
        let mut out = Writer::<RECORD_BYTES>::default();
        out.u32(u32::try_from(point.time_seconds).unwrap_or(u32::MAX));
        out.u32(self.series);
        // Tenths: the monitor's seconds are not whole ones.
        out.u16((point.measured_seconds * 10.0).round() as u16);
        out.u16(hundredths(point.share_asked_percent));
        out.u16(hundredths(point.share_got_percent));
        out.u16(hundredths(point.waiting_percent));
        out.u16(u16::try_from(point.processes).unwrap_or(u16::MAX));
        out.u16(u16::try_from(point.alloc_denied).unwrap_or(u16::MAX));
        out.u32(u32::try_from(point.launches).unwrap_or(u32::MAX));
        out.u32(pages(point.memory_used_bytes));
        out.u32(pages(point.memory_peak_bytes));
        out.u32(pages(point.memory_limit_bytes));
        out.bytes
    }

    /// The same from bytes; every value is a record.
    pub(crate) fn decode(bytes: &[u8; RECORD_BYTES]) -> Self {
        let mut from = Reader(bytes);
        let time_seconds = u64::from(from.u32());
        let series = from.u32();
        let measured_seconds = f32::from(from.u16()) / 10.0;
        let mut percent = || f32::from(from.u16()) / HUNDREDTHS;
        let (asked, got, waiting) = (percent(), percent(), percent());
        let (processes, alloc_denied) = (u32::from(from.u16()), u64::from(from.u16()));
        let launches = u64::from(from.u32());
        let mut memory = || u64::from(from.u32()) * PAGE_BYTES;
        let (used, peak, limit) = (memory(), memory(), memory());
        Self {
            series,
            point: Point {
                time_seconds,
                measured_seconds,
                share_asked_percent: asked,
                share_got_percent: got,
                waiting_percent: waiting,
                memory_used_bytes: used,
                memory_peak_bytes: peak,
                memory_limit_bytes: limit,
                processes,
                alloc_denied,
                launches,
            },
        }
    }
}

/// Longest texts of an identity.
const NAME: usize = 80;
const CONTAINER: usize = 40;
const UUID: usize = 48;

impl Identity {
    /// The same with texts that fit a record; names of virtual GPUs always do.
    pub(crate) fn fitted(mut self) -> Self {
        for (text, most) in [
            (&mut self.name, NAME),
            (&mut self.container, CONTAINER),
            (&mut self.gpu_uuid, UUID),
        ] {
            while text.len() > most {
                text.pop();
            }
        }
        self
    }

    /// The bytes.
    pub(crate) fn encode(&self, series: u32) -> [u8; IDENTITY_BYTES] {
        let mut out = Writer::<IDENTITY_BYTES>::default();
        out.u32(series);
        out.u32(self.gpu);
        out.u32(self.owner_uid);
        let subject = match self.subject {
            Subject::Vgpu => 0,
            Subject::Gpu => 1,
        };
        let lengths = [&self.name, &self.container, &self.gpu_uuid].map(|text| text.len() as u8);
        out.all(&[subject, lengths[0], lengths[1], lengths[2]]);
        out.text(&self.name, NAME);
        out.text(&self.container, CONTAINER);
        out.text(&self.gpu_uuid, UUID);
        out.bytes
    }

    /// The same from bytes; `None` for what is no identity.
    pub(crate) fn decode(bytes: &[u8; IDENTITY_BYTES]) -> Option<(u32, Self)> {
        let mut from = Reader(bytes);
        let (series, gpu, owner_uid) = (from.u32(), from.u32(), from.u32());
        let [subject, name, container, uuid] = from.take();
        let subject = match subject {
            0 => Subject::Vgpu,
            1 => Subject::Gpu,
            _ => return None,
        };
        let name = from.text::<NAME>(name)?;
        let container = from.text::<CONTAINER>(container)?;
        let gpu_uuid = from.text::<UUID>(uuid)?;
        let identity = Self {
            subject,
            name,
            gpu,
            gpu_uuid,
            owner_uid,
            container,
        };
        Some((series, identity))
    }
}

struct Writer<const N: usize> {
    bytes: [u8; N],
    used: usize,
}

impl<const N: usize> Default for Writer<N> {
    fn default() -> Self {
        Self {
            bytes: [0; N],
            used: 0,
        }
    }
}

impl<const N: usize> Writer<N> {
    fn all(&mut self, bytes: &[u8]) {
        self.bytes[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
    }

    fn u16(&mut self, value: u16) {
        self.all(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.all(&value.to_le_bytes());
    }

    fn text(&mut self, text: &str, room: usize) {
        self.all(text.as_bytes());
        self.used += room - text.len();
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => [0; N],
        }
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn text<const ROOM: usize>(&mut self, length: u8) -> Option<String> {
        let bytes: [u8; ROOM] = self.take();
        let text = std::str::from_utf8(bytes.get(..length.into())?).ok()?;
        Some(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_within_its_resolution() {
        let point = Point {
            time_seconds: 1_790_000_000,
            measured_seconds: 10.1,
            share_asked_percent: 33.33,
            share_got_percent: 12.34,
            waiting_percent: 250.5,
            memory_used_bytes: 3 << 30,
            memory_peak_bytes: 141 << 30,
            memory_limit_bytes: 141 << 30,
            processes: 7,
            alloc_denied: 3,
            launches: 4_000_000_000,
        };
        let record = Record { series: 9, point };
        assert_eq!(Record::decode(&record.encode()), record);
        // What does not fit stays as large as can be kept.
        let point = Point {
            waiting_percent: 1e9,
            alloc_denied: u64::MAX,
            ..point
        };
        let kept = Record::decode(&Record { series: 9, point }.encode()).point;
        assert_eq!((kept.waiting_percent, kept.alloc_denied), (655.35, 65_535));
    }

    #[test]
    fn an_identity_comes_back_and_other_bytes_are_none() {
        let identity = Identity {
            subject: Subject::Vgpu,
            name: "n".repeat(75),
            gpu: 3,
            gpu_uuid: "GPU-0f1e2d3c-0000-1111-2222-333344445555".into(),
            owner_uid: u32::MAX,
            container: "ü".repeat(40),
        };
        let identity = identity.fitted();
        assert_eq!(identity.container, "ü".repeat(20));
        let bytes = identity.encode(5);
        assert_eq!(Identity::decode(&bytes), Some((5, identity)));
        for (at, value) in [(12, 2), (13, 81), (16, 0xff)] {
            let mut wrong = bytes;
            wrong[at] = value;
            assert_eq!(Identity::decode(&wrong), None, "byte {at}");
        }
    }
}
