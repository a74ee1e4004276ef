//! TLS for what others than this host can reach.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("{path} holds no {what} in PEM")]
    Pem {
        path: PathBuf,
        what: &'static str,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    #[error("{0} holds no certificate in PEM")]
    Empty(PathBuf),
    #[error("the certificate {path} cannot be used")]
    Unusable {
        path: PathBuf,
        #[source]
        source: rustls::Error,
    },
}

/// What answers a client's greeting; nothing where no certificate is configured.
pub(super) fn acceptor(certificate: &Path, key: &Path) -> Result<Option<TlsAcceptor>, TlsError> {
    if certificate.as_os_str().is_empty() {
        return Ok(None);
    }
    let wrong = |path: &Path, what| {
        let path = path.to_owned();
        move |source| TlsError::Pem { path, what, source }
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(wrong(certificate, "certificate"))?;
    if chain.is_empty() {
        return Err(TlsError::Empty(certificate.to_owned()));
    }
    let key = PrivateKeyDer::from_pem_file(key).map_err(wrong(key, "key"))?;
    let unusable = |source| TlsError::Unusable {
        path: certificate.to_owned(),
        source,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}
