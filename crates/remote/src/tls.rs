//! TLS 1.3 with certificates on both sides, over TCP.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mica_tunnel::Carrier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, DistinguishedName, Error,
    RootCertStore, ServerConfig, ServerConnection, SignatureScheme,
};

use crate::RemoteError;
use crate::hello::{self, Purpose};
use crate::identity::{Fingerprint, Identity, SERVER_NAME, fingerprint};

/// How long a peer may take for its part of the handshake.
pub const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(10);
/// Bytes taken from the socket at once.
const READ_BYTES: usize = 128 << 10;

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

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn setup(error: impl fmt::Display) -> RemoteError {
    RemoteError::Protocol(format!("TLS cannot be set up: {error}"))
}

fn roots(certificates: &[CertificateDer<'static>]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates.iter().cloned());
    roots
}

fn client_config(identity: &Identity, server: &Peer) -> Result<ClientConfig, RemoteError> {
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(&[&TLS13]).map_err(setup)?;
    let builder = match server {
        Peer::Known(certificates) => builder.with_root_certificates(roots(certificates)),
        Peer::Pinned(fingerprint) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned(*fingerprint, provider()))),
        Peer::Anybody => return Err(setup("a server must be known")),
    };
    let chain = vec![identity.certificate().clone()];
    let mut config = (builder.with_client_auth_cert(chain, identity.key())).map_err(setup)?;
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

fn server_config(identity: &Identity, client: &Peer) -> Result<ServerConfig, RemoteError> {
    let builder = ServerConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(&[&TLS13]).map_err(setup)?;
    let verifier: Arc<dyn ClientCertVerifier> = match client {
        Peer::Known(certificates) => {
            let roots = Arc::new(roots(certificates));
            WebPkiClientVerifier::builder_with_provider(roots, provider())
                .build()
                .map_err(|_| RemoteError::Refused("no client is paired with this server".into()))?
        }
        Peer::Anybody => Arc::new(AnyCertificate(provider())),
        Peer::Pinned(_) => return Err(setup("clients are known by their certificates")),
    };
    let chain = vec![identity.certificate().clone()];
    let builder = builder.with_client_cert_verifier(verifier);
    let mut config = (builder.with_single_cert(chain, identity.key())).map_err(setup)?;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// A connection with TLS that several threads use.
pub struct TlsCarrier {
    tcp: TcpStream,
    connection: Mutex<Connection>,
    /// What is on its way to the socket; held while it is written, so that records stay in order.
    outgoing: Mutex<Vec<u8>>,
    incoming: Mutex<Incoming>,
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
        let unreachable = || RemoteError::network(format!("{address} cannot be reached"));
        let mut tcp = connect_tcp(address).map_err(unreachable())?;
        prepare(&tcp, HANDSHAKE).map_err(unreachable())?;
        hello::shake(&mut tcp, purpose)?;
        let config = Arc::new(client_config(identity, server)?);
        let name = ServerName::try_from(SERVER_NAME).map_err(setup)?;
        let connection = ClientConnection::new(config, name).map_err(setup)?;
        Self::shake(tcp, connection.into())
    }

    /// Accepts a client that has said hello.
    ///
    /// # Errors
    /// It is not who it should be.
    pub fn accept(tcp: TcpStream, identity: &Identity, client: &Peer) -> Result<Self, RemoteError> {
        prepare(&tcp, HANDSHAKE).map_err(RemoteError::network("setsockopt"))?;
        let config = Arc::new(server_config(identity, client)?);
        let connection = ServerConnection::new(config).map_err(setup)?;
        Self::shake(tcp, connection.into())
    }

    fn shake(mut tcp: TcpStream, mut connection: Connection) -> Result<Self, RemoteError> {
        while connection.is_handshaking() || connection.wants_write() {
            if let Err(error) = connection.complete_io(&mut tcp) {
                // The reason should reach the other side.
                let _ = connection.write_tls(&mut tcp);
                return Err(refused(error));
            }
        }
        let certificates = connection.peer_certificates().unwrap_or_default();
        let Some(peer) = certificates.first().cloned() else {
            return Err(RemoteError::Refused(
                "the other side has no certificate".into(),
            ));
        };
        connection.set_buffer_limit(None);
        Ok(Self {
            tcp,
            connection: Mutex::new(connection),
            outgoing: Mutex::default(),
            incoming: Mutex::new(Incoming::default()),
            silence: Mutex::new(HANDSHAKE),
            peer: peer.into_owned(),
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

    /// Writes what TLS has to say.
    fn flush(&self, outgoing: &mut Vec<u8>) -> io::Result<()> {
        if outgoing.is_empty() {
            return Ok(());
        }
        let mut tcp = &self.tcp;
        let written = tcp.write_all(outgoing);
        outgoing.clear();
        written
    }
}

/// What has come.
struct Incoming {
    /// From the socket.
    raw: Vec<u8>,
    /// Decrypted, and not taken yet from `start` on.
    plain: Vec<u8>,
    start: usize,
}

impl Default for Incoming {
    fn default() -> Self {
        Self {
            raw: vec![0; READ_BYTES],
            plain: Vec::new(),
            start: 0,
        }
    }
}

impl Incoming {
    fn take(&mut self, buffer: &mut [u8]) -> usize {
        let rest = &self.plain[self.start..];
        let taken = rest.len().min(buffer.len());
        buffer[..taken].copy_from_slice(&rest[..taken]);
        self.start += taken;
        if self.start == self.plain.len() {
            self.plain.clear();
            self.start = 0;
        }
        taken
    }
}

/// Decrypts bytes into `buffer`, and what does not fit there into `more`; how many are in `buffer`, and whether the
/// other side has said that nothing follows.
fn decrypt(
    connection: &mut Connection,
    mut raw: &[u8],
    buffer: &mut [u8],
    more: &mut Vec<u8>,
) -> io::Result<(usize, bool)> {
    let mut filled = 0;
    loop {
        let state = connection.process_new_packets();
        let state = state.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let is_closed = state.peer_has_closed();
        let mut ready = state.plaintext_bytes_to_read();
        while ready > 0 {
            let room = match buffer.len() - filled {
                0 => {
                    let end = more.len();
                    more.resize(end + ready, 0);
                    &mut more[end..]
                }
                _ => &mut buffer[filled..],
            };
            let wanted = room.len().min(ready);
            connection.reader().read_exact(&mut room[..wanted])?;
            filled += if filled < buffer.len() { wanted } else { 0 };
            ready -= wanted;
        }
        if raw.is_empty() || is_closed {
            return Ok((filled, is_closed));
        }
        // TLS holds little: what it has decrypted was taken before it gets more.
        connection.read_tls(&mut raw)?;
    }
}

fn take_records(connection: &mut Connection, outgoing: &mut Vec<u8>) -> io::Result<()> {
    while connection.wants_write() {
        connection.write_tls(outgoing)?;
    }
    Ok(())
}

impl Carrier for TlsCarrier {
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let mut outgoing = lock(&self.outgoing);
        // In pieces, so that one is on the wire while the next is encrypted.
        for piece in bytes.chunks(READ_BYTES) {
            let mut connection = lock(&self.connection);
            connection.writer().write_all(piece)?;
            take_records(&mut connection, &mut outgoing)?;
            drop(connection);
            self.flush(&mut outgoing)?;
        }
        Ok(())
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut incoming = lock(&self.incoming);
        let taken = incoming.take(buffer);
        if taken > 0 {
            return Ok(taken);
        }
        let Incoming { raw, plain, .. } = &mut *incoming;
        // The end of the handshake may have brought more.
        let early = decrypt(&mut lock(&self.connection), &[], buffer, plain)?;
        if let (filled @ 1.., _) | (filled, true) = early {
            return Ok(filled);
        }
        loop {
            let mut tcp = &self.tcp;
            let got = match tcp.read(raw) {
                Ok(0) => return Ok(0),
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let silence = lock(&self.silence).as_secs();
                    let text = format!("nothing came for {silence} s");
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                Err(error) => return Err(error),
            };
            let mut connection = lock(&self.connection);
            let (filled, is_closed) = decrypt(&mut connection, &raw[..got], buffer, plain)?;
            let wants_write = connection.wants_write();
            drop(connection);
            if wants_write {
                let mut outgoing = lock(&self.outgoing);
                take_records(&mut lock(&self.connection), &mut outgoing)?;
                self.flush(&mut outgoing)?;
            }
            if filled > 0 || is_closed {
                return Ok(filled);
            }
        }
    }

    fn close(&self) {
        let _ = self.tcp.shutdown(Shutdown::Both);
    }
}

fn connect_tcp(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT) {
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

/// What a failed handshake means to a person.
fn refused(error: io::Error) -> RemoteError {
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Error>());
    match inner {
        Some(Error::AlertReceived(alert)) => RemoteError::Refused(format!(
            "the other side does not accept this machine ({alert:?}): it may not be paired, its certificate may \
             have expired, or it was revoked"
        )),
        Some(Error::InvalidCertificate(why)) => RemoteError::Refused(format!(
            "the other side's certificate is not the one that was paired: {why:?}"
        )),
        Some(Error::NoCertificatesPresented) => {
            RemoteError::Refused("the other side showed no certificate".into())
        }
        Some(other) => RemoteError::Refused(format!("no TLS with the other side: {other}")),
        None => RemoteError::network("the other side ended the handshake")(error),
    }
}

/// Accepts one certificate by its fingerprint.
#[derive(Debug)]
struct Pinned(Fingerprint, Arc<CryptoProvider>);

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match blake3::Hash::from_bytes(fingerprint(certificate)) == self.0 {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(Error::InvalidCertificate(
                rustls::CertificateError::UnknownIssuer,
            )),
        }
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.3 only".into()))
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.1.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.1.signature_verification_algorithms.supported_schemes()
    }
}

/// Accepts any certificate whose key the client has.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ClientCertVerifier for AnyCertificate {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }
    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // It will be written to a file and compared by its bytes.
        match certificate.len() <= 4096 {
            true => Ok(ClientCertVerified::assertion()),
            false => Err(Error::InvalidCertificate(
                rustls::CertificateError::BadEncoding,
            )),
        }
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.3 only".into()))
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
