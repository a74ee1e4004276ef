//! TLS 1.3 with certificates on both sides, over TCP.

use std::io::{self, IoSlice, Read};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mica_tunnel::Carrier;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use rustls::Error;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;

use crate::RemoteError;
use crate::hello::{self, Purpose};
use crate::identity::{Fingerprint, Identity, SERVER_NAME};
use crate::records::{MOST_PLAIN, MOST_RECORD, Opened, Opener, Sealer, Secrets};
use crate::setup::{client_config, server_config, setup};
use crate::shake::{Failure, Shaken, as_client, as_server};

/// How long a connection may take to be made, and a peer for the handshake.
pub const HANDSHAKE: Duration = Duration::from_secs(10);
/// Bytes taken from the socket at once, besides what is left of a record.
const READ_BYTES: usize = 256 << 10;
/// Records given to the socket at once. All of them together are smaller than what the C library gives back to the system when it is
/// freed, so that the same pages are used again and again.
const RECORDS_AT_ONCE: usize = 6;

/// Whom the other side must be.
#[derive(Clone, Debug)]
pub enum Peer {
    /// One with one of these certificates, which are valid now.
    Known(Vec<CertificateDer<'static>>),
    /// A server whose certificate has this fingerprint, to be paired with.
    Pinned(Fingerprint),
    /// Anybody who has the key of the certificate shown: a client that wants to be paired.
    Anybody,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection with TLS that several threads use. Who sends and who receives do not wait for each other.
pub struct TlsCarrier {
    tcp: TcpStream,
    /// Asked when keys change.
    secrets: Mutex<Secrets>,
    /// Held while records are written, so that they stay in order.
    outgoing: Mutex<Sealer>,
    incoming: Mutex<Incoming>,
    /// The other side wants this one to send with another key.
    renew: AtomicBool,
    silence: Mutex<Duration>,
    peer: CertificateDer<'static>,
}

impl TlsCarrier {
    /// Connects to a server.
    ///
    /// # Errors
    /// It cannot be reached, is not who it should be, or does not accept us.
    pub fn connect(
        address: &str,
        purpose: Purpose,
        identity: &Identity,
        server: &Peer,
    ) -> Result<Self, RemoteError> {
        Self::connect_within(HANDSHAKE, address, purpose, identity, server)
    }

    /// As [`TlsCarrier::connect`]; each step may take so long.
    ///
    /// # Errors
    /// As [`TlsCarrier::connect`].
    pub fn connect_within(
        step: Duration,
        address: &str,
        purpose: Purpose,
        identity: &Identity,
        server: &Peer,
    ) -> Result<Self, RemoteError> {
        let unreachable = || {
            |error: io::Error| {
                // What a person can do about it, where the reason tells.
                let hint = match error.kind() {
                    io::ErrorKind::ConnectionRefused => ": `mica serve` does not run there",
                    _ => "",
                };
                RemoteError::network(format!("{address} cannot be reached{hint}"))(error)
            }
        };
        let mut tcp = connect_tcp(address, step).map_err(unreachable())?;
        prepare(&tcp, step).map_err(unreachable())?;
        hello::shake(&mut tcp, purpose)?;
        let config = Arc::new(client_config(identity, server)?);
        let name = ServerName::try_from(SERVER_NAME).map_err(setup)?;
        let connection = UnbufferedClientConnection::new(config, name).map_err(setup)?;
        let shaken = as_client(&tcp, connection, step).map_err(refused)?;
        Self::new(tcp, shaken, step)
    }

    /// Accepts a client that has said hello.
    ///
    /// # Errors
    /// It is not who it should be.
    pub fn accept(tcp: TcpStream, identity: &Identity, client: &Peer) -> Result<Self, RemoteError> {
        prepare(&tcp, HANDSHAKE).map_err(RemoteError::network("setsockopt"))?;
        let config = Arc::new(server_config(identity, client)?);
        let connection = UnbufferedServerConnection::new(config).map_err(setup)?;
        let shaken = as_server(&tcp, connection, HANDSHAKE).map_err(refused)?;
        Self::new(tcp, shaken, HANDSHAKE)
    }

    fn new(tcp: TcpStream, shaken: Shaken, silence: Duration) -> Result<Self, RemoteError> {
        let Some(peer) = shaken.peer else {
            return Err(RemoteError::Refused(
                "the other side has no certificate".into(),
            ));
        };
        prepare(&tcp, silence).map_err(RemoteError::network("setsockopt"))?;
        let (sealer, opener) = shaken.secrets.open(shaken.keys).map_err(setup)?;
        Ok(Self {
            tcp,
            secrets: Mutex::new(shaken.secrets),
            outgoing: Mutex::new(sealer),
            incoming: Mutex::new(Incoming::new(opener, shaken.plain, &shaken.raw)),
            renew: AtomicBool::new(false),
            silence: Mutex::new(silence),
            peer,
        })
    }

    /// How long nothing may come before the other side counts as gone. At first as long as for the handshake.
    ///
    /// # Errors
    /// The socket is broken.
    pub fn expect_within(&self, silence: Duration) -> Result<(), RemoteError> {
        *lock(&self.silence) = silence;
        prepare(&self.tcp, silence).map_err(RemoteError::network("setsockopt"))
    }

    /// The other side's certificate.
    pub fn peer(&self) -> &CertificateDer<'static> {
        &self.peer
    }

    /// Bytes from the socket; 0 if the other side has closed it.
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut tcp = &self.tcp;
            match tcp.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let silence = lock(&self.silence).as_secs();
                    let text = format!("nothing came for {silence} s");
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                done => return done,
            }
        }
    }
}

/// What has come.
struct Incoming {
    opener: Opener,
    /// From the socket; records are decrypted in place.
    raw: Vec<u8>,
    /// Bytes of `raw` that are not decrypted yet.
    start: usize,
    end: usize,
    /// Bytes of `raw` that are decrypted and not taken yet.
    plain: Range<usize>,
    /// What came with the handshake, and comes first.
    early: Vec<u8>,
}

impl Incoming {
    fn new(opener: Opener, early: Vec<u8>, rest: &[u8]) -> Self {
        let mut raw = vec![0; READ_BYTES + MOST_RECORD];
        raw[..rest.len()].copy_from_slice(rest);
        Self {
            opener,
            raw,
            start: 0,
            end: rest.len(),
            plain: 0..0,
            early,
        }
    }

    /// Takes what is decrypted.
    fn take(&mut self, buffer: &mut [u8]) -> usize {
        if !self.early.is_empty() {
            let taken = self.early.len().min(buffer.len());
            buffer[..taken].copy_from_slice(&self.early[..taken]);
            self.early.drain(..taken);
            return taken;
        }
        let taken = self.plain.len().min(buffer.len());
        buffer[..taken].copy_from_slice(&self.raw[self.plain.start..][..taken]);
        self.plain.start += taken;
        taken
    }

    /// Decrypts the next record, if all of it is there.
    fn open(&mut self) -> io::Result<Option<Opened>> {
        let opened = self.opener.open(&mut self.raw[self.start..self.end])?;
        Ok(opened.map(|(opened, bytes)| {
            if let Opened::Data(plain) = &opened {
                self.plain = self.start + plain.start..self.start + plain.end;
            }
            self.start += bytes;
            opened
        }))
    }

    /// Room for more bytes, once all whole records are taken; what there is of the next one is moved to the front.
    fn room(&mut self) -> &mut [u8] {
        self.raw.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        &mut self.raw[self.end..]
    }
}

impl Carrier for TlsCarrier {
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let mut sealer = lock(&self.outgoing);
        let mut records = Vec::with_capacity(RECORDS_AT_ONCE + 1);
        for piece in bytes.chunks(RECORDS_AT_ONCE * MOST_PLAIN) {
            if sealer.is_worn(RECORDS_AT_ONCE as u64) || self.renew.swap(false, Acquire) {
                records.push(sealer.update()?);
                lock(&self.secrets).renew_sealer(&mut sealer)?;
            }
            for plain in piece.chunks(MOST_PLAIN) {
                records.push(sealer.data(plain)?);
            }
            write_all(&self.tcp, &records)?;
            records.clear();
        }
        Ok(())
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut incoming = lock(&self.incoming);
        let mut filled = 0;
        loop {
            filled += incoming.take(&mut buffer[filled..]);
            if filled == buffer.len() {
                return Ok(filled);
            }
            if !incoming.plain.is_empty() || !incoming.early.is_empty() {
                continue;
            }
            match incoming.open() {
                Ok(Some(Opened::Data(_) | Opened::Nothing)) => {}
                Ok(Some(Opened::Renewed(wanted))) => {
                    lock(&self.secrets).renew_opener(&mut incoming.opener)?;
                    self.renew.fetch_or(wanted, Release);
                }
                Ok(Some(Opened::Closed)) => {
                    let _ = self.tcp.shutdown(Shutdown::Read);
                    return Ok(filled);
                }
                // What came before it is told first; the record is refused again next time.
                Err(_) if filled > 0 => return Ok(filled),
                Err(error) => return Err(error),
                Ok(None) if filled > 0 => return Ok(filled),
                Ok(None) => match self.read(incoming.room())? {
                    0 => return Ok(0),
                    got => incoming.end += got,
                },
            }
        }
    }

    fn close(&self) {
        let _ = self.tcp.shutdown(Shutdown::Both);
    }
}

/// Writes all records, as many as the system takes at once. `write_vectored` would do, but for the signal that ends a process which
/// writes to a socket that was closed.
fn write_all(tcp: &TcpStream, records: &[Vec<u8>]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = records.iter().map(|record| IoSlice::new(record)).collect();
    let mut left = &mut slices[..];
    while !left.is_empty() {
        let mut no_descriptors = SendAncillaryBuffer::default();
        match sendmsg(tcp, left, &mut no_descriptors, SendFlags::NOSIGNAL) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut left, written),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn connect_tcp(address: &str, within: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, within) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn prepare(tcp: &TcpStream, silence: Duration) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    tcp.set_read_timeout(Some(silence))
}

/// What a connection that broke means to a person: in TLS 1.3 a client hears that it is not accepted after its handshake.
pub(crate) fn lost(error: io::Error) -> RemoteError {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(Error::AlertReceived(alert)) => refused(Failure::Tls(Error::AlertReceived(*alert))),
        _ => RemoteError::network("the connection was lost")(error),
    }
}

/// What a failed handshake means to a person.
fn refused(failure: Failure) -> RemoteError {
    let error = match failure {
        Failure::Tls(error) => error,
        Failure::Socket(error) => {
            return RemoteError::network("the other side ended the handshake")(error);
        }
    };
    match error {
        Error::AlertReceived(alert) => RemoteError::Refused(format!(
            "the other side does not accept this machine ({alert:?}): it may not be paired, its certificate may \
             have expired, or it was revoked"
        )),
        Error::InvalidCertificate(why) => RemoteError::Refused(format!(
            "the other side's certificate is not the paired one: {why:?}"
        )),
        Error::NoCertificatesPresented => {
            RemoteError::Refused("the other side showed no certificate".into())
        }
        other => RemoteError::Refused(format!("no TLS with the other side: {other}")),
    }
}

#[cfg(test)]
mod tests;
