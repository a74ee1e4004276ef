//! What one record of the history holds, and who it is about. Identities as bytes; [`super::pack`] packs records.

use mica_control::api::{Point, Subject};

/// Bytes of an identity.
pub(crate) const IDENTITY_BYTES: usize = 184;

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
