//! A machine's own key and certificate, made when they are first needed.

use std::io::{Read, Write};
use std::path::Path;

use mica_control::files;
use rcgen::{CertificateParams, DnType, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::{RemoteError, hex, random};

/// The name in every certificate. It tells nothing: a peer is known by the certificate itself.
pub const SERVER_NAME: &str = "mica";

/// A key and its certificate.
#[derive(Debug)]
pub struct Identity {
    key: Vec<u8>,
    certificate: CertificateDer<'static>,
}

/// What stands for a certificate.
pub type Fingerprint = [u8; 32];

/// The fingerprint of a certificate.
pub fn fingerprint(certificate: &[u8]) -> Fingerprint {
    *blake3::hash(certificate).as_bytes()
}

impl Identity {
    /// The one in a folder; makes it if there is none. The files are this user's alone.
    ///
    /// # Errors
    /// The files cannot be read or made.
    pub fn load_or_create(folder: &Path) -> Result<Self, RemoteError> {
        let (key, certificate) = (folder.join("key.der"), folder.join("certificate.der"));
        if key.exists() && certificate.exists() {
            let read = |path: &Path| -> Result<Vec<u8>, RemoteError> {
                let mut bytes = Vec::new();
                files::open(path)
                    .and_then(|file| file.take(1 << 16).read_to_end(&mut bytes))
                    .map_err(RemoteError::file(path))?;
                Ok(bytes)
            };
            return Ok(Self {
                key: read(&key)?,
                certificate: CertificateDer::from(read(&certificate)?),
            });
        }
        let made = Self::create(None)?;
        let write = |path: &Path, bytes: &[u8]| {
            files::replace(path)
                .and_then(|mut file| file.write_all(bytes))
                .map_err(RemoteError::file(path))
        };
        write(&key, &made.key)?;
        write(&certificate, &made.certificate)?;
        Ok(made)
    }

    /// A new one, for ten years; with a year, valid until the beginning of that year.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn create(until: Option<i32>) -> Result<Self, RemoteError> {
        let failed = |error: rcgen::Error| {
            RemoteError::Protocol(format!("no certificate can be made: {error}"))
        };
        let key = KeyPair::generate().map_err(failed)?;
        let names = vec![SERVER_NAME.to_owned()];
        let mut params = CertificateParams::new(names).map_err(failed)?;
        // Each certificate its own name: it is looked for by that.
        let name = format!("mica {}", hex(&random::<8>()?));
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(until.unwrap_or_else(ten_years), 1, 1);
        let certificate = params.self_signed(&key).map_err(failed)?;
        Ok(Self {
            key: key.serialize_der(),
            certificate: certificate.der().clone(),
        })
    }

    /// The certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The certificate's fingerprint.
    pub fn fingerprint(&self) -> Fingerprint {
        fingerprint(&self.certificate)
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key.clone()).into()
    }
}

/// The year in ten years, by this machine's clock.
fn ten_years() -> i32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let years = now.unwrap_or_default().as_secs() / (365 * 24 * 3600);
    1970 + i32::try_from(years).unwrap_or(60) + 10
}
