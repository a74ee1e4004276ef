//! How TLS is set up: TLS 1.3 alone, certificates on both sides, nothing resumed by TLS itself.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{
    CipherSuite, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConfig, SignatureScheme, SupportedCipherSuite,
};

use crate::RemoteError;
use crate::identity::{Fingerprint, Identity, fingerprint};
use crate::tls::Peer;

fn provider() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    // The fastest of the strong ciphers: the cipher bounds the speed of large copies.
    let is_other =
        |suite: &SupportedCipherSuite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256;
    provider.cipher_suites.sort_by_key(is_other);
    Arc::new(provider)
}

pub(crate) fn setup(error: impl fmt::Display) -> RemoteError {
    RemoteError::Protocol(format!("TLS cannot be set up: {error}"))
}

fn roots(certificates: &[CertificateDer<'static>]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates.iter().cloned());
    roots
}

pub(crate) fn client_config(
    identity: &Identity,
    server: &Peer,
) -> Result<ClientConfig, RemoteError> {
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
    // `records` encrypts by itself.
    config.enable_secret_extraction = true;
    Ok(config)
}

pub(crate) fn server_config(
    identity: &Identity,
    client: &Peer,
) -> Result<ServerConfig, RemoteError> {
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
    config.enable_secret_extraction = true;
    Ok(config)
}

/// The signatures of TLS 1.3, checked with the provider in a field.
macro_rules! tls13_signatures {
    ($provider:tt) => {
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
            let algorithms = &self.$provider.signature_verification_algorithms;
            verify_tls13_signature(message, certificate, signature, algorithms)
        }
        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            let algorithms = &self.$provider.signature_verification_algorithms;
            algorithms.supported_schemes()
        }
    };
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
    tls13_signatures!(1);
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
    tls13_signatures!(0);
}
