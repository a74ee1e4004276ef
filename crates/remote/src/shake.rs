//! The handshake of TLS, by rustls; what is read of a peer that has not proven who it is, is bounded here in bytes and in time.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{Error, ExtractedSecrets};

use crate::records::{MOST_RECORD, Secrets};

/// Bytes that may have come and not be understood: all messages of one side fit several times.
const MOST_INCOMING: usize = 4 * MOST_RECORD;
/// Bytes that may have come behind the handshake before it is looked at.
const MOST_EARLY: usize = 64 << 10;

/// A connection whose handshake is over.
pub(crate) struct Shaken {
    pub(crate) secrets: Secrets,
    pub(crate) keys: ExtractedSecrets,
    /// The other side's certificate.
    pub(crate) peer: Option<CertificateDer<'static>>,
    /// What the other side has said already.
    pub(crate) plain: Vec<u8>,
    /// What has come of it and is still encrypted.
    pub(crate) raw: Vec<u8>,
}

/// Why the connection failed.
pub(crate) enum Failure {
    /// TLS says so.
    Tls(Error),
    /// The socket does.
    Socket(io::Error),
}

impl Failure {
    /// Whether rustls has made an alert of it.
    fn is_told(&self) -> bool {
        use Error::{AlertReceived, General};
        matches!(self, Self::Tls(error) if !matches!(error, AlertReceived(_) | General(_)))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Tls(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

/// The socket during the handshake.
struct Wire<'a> {
    tcp: &'a TcpStream,
    until: Instant,
    incoming: Vec<u8>,
    filled: usize,
    outgoing: Vec<u8>,
    plain: Vec<u8>,
}

impl Wire<'_> {
    /// Reads more, before the time is over.
    fn read(&mut self) -> Result<(), Failure> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
        if self.filled == self.incoming.len() {
            let text = "more bytes than a handshake has".to_owned();
            return Err(Error::General(text).into());
        }
        self.tcp.set_read_timeout(Some(left))?;
        let mut tcp = self.tcp;
        match tcp.read(&mut self.incoming[self.filled..]) {
            Ok(0) => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(got) => {
                self.filled += got;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn encode<D>(&mut self, mut data: EncodeTlsData<'_, D>) -> Result<(), Failure> {
        let end = self.outgoing.len();
        let mut room = MOST_RECORD;
        loop {
            self.outgoing.resize(end + room, 0);
            match data.encode(&mut self.outgoing[end..]) {
                Ok(bytes) => {
                    self.outgoing.truncate(end + bytes);
                    return Ok(());
                }
                Err(EncodeError::InsufficientSize(more)) if more.required_size > room => {
                    room = more.required_size;
                }
                Err(error) => return Err(Error::General(error.to_string()).into()),
            }
        }
    }

    fn write(&mut self) -> io::Result<()> {
        let mut tcp = self.tcp;
        let written = tcp.write_all(&self.outgoing);
        self.outgoing.clear();
        written
    }

    /// What is to be done next; whether the handshake is over.
    fn take<D>(&mut self, status: UnbufferedStatus<'_, '_, D>) -> (usize, Result<Next, Failure>) {
        let mut discard = status.discard;
        let next = match status.state {
            Err(error) => Err(error.into()),
            Ok(ConnectionState::EncodeTlsData(data)) => self.encode(data).map(|()| Next::GoOn),
            Ok(ConnectionState::TransmitTlsData(data)) => {
                let written = self.write();
                data.done();
                written.map(|()| Next::GoOn).map_err(Failure::Socket)
            }
            Ok(ConnectionState::BlockedHandshake) => Ok(Next::Read),
            Ok(ConnectionState::WriteTraffic(_)) => Ok(Next::Done),
            Ok(ConnectionState::ReadTraffic(mut data)) => {
                while let Some(Ok(record)) = data.next_record() {
                    discard += record.discard;
                    self.plain.extend_from_slice(record.payload);
                }
                match self.plain.len() <= MOST_EARLY {
                    true => Ok(Next::GoOn),
                    false => Err(Error::General("too much at once".into()).into()),
                }
            }
            Ok(_) => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        };
        (discard, next)
    }

    fn discard(&mut self, bytes: usize) {
        self.incoming.copy_within(bytes..self.filled, 0);
        self.filled -= bytes;
    }
}

enum Next {
    GoOn,
    Read,
    Done,
}

/// Drives a connection through its handshake. A macro, since the two kinds of connections have no trait in common.
macro_rules! drive {
    ($name:ident, $connection:ty, $side:ident) => {
        /// Makes the handshake within a time.
        pub(crate) fn $name(
            tcp: &TcpStream,
            mut connection: $connection,
            within: Duration,
        ) -> Result<Shaken, Failure> {
            let mut wire = Wire {
                tcp,
                until: Instant::now() + within,
                incoming: vec![0; MOST_INCOMING],
                filled: 0,
                outgoing: Vec::new(),
                plain: Vec::new(),
            };
            loop {
                let mut incoming = std::mem::take(&mut wire.incoming);
                let status = connection.process_tls_records(&mut incoming[..wire.filled]);
                let (discard, next) = wire.take(status);
                wire.incoming = incoming;
                wire.discard(discard);
                match next {
                    Ok(Next::GoOn) => {}
                    Ok(Next::Done) if !connection.is_handshaking() => break,
                    Ok(Next::Read | Next::Done) => wire.read()?,
                    Err(failure) => {
                        // The reason should reach the other side: one alert, which waits in the connection.
                        let mut incoming = std::mem::take(&mut wire.incoming);
                        if failure.is_told()
                            && let Ok(ConnectionState::EncodeTlsData(data)) = connection
                                .process_tls_records(&mut incoming[..wire.filled])
                                .state
                        {
                            let _ = wire.encode(data);
                        }
                        let _ = wire.write();
                        return Err(failure);
                    }
                }
            }
            let certificates = connection.peer_certificates().unwrap_or_default();
            let peer = certificates.first().cloned().map(|peer| peer.into_owned());
            let (keys, kernel) = connection.dangerous_into_kernel_connection()?;
            wire.incoming.truncate(wire.filled);
            Ok(Shaken {
                secrets: Secrets::$side(kernel),
                keys,
                peer,
                plain: wire.plain,
                raw: wire.incoming,
            })
        }
    };
}

drive!(as_client, UnbufferedClientConnection, Client);
drive!(as_server, UnbufferedServerConnection, Server);
