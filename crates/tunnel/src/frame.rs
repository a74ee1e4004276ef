//! Frames: a header of 32 bytes and data.
//!
//! ```text
//!   0 u32 bytes of data   4 u8 kind   5 u8 flags   6 u16 slot   8 u16 call   10 u16 zero   12 u32 code   16 u64 a   24 u64 b
//! ```
//! Each kind says below what its fields are. Numbers are little-endian; a field that a kind does not use is zero.

use std::sync::Arc;

use crate::compress::Compressor;
use crate::pieces::{Hash, PIECE_BYTES};
use crate::{Carrier, TunnelError};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 32;
/// Most bytes of data in one frame: a record and a staging chunk fit.
pub const MOST_DATA_BYTES: usize = 512 << 10;
/// Bytes that are asked for at once.
const READ_BYTES: usize = 256 << 10;

/// Data of this frame is a block of LZ4; its size before is in the header.
pub(crate) const LZ4: u8 = 1;
/// The answer goes on in the next frame of its slot.
pub(crate) const MORE: u8 = 2;
/// Host memory that is written at once, before what waits in line: a host function has changed it.
pub(crate) const AT_ONCE: u8 = 4;
/// The data ends with the hash of the piece that its bytes are.
pub(crate) const HASHED: u8 = 8;
/// The data is the hash of a piece that the far end has, and not the bytes.
pub(crate) const KNOWN: u8 = 16;
/// All flags.
const FLAGS: u8 = LZ4 | MORE | AT_ONCE | HASHED | KNOWN;
/// The slot of what is not answered.
pub(crate) const NO_SLOT: u16 = u16::MAX;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// What a frame is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $name = $number,)*
        }
        impl Kind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$name),*];
            fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// Near: a record; `call`, `slot`, data. It ends at position `a` of the program's ring; 0 if more of it follows.
    Record = 1,
    /// Near: a record that reads a staging chunk; `code` bytes of record, then the chunk's, `b` before compression;
    /// `a` as in `Record`.
    Staged = 2,
    /// Near: a `Copy` into a staging chunk; `a` names it in `ReadDone`; `b` as `a` in `Record`.
    Read = 3,
    /// Near: host memory `a` of `b` bytes, which a record will register.
    HostNew = 4,
    /// Near: bytes of host memory `a` from offset `b` on; of memory that is kept equal, what has changed of the page there.
    HostData = 5,
    /// Near: host memory `a` is kept equal from now on.
    HostMap = 6,
    /// Near: host memory `a` is not used any more.
    HostGone = 7,
    /// Near: blob `a` has `b` bytes with the hash that is the data.
    BlobRef = 8,
    /// Near: bytes of blob `a` from offset `b` on.
    BlobData = 9,
    /// Near: `a` host functions have returned.
    NoticesDone = 10,
    /// Near: answer with `a`.
    Ping = 11,
    /// Near: `a` bytes of the far end's stream have come.
    NearHas = 12,
    /// Near: the program has ended; nothing follows.
    Bye = 13,
    /// Near: say which pieces you have; the link takes `a` bytes a second.
    PiecesAsk = 14,
    /// Near: the bytes of the piece that was wanted.
    PieceData = 15,
    /// Far: an answer; `slot`, `code`, data.
    Answer = 32,
    /// Far: a read is done; `a` as in `Read`, `code` the state of its chunk, `b` bytes before compression.
    ReadDone = 33,
    /// Far: `code` late errors, `slot` 1 if there is output, the work up to position `a` is done.
    Status = 34,
    /// Far: host callback `a` is due.
    Notice = 35,
    /// Far: what the device has changed of the page at offset `b` of host memory `a`.
    HostChanged = 36,
    /// Far: send the bytes of blob `a`.
    BlobWanted = 37,
    /// Far: `a` bytes of frames, and of known pieces, have been dealt with; `b` known pieces in all.
    Credit = 38,
    /// Far: the session has ended; data says why.
    Ended = 39,
    /// Far: the answer to a ping.
    Pong = 40,
    /// Far: `a` bytes of the near end's stream have come.
    FarHas = 41,
    /// Far: pieces are kept here.
    PiecesOffer = 42,
    /// Far: pieces with these prefixes are here.
    PiecesKnown = 43,
    /// Far: send the bytes of the known piece whose hash is the data.
    PieceWanted = 44,
    /// Far: reading pieces is slower than the link: name no more.
    PiecesOff = 45,
}

impl Kind {
    /// Whether the near end says it.
    pub fn is_near(self) -> bool {
        (self as u8) < 32
    }

    /// Whether it is dealt with in order, and counts against the near end's credit.
    pub(crate) fn is_ordered(self) -> bool {
        use Kind::{BlobData, Bye, NearHas, NoticesDone, PieceData, Ping};
        let is_aside = matches!(
            self,
            BlobData | NoticesDone | Ping | NearHas | Bye | PieceData
        );
        self.is_near() && !is_aside
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// Bits.
    pub flags: u8,
    /// A reply slot.
    pub slot: u16,
    /// Number of a call.
    pub call: u16,
    /// A small number.
    pub code: u32,
    /// A number.
    pub a: u64,
    /// Another one.
    pub b: u64,
    /// Bytes of data.
    pub data_bytes: u32,
}

impl Header {
    /// A header with a kind and two numbers.
    pub(crate) fn new(kind: Kind, a: u64, b: u64) -> Self {
        Self {
            kind,
            flags: 0,
            slot: 0,
            call: 0,
            code: 0,
            a,
            b,
            data_bytes: 0,
        }
    }

    /// The header's bytes.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.data_bytes.to_le_bytes());
        bytes[4] = self.kind as u8;
        bytes[5] = self.flags;
        bytes[6..8].copy_from_slice(&self.slot.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.call.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.code.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.a.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.b.to_le_bytes());
        bytes
    }

    /// Reads a header from foreign bytes.
    ///
    /// # Errors
    /// An unknown kind or flag, or more data than a frame may have.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, TunnelError> {
        let [
            l0,
            l1,
            l2,
            l3,
            kind,
            flags,
            s0,
            s1,
            c0,
            c1,
            z0,
            z1,
            d0,
            d1,
            d2,
            d3,
            rest @ ..,
        ] = *bytes;
        let [
            a0,
            a1,
            a2,
            a3,
            a4,
            a5,
            a6,
            a7,
            b0,
            b1,
            b2,
            b3,
            b4,
            b5,
            b6,
            b7,
        ] = rest;
        let data_bytes = u32::from_le_bytes([l0, l1, l2, l3]);
        if data_bytes as usize > MOST_DATA_BYTES {
            let text = format!("a frame of {data_bytes} bytes, more than {MOST_DATA_BYTES}");
            return Err(TunnelError::Protocol(text));
        }
        let kind = Kind::from_number(kind)
            .ok_or_else(|| TunnelError::Protocol(format!("no frame is of kind {kind}")))?;
        let has_piece = flags & (HASHED | KNOWN) != 0;
        let may_have_piece = matches!(kind, Kind::Staged | Kind::HostData) && flags & AT_ONCE == 0;
        if flags & !FLAGS != 0 || z0 | z1 != 0 || has_piece && !may_have_piece {
            return Err(TunnelError::protocol("a frame with unknown flags"));
        }
        Ok(Self {
            kind,
            flags,
            slot: u16::from_le_bytes([s0, s1]),
            call: u16::from_le_bytes([c0, c1]),
            code: u32::from_le_bytes([d0, d1, d2, d3]),
            a: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            b: u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7]),
            data_bytes,
        })
    }

    /// Bytes of the whole frame.
    pub(crate) fn frame_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.data_bytes)
    }

    /// Bytes that the frame stands for, as credit counts them: a known piece is kept by the near end until it was found.
    pub(crate) fn weight(&self) -> u64 {
        self.frame_bytes() + u64::from(self.is_known_piece()) * PIECE_BYTES as u64
    }

    /// Whether the far end has the piece.
    pub(crate) fn is_known_piece(&self) -> bool {
        self.flags & KNOWN != 0
    }

    /// Appends the frame with these parts as its data.
    pub(crate) fn put(mut self, out: &mut Vec<u8>, parts: &[&[u8]]) {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        debug_assert!(bytes <= MOST_DATA_BYTES, "{:?} of {bytes} bytes", self.kind);
        self.data_bytes = bytes as u32;
        out.extend_from_slice(&self.to_bytes());
        for part in parts {
            out.extend_from_slice(part);
        }
    }
}

/// A frame whose data is written in place, so that large data is copied once.
pub(crate) struct Draft {
    header: Header,
    at: usize,
}

impl Draft {
    /// Begins a frame at the end of `out`.
    pub(crate) fn begin(header: Header, out: &mut Vec<u8>) -> Self {
        let at = out.len();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        Self { header, at }
    }

    /// Replaces the last `bytes` of data by a block of LZ4, if that pays.
    pub(crate) fn pack(&mut self, bytes: usize, pack: &Compressor, out: &mut Vec<u8>) {
        let start = out.len() - bytes;
        if let Some(packed) = pack.pack(&out[start..]) {
            out.truncate(start);
            out.extend_from_slice(&packed);
            self.header.flags |= LZ4;
        }
    }

    /// Adds the hash of the piece that the last data is.
    pub(crate) fn name_piece(&mut self, hash: &Hash, out: &mut Vec<u8>) {
        out.extend_from_slice(hash);
        self.header.flags |= HASHED;
    }

    /// Replaces the last `bytes` of data by the hash of the piece that they are.
    pub(crate) fn leave_piece_out(&mut self, bytes: usize, hash: &Hash, out: &mut Vec<u8>) {
        out.truncate(out.len() - bytes);
        out.extend_from_slice(hash);
        self.header.flags |= KNOWN;
    }

    /// Ends the frame.
    pub(crate) fn end(mut self, out: &mut [u8]) {
        let bytes = out.len() - self.at - HEADER_BYTES;
        debug_assert!(
            bytes <= MOST_DATA_BYTES,
            "{:?} of {bytes} bytes",
            self.header.kind
        );
        self.header.data_bytes = bytes as u32;
        out[self.at..self.at + HEADER_BYTES].copy_from_slice(&self.header.to_bytes());
    }
}

/// Cuts frames out of a stream.
pub struct FrameReader {
    carrier: Arc<dyn Carrier>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl FrameReader {
    /// Reads from a carrier.
    pub fn new(carrier: Arc<dyn Carrier>) -> Self {
        Self {
            carrier,
            // Room for some frames: what is left of one is moved to the front less often.
            buffer: vec![0; 4 * READ_BYTES],
            start: 0,
            end: 0,
        }
    }

    /// The next frame.
    ///
    /// # Errors
    /// The stream is broken or closed, or the bytes are not a frame.
    pub fn read(&mut self) -> Result<(Header, &[u8]), TunnelError> {
        self.fill(HEADER_BYTES)?;
        let header = match self.buffer[self.start..].first_chunk() {
            Some(bytes) => Header::parse(bytes)?,
            None => return Err(TunnelError::Closed),
        };
        self.start += HEADER_BYTES;
        let bytes = header.data_bytes as usize;
        self.fill(bytes)?;
        let data = self.start..self.start + bytes;
        self.start += bytes;
        Ok((header, &self.buffer[data]))
    }

    fn fill(&mut self, wanted: usize) -> Result<(), TunnelError> {
        if self.end - self.start >= wanted {
            return Ok(());
        }
        if self.buffer.len() - self.start < wanted.max(READ_BYTES) {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if self.buffer.len() < wanted + READ_BYTES {
                self.buffer.resize(wanted + READ_BYTES, 0);
            }
        }
        while self.end - self.start < wanted {
            let got = self.carrier.receive(&mut self.buffer[self.end..]);
            match got.map_err(TunnelError::Lost)? {
                0 => return Err(TunnelError::Closed),
                got => self.end += got,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SocketCarrier;
    use std::os::unix::net::UnixStream;

    #[test]
    fn headers_survive_and_nonsense_is_refused() {
        for kind in Kind::ALL {
            let header = Header {
                kind: *kind,
                flags: LZ4,
                slot: 3,
                call: 50,
                code: 700,
                a: u64::MAX - 1,
                b: 1 << 40,
                data_bytes: 77,
            };
            let bytes = header.to_bytes();
            assert_eq!(Header::parse(&bytes).unwrap(), header);
            for (at, byte) in [(4, 200), (5, 128), (5, KNOWN | AT_ONCE), (10, 1), (3, 255)] {
                let mut wrong = bytes;
                wrong[at] = byte;
                assert!(Header::parse(&wrong).is_err(), "byte {at}");
            }
        }
    }

    #[test]
    fn frames_come_out_of_a_stream_as_they_went_in() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (ours, theirs) = (SocketCarrier::new(ours), SocketCarrier::new(theirs));
        let sender = std::thread::spawn(move || {
            let mut out = Vec::new();
            for round in 0..200_usize {
                let data = vec![round as u8; round * 2600];
                Header::new(Kind::Record, round as u64, 1).put(&mut out, &[&data]);
            }
            for part in out.chunks(9973) {
                ours.send(part).unwrap();
            }
        });
        let mut reader = FrameReader::new(Arc::new(theirs));
        for round in 0..200_usize {
            let (header, data) = reader.read().unwrap();
            assert_eq!(header.a, round as u64);
            assert!(data.len() == round * 2600 && data.iter().all(|b| *b == round as u8));
        }
        assert!(matches!(reader.read(), Err(TunnelError::Closed)));
        sender.join().unwrap();
    }
}
