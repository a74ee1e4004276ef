//! The files of remote GPUs under a user's directory: own key, servers that are known, clients that are.
//!
//! ```text
//!   key.der, certificate.der     this machine's own (mode 0600, as all of it; folders 0700)
//!   servers/NAME.json            what `mica remote pair` and `remote add` know
//!   clients/NAME.json            who may come, and what each may have; removing the file revokes the client
//!   invites/HASH.json            one-time secrets that were given out, by their hash
//!   cache/FINGERPRINT/           modules of one client
//!   uploads/FINGERPRINT/         pieces of what one client's programs upload
//! ```

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use mica_control::api::Percent;
use mica_control::{Paths, files};
use rustls::pki_types::CertificateDer;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::identity::{Fingerprint, Identity, fingerprint};
use crate::{RemoteError, hex, unhex};

/// Most bytes of one of these files.
const MOST_BYTES: u64 = 64 << 10;

/// The folder.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
}

/// A server that this machine is paired with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KnownServer {
    /// Host and port.
    pub address: String,
    /// Its certificate, in hexadecimal digits.
    pub certificate: String,
}

/// A client that may use this machine's GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KnownClient {
    /// Its certificate, in hexadecimal digits.
    pub certificate: String,
    /// What it may have.
    #[serde(default)]
    pub allowance: Allowance,
    /// When it was paired, in seconds since 1970.
    pub paired_at: u64,
}

/// The most that a client may ask for; absent: what the daemon's quota allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Allowance {
    /// Memory of one virtual GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Share of one virtual GPU, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_percent: Option<Percent>,
}

/// A one-time secret that was given out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Invitation {
    /// What the client will be called.
    pub client: String,
    /// What it may have.
    pub allowance: Allowance,
    /// Seconds since 1970 after which it is void.
    pub until: u64,
}

/// Seconds since 1970.
pub fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

/// Whether a name can be a file's.
///
/// # Errors
/// Says what names are made of.
pub fn check_name(name: &str) -> Result<(), RemoteError> {
    let fits = (1..=64).contains(&name.len());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match fits && name.bytes().all(is_plain) && !name.starts_with('.') {
        true => Ok(()),
        false => Err(RemoteError::Usage(format!(
            "{name:?} is not a name: use letters, digits, '-', '_' and '.', at most 64"
        ))),
    }
}

impl Folder {
    /// The folder that the environment names: `MICA_REMOTE_DIR`, else `remote` in the folder of Mica's state.
    ///
    /// # Errors
    /// It cannot be made, or is not this user's alone.
    pub fn from_environment() -> Result<Self, RemoteError> {
        let chosen = std::env::var_os("MICA_REMOTE_DIR").filter(|path| !path.is_empty());
        let root = match chosen {
            Some(path) => path.into(),
            None => Paths::from_environment().state_dir.join("remote"),
        };
        Self::at(root)
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The one at a path.
    ///
    /// # Errors
    /// As [`Folder::from_environment`].
    pub fn at(root: PathBuf) -> Result<Self, RemoteError> {
        if let Some(parent) = root.parent() {
            std::fs::create_dir_all(parent).map_err(RemoteError::file(parent))?;
        }
        let folder = Self { root };
        for path in [
            folder.root.clone(),
            folder.sub("servers"),
            folder.sub("clients"),
            folder.sub("invites"),
        ] {
            files::make_directory(&path, 0o700).map_err(|error| RemoteError::File {
                what: error.to_string(),
                path,
            })?;
        }
        Ok(folder)
    }

    fn sub(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// This machine's identity.
    ///
    /// # Errors
    /// As [`Identity::load_or_create`].
    pub fn identity(&self) -> Result<Identity, RemoteError> {
        Identity::load_or_create(&self.root)
    }

    /// The folder with modules of a client.
    pub fn modules(&self, client: &Fingerprint) -> PathBuf {
        self.sub("cache").join(Self::kept_name(client))
    }

    /// The folder with pieces of a client's uploads.
    pub fn uploads(&self, client: &Fingerprint) -> PathBuf {
        self.sub("uploads").join(Self::kept_name(client))
    }

    /// What the folders of a client are called.
    fn kept_name(client: &Fingerprint) -> String {
        hex(&client[..16])
    }

    fn file(&self, kind: &str, name: &str) -> Result<PathBuf, RemoteError> {
        check_name(name)?;
        Ok(self.sub(kind).join(format!("{name}.json")))
    }

    fn read<T: DeserializeOwned>(&self, path: &Path) -> Result<T, RemoteError> {
        let mut text = String::new();
        files::open(path)
            .and_then(|file| file.take(MOST_BYTES).read_to_string(&mut text))
            .map_err(RemoteError::file(path))?;
        serde_json::from_str(&text).map_err(|error| RemoteError::File {
            path: path.to_owned(),
            what: format!("is not what mica wrote: {error}"),
        })
    }

    fn write<T: Serialize>(&self, path: &Path, value: &T) -> Result<(), RemoteError> {
        let text = serde_json::to_string_pretty(value).unwrap_or_default();
        let fresh = path.with_extension(format!("{}.new", std::process::id()));
        files::replace(&fresh)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| std::fs::rename(&fresh, path))
            .map_err(RemoteError::file(path))
    }

    fn list<T: DeserializeOwned>(&self, kind: &str) -> Result<Vec<(String, T)>, RemoteError> {
        let folder = self.sub(kind);
        let entries = std::fs::read_dir(&folder).map_err(RemoteError::file(&folder))?;
        let mut all = Vec::new();
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_stem().and_then(|name| name.to_str());
            if path.extension().is_some_and(|end| end == "json")
                && let Some(name) = name
            {
                match self.read(&path) {
                    Ok(found) => all.push((name.to_owned(), found)),
                    // Removed since the folder was listed: another client's end is none of this one.
                    Err(_) if !path.exists() => {}
                    Err(error) => return Err(error),
                }
            }
        }
        all.sort_by(|a: &(String, T), b| a.0.cmp(&b.0));
        Ok(all)
    }

    /// Servers by name.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn servers(&self) -> Result<Vec<(String, KnownServer)>, RemoteError> {
        self.list("servers")
    }

    /// Remembers a server.
    ///
    /// # Errors
    /// The name is none, or the file cannot be written.
    pub fn put_server(&self, name: &str, server: &KnownServer) -> Result<(), RemoteError> {
        self.write(&self.file("servers", name)?, server)
    }

    /// Forgets a server; whether there was one.
    ///
    /// # Errors
    /// The name is none.
    pub fn remove_server(&self, name: &str) -> Result<bool, RemoteError> {
        Ok(std::fs::remove_file(self.file("servers", name)?).is_ok())
    }

    /// Clients by name.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn clients(&self) -> Result<Vec<(String, KnownClient)>, RemoteError> {
        self.list("clients")
    }

    /// Lets a client in.
    ///
    /// # Errors
    /// The name is none, or the file cannot be written.
    pub fn put_client(&self, name: &str, client: &KnownClient) -> Result<(), RemoteError> {
        self.write(&self.file("clients", name)?, client)
    }

    /// Revokes a client, and removes what was kept for it; whether there was one.
    ///
    /// # Errors
    /// The name is none.
    pub fn remove_client(&self, name: &str) -> Result<bool, RemoteError> {
        let is_removed = std::fs::remove_file(self.file("clients", name)?).is_ok();
        self.forget_revoked();
        Ok(is_removed)
    }

    /// Removes what is kept for clients that are not known any more. A session that goes on while its client is revoked may keep
    /// something afterwards, so this is done again when it has ended.
    pub fn forget_revoked(&self) {
        let kept = ["cache", "uploads"].map(|kind| std::fs::read_dir(self.sub(kind)));
        let kept = kept.into_iter().flatten().flatten().flatten();
        // Listed before the clients: a client is known before anything is kept for it.
        let kept: Vec<PathBuf> = kept.map(|entry| entry.path()).collect();
        // Without the list of clients nothing is removed.
        let Ok(clients) = self.clients() else {
            return;
        };
        let known: Vec<String> = (clients.iter())
            .filter_map(|(_, client)| unhex(&client.certificate))
            .map(|certificate| Self::kept_name(&fingerprint(&certificate)))
            .collect();
        for folder in kept {
            let name = folder.file_name().and_then(|name| name.to_str());
            if name.is_none_or(|name| !known.iter().any(|known| known == name)) {
                let _ = std::fs::remove_dir_all(folder);
            }
        }
    }

    /// The client with a certificate, if it was not revoked.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn client_of(
        &self,
        certificate: &[u8],
    ) -> Result<Option<(String, KnownClient)>, RemoteError> {
        let wanted = hex(certificate);
        let clients = self.clients()?;
        let mut of = clients.into_iter();
        Ok(of.find(|(_, client)| client.certificate == wanted))
    }

    /// The certificates of all clients.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn client_certificates(&self) -> Result<Vec<CertificateDer<'static>>, RemoteError> {
        let clients = self.clients()?;
        let certificate =
            |client: &KnownClient| unhex(&client.certificate).map(CertificateDer::from);
        Ok(clients.iter().filter_map(|(_, c)| certificate(c)).collect())
    }

    /// Remembers a secret that is given out.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn put_invitation(
        &self,
        secret: &[u8],
        invitation: &Invitation,
    ) -> Result<(), RemoteError> {
        for (name, old) in self.list::<Invitation>("invites")? {
            if old.until < now() {
                let _ = std::fs::remove_file(self.file("invites", &name)?);
            }
        }
        let name = hex(&fingerprint(secret));
        self.write(&self.file("invites", &name)?, invitation)
    }

    /// Takes an invitation by its secret: nobody can take it twice.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn take_invitation(&self, secret: &[u8]) -> Result<Option<Invitation>, RemoteError> {
        let path = self.file("invites", &hex(&fingerprint(secret)))?;
        // The process whose rename succeeds owns it.
        let taken = path.with_extension(format!("{}.taken", std::process::id()));
        if std::fs::rename(&path, &taken).is_err() {
            return Ok(None);
        }
        let invitation: Invitation = self.read(&taken)?;
        let _ = std::fs::remove_file(&taken);
        Ok((invitation.until >= now()).then_some(invitation))
    }
}
