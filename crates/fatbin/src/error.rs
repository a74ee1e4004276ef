//! Why a container was refused.

/// Why bytes are not a container of GPU code, or not a whole one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are none of the known formats.
    #[error(
        "{len} bytes that are not a fatbin, ELF, archive or PTX (they begin with {start:02x?})"
    )]
    UnknownFormat {
        /// How many bytes there are.
        len: usize,
        /// The first of them.
        start: Vec<u8>,
    },
    /// A structure reaches past the end.
    #[error("{what} needs {needed} bytes at offset {offset}, past the end of the image")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Where.
        offset: u64,
        /// How many bytes.
        needed: u64,
    },
    /// A field has a value that makes no sense.
    #[error("{what} is {value:#x}, which is not valid")]
    BadField {
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The bytes begin with a wrapper, whose data lies elsewhere in the program's memory.
    #[error("a fatbin wrapper points into memory; use `locate` to find what it points at")]
    Wrapper,
    /// More of something than is allowed.
    #[error("{what}: {value} is more than the limit of {limit}")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How much.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// Compressed data did not decompress.
    #[error("{method} data of {compressed} bytes does not decompress: {reason}")]
    Decompress {
        /// LZ4 or zstd.
        method: &'static str,
        /// How much there was.
        compressed: usize,
        /// What the decoder said.
        reason: String,
    },
    /// The program's memory could not be read.
    #[error("{len} bytes of {what} at address {address:#x} cannot be read")]
    Unreadable {
        /// What was being read.
        what: &'static str,
        /// Where.
        address: u64,
        /// How much.
        len: u64,
    },
}

/// The result of reading a container.
pub type Result<T> = std::result::Result<T, Error>;
