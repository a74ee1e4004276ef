//! The records of TLS 1.3 once rustls has made the handshake.
//!
//! rustls's own connection copies each byte four times on its way in and asks for one lock in both directions. Here the ciphers of
//! rustls are used directly: a sender encrypts into the buffers that the system call takes, a receiver decrypts where the system call
//! has put the bytes, and neither waits for the other. Handshake, certificates, secrets and key updates stay with rustls
//! ([`rustls::kernel`]).

use std::io;
use std::ops::Range;

use rustls::client::ClientConnectionData;
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, Iv, MessageDecrypter, MessageEncrypter, OutboundChunks,
    OutboundPlainMessage,
};
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{
    AlertDescription, ConnectionTrafficSecrets, ContentType, Error, ExtractedSecrets,
    ProtocolVersion, Tls13CipherSuite,
};

/// Bytes of a record's header: type, version, length.
const HEADER: usize = 5;
/// Most bytes of plain text in a record.
pub(crate) const MOST_PLAIN: usize = 16 << 10;
/// Most bytes of a whole record: the standard allows 256 bytes more than the plain text.
pub(crate) const MOST_RECORD: usize = HEADER + MOST_PLAIN + 256;
/// Handshake messages that may come later: `key_update`, and tickets, which nobody here uses.
const KEY_UPDATE: u8 = 24;
const NEW_TICKET: u8 = 4;
/// A `key_update` that asks for none in return.
const UPDATE: [u8; 5] = [KEY_UPDATE, 0, 0, 1, 0];

fn broken(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn nonsense(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// What rustls keeps of a connection: it makes the next keys of either direction.
pub(crate) enum Secrets {
    /// A client's.
    Client(KernelConnection<ClientConnectionData>),
    /// A server's.
    Server(KernelConnection<ServerConnectionData>),
}

impl Secrets {
    /// The keys of both directions.
    pub(crate) fn open(&self, now: ExtractedSecrets) -> io::Result<(Sealer, Opener)> {
        let suite = self.suite()?;
        Ok((Sealer::new(suite, now.tx)?, Opener::new(suite, now.rx)?))
    }

    fn suite(&self) -> io::Result<&'static Tls13CipherSuite> {
        let suite = match self {
            Self::Client(connection) => connection.negotiated_cipher_suite(),
            Self::Server(connection) => connection.negotiated_cipher_suite(),
        };
        suite.tls13().ok_or_else(|| nonsense("not TLS 1.3"))
    }

    /// Replaces the keys with which this side sends.
    pub(crate) fn renew_sealer(&mut self, sealer: &mut Sealer) -> io::Result<()> {
        let next = match self {
            Self::Client(connection) => connection.update_tx_secret(),
            Self::Server(connection) => connection.update_tx_secret(),
        };
        *sealer = Sealer::new(self.suite()?, next.map_err(broken)?)?;
        Ok(())
    }

    /// Replaces the keys with which the other side sends.
    pub(crate) fn renew_opener(&mut self, opener: &mut Opener) -> io::Result<()> {
        let next = match self {
            Self::Client(connection) => connection.update_rx_secret(),
            Self::Server(connection) => connection.update_rx_secret(),
        };
        *opener = Opener::new(self.suite()?, next.map_err(broken)?)?;
        Ok(())
    }
}

fn parts(secrets: ConnectionTrafficSecrets) -> io::Result<(AeadKey, Iv)> {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => Ok((key, iv)),
        _ => Err(nonsense("a cipher that this side does not know")),
    }
}

/// Encrypts what is sent.
pub(crate) struct Sealer {
    cipher: Box<dyn MessageEncrypter>,
    /// Number of the next record.
    next: u64,
    /// Records that may be encrypted with one key.
    most: u64,
}

impl Sealer {
    fn new(
        suite: &Tls13CipherSuite,
        (next, secrets): (u64, ConnectionTrafficSecrets),
    ) -> io::Result<Self> {
        let (key, iv) = parts(secrets)?;
        Ok(Self {
            cipher: suite.aead_alg.encrypter(key, iv),
            next,
            most: suite.common.confidentiality_limit,
        })
    }

    /// Whether this number of further records would be too many for the present key.
    pub(crate) fn is_worn(&self, records: u64) -> bool {
        // One more says that the key changes.
        self.next.saturating_add(records + 1) > self.most
    }

    /// A record of application data.
    pub(crate) fn data(&mut self, plain: &[u8]) -> io::Result<Vec<u8>> {
        self.seal(ContentType::ApplicationData, plain)
    }

    /// The record that says that the next one has another key.
    pub(crate) fn update(&mut self) -> io::Result<Vec<u8>> {
        self.seal(ContentType::Handshake, &UPDATE)
    }

    fn seal(&mut self, typ: ContentType, plain: &[u8]) -> io::Result<Vec<u8>> {
        let message = OutboundPlainMessage {
            typ,
            version: ProtocolVersion::TLSv1_3,
            payload: OutboundChunks::Single(plain),
        };
        let sealed = self.cipher.encrypt(message, self.next).map_err(broken)?;
        self.next += 1;
        Ok(sealed.encode())
    }

    /// Records that the present key has encrypted.
    #[cfg(test)]
    pub(crate) fn sent(&self) -> u64 {
        self.next
    }

    /// Lets one key encrypt fewer records.
    #[cfg(test)]
    pub(crate) fn limit(&mut self, most: u64) {
        self.most = most;
    }
}

/// What a record says.
#[derive(Debug, PartialEq, Eq)]
pub enum Opened {
    /// Application data: where it is.
    Data(Range<usize>),
    /// The next record has another key; whether the other side wants the same of this one.
    Renewed(bool),
    /// Nothing for this side.
    Nothing,
    /// No more follows.
    Closed,
}

/// Decrypts what comes.
pub(crate) struct Opener {
    cipher: Box<dyn MessageDecrypter>,
    /// Number of the next record.
    next: u64,
}

impl Opener {
    fn new(
        suite: &Tls13CipherSuite,
        (next, secrets): (u64, ConnectionTrafficSecrets),
    ) -> io::Result<Self> {
        let (key, iv) = parts(secrets)?;
        let cipher = suite.aead_alg.decrypter(key, iv);
        Ok(Self { cipher, next })
    }

    /// Decrypts the record that `raw` begins with, in place, and tells its length; `None` if not all of it is there.
    ///
    /// # Errors
    /// It is not the next record of the other side, or says that something went wrong there.
    pub(crate) fn open(&mut self, raw: &mut [u8]) -> io::Result<Option<(Opened, usize)>> {
        let Some(bytes) = record_bytes(raw)? else {
            return Ok(None);
        };
        let Some(record) = raw.get_mut(HEADER..bytes) else {
            return Ok(None);
        };
        let message = InboundOpaqueMessage::new(
            ContentType::ApplicationData,
            ProtocolVersion::TLSv1_2,
            record,
        );
        let plain = self.cipher.decrypt(message, self.next).map_err(broken)?;
        self.next = (self.next.checked_add(1)).ok_or_else(|| nonsense("too many records"))?;
        Ok(Some((read_plain(plain.typ, plain.payload)?, bytes)))
    }
}

/// What the plain text of a record says.
///
/// # Errors
/// It has no place behind the handshake, or the other side says that something went wrong.
pub fn read_plain(typ: ContentType, payload: &[u8]) -> io::Result<Opened> {
    match typ {
        ContentType::ApplicationData => Ok(Opened::Data(HEADER..HEADER + payload.len())),
        ContentType::Alert => alert(payload),
        ContentType::Handshake => handshake(payload),
        _ => Err(nonsense("a record of a kind that has no place here")),
    }
}

/// Length of the record that foreign bytes begin with; `None` while its header is not there.
///
/// # Errors
/// The bytes are not a record.
pub fn record_bytes(raw: &[u8]) -> io::Result<Option<usize>> {
    let Some([kind, major, minor, high, low]) = raw.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let bytes = HEADER + usize::from(u16::from_be_bytes([*high, *low]));
    // 23 is the type of all encrypted records, 3.3 the version that all of them claim.
    if (*kind, *major, *minor) != (23, 3, 3) || bytes > MOST_RECORD {
        return Err(nonsense("bytes that are not a TLS record"));
    }
    Ok(Some(bytes))
}

fn alert(payload: &[u8]) -> io::Result<Opened> {
    match payload {
        // `close_notify`, whatever its level.
        [_, 0] => Ok(Opened::Closed),
        [_, what] => Err(broken(Error::AlertReceived(AlertDescription::from(*what)))),
        _ => Err(nonsense("an alert of a wrong size")),
    }
}

fn handshake(payload: &[u8]) -> io::Result<Opened> {
    match payload {
        [KEY_UPDATE, 0, 0, 1, wanted @ (0 | 1)] => Ok(Opened::Renewed(*wanted == 1)),
        [NEW_TICKET, ..] => Ok(Opened::Nothing),
        _ => Err(nonsense("a handshake message that has no place here")),
    }
}
