//! Sections about who looks on from outside: the web page, the metrics, the log.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

use crate::webhook::Target;

/// How lines of the log look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
    /// For people, after the priority that systemd's journal reads.
    Journald,
}

/// Where something is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
    /// On this host, once somebody asks for it.
    Auto,
    /// Here.
    At(SocketAddr),
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            other => SocketAddr::from_str(other).map(Self::At).map_err(|_| {
                let forms = "write \"off\", or an address with a port such as \"127.0.0.1:7411\"";
                serde::de::Error::custom(format!("{other:?} is not an address: {forms}"))
            }),
        }
    }
}

impl Listen {
    /// Whether others than this host can reach it.
    fn is_exposed(self) -> bool {
        matches!(self, Self::At(address) if !address.ip().is_loopback())
    }
}

/// Who may sign in to the web page with a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebUser {
    /// Name, for the page and the log.
    pub name: String,
    /// The user whose rights come with it.
    pub uid: u32,
    /// SHA-256 of the token, in hex.
    pub token_sha256: String,
}

/// The web page.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DashboardSection {
    /// Where it is served.
    pub listen: Listen,
    /// Certificate and its chain, in PEM; empty: without TLS.
    pub certificate: PathBuf,
    /// Key of the certificate, in PEM.
    pub key: PathBuf,
    /// Names by which browsers reach it.
    pub names: Vec<String>,
    /// Who may sign in with a token.
    pub users: Vec<WebUser>,
}

impl Default for DashboardSection {
    fn default() -> Self {
        Self {
            listen: Listen::Auto,
            certificate: PathBuf::new(),
            key: PathBuf::new(),
            names: Vec::new(),
            users: Vec::new(),
        }
    }
}

/// Metrics on the network or in a file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsSection {
    /// Where they are served.
    pub listen: Listen,
    /// Certificate and its chain, in PEM; empty: without TLS.
    pub certificate: PathBuf,
    /// Key of the certificate, in PEM.
    pub key: PathBuf,
    /// SHA-256 of the tokens that may read them, in hex.
    pub token_sha256: Vec<String>,
    /// File for node_exporter's textfile collector; empty: none.
    pub textfile: PathBuf,
}

impl Default for MetricsSection {
    fn default() -> Self {
        Self {
            listen: Listen::Off,
            certificate: PathBuf::new(),
            key: PathBuf::new(),
            token_sha256: Vec::new(),
            textfile: PathBuf::new(),
        }
    }
}

/// Metrics for an OpenTelemetry collector.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OtelSection {
    /// Where it takes OTLP over HTTP, such as `http://127.0.0.1:4318/v1/metrics`; empty: nowhere.
    pub endpoint: String,
    /// Seconds between two pushes.
    pub interval_seconds: u64,
}

impl Default for OtelSection {
    fn default() -> Self {
        Self {
            endpoint: String::new(),
            interval_seconds: 30,
        }
    }
}

pub(super) type Wrong = (&'static str, String);

impl OtelSection {
    /// Where the metrics go.
    ///
    /// # Errors
    /// The address makes no sense, or there is none.
    pub(crate) fn target(&self) -> Result<Target, String> {
        // Collectors take metrics at this path.
        let rest = self.endpoint.strip_prefix("http://").unwrap_or_default();
        match rest.contains('/') {
            true => Target::parse(&self.endpoint),
            false => Target::parse(&format!("{}/v1/metrics", self.endpoint)),
        }
    }

    pub(super) fn check(&self) -> Result<(), Wrong> {
        if self.endpoint.is_empty() {
            return Ok(());
        }
        if !cfg!(feature = "otel") {
            let why = "this daemon was built without OpenTelemetry: build it with `--features otel`, or have the \
                       collector scrape [metrics]";
            return Err(("otel.endpoint", why.into()));
        }
        let target = self.target();
        target.map(drop).map_err(|why| ("otel.endpoint", why))
    }
}

impl DashboardSection {
    pub(super) fn check(&self) -> Result<(), Wrong> {
        let keys = ["dashboard.certificate", "dashboard.key", "dashboard.listen"];
        check_tls(keys, self.listen, (&self.certificate, &self.key))?;
        if self.listen.is_exposed() && self.users.is_empty() {
            let why = "others can reach this address, and [dashboard] names no users";
            return Err(("dashboard.listen", why.into()));
        }
        for (index, user) in self.users.iter().enumerate() {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            if user.name.is_empty() || user.name.len() > 32 || !user.name.chars().all(plain) {
                let rule = "write 1 to 32 letters, digits, - and _";
                return Err(("dashboard.users", format!("{:?}: {rule}", user.name)));
            }
            if self.users[..index].iter().any(|u| u.name == user.name) {
                return Err(("dashboard.users", format!("{} is there twice", user.name)));
            }
            check_digest("dashboard.users", &user.token_sha256)?;
        }
        Ok(())
    }
}

impl MetricsSection {
    pub(super) fn check(&self) -> Result<(), Wrong> {
        let keys = ["metrics.certificate", "metrics.key", "metrics.listen"];
        check_tls(keys, self.listen, (&self.certificate, &self.key))?;
        if self.listen == Listen::Auto {
            let why = "metrics are served at an address, or \"off\"";
            return Err(("metrics.listen", why.into()));
        }
        if self.listen != Listen::Off && self.token_sha256.is_empty() {
            let why = "metrics name every tenant, so a token must be asked for: `mica config --new-token` makes one";
            return Err(("metrics.token_sha256", why.into()));
        }
        for digest in &self.token_sha256 {
            check_digest("metrics.token_sha256", digest)?;
        }
        let textfile = &self.textfile;
        if !textfile.as_os_str().is_empty() && !textfile.is_absolute() {
            return Err(("metrics.textfile", "write an absolute path".into()));
        }
        Ok(())
    }
}

fn check_tls(
    [certificate_key, key_key, listen_key]: [&'static str; 3],
    listen: Listen,
    (certificate, key): (&PathBuf, &PathBuf),
) -> Result<(), Wrong> {
    let [has_certificate, has_key] = [certificate, key].map(|file| !file.as_os_str().is_empty());
    if has_certificate != has_key {
        let missing = if has_certificate {
            key_key
        } else {
            certificate_key
        };
        return Err((missing, "a certificate and its key belong together".into()));
    }
    if listen.is_exposed() && !has_certificate {
        let why =
            "others can reach this address: name a certificate and a key, or listen on 127.0.0.1";
        return Err((listen_key, why.into()));
    }
    Ok(())
}

fn check_digest(key: &'static str, digest: &str) -> Result<(), Wrong> {
    if digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(());
    }
    let what = "token_sha256 is not 64 hexadecimal digits: `mica config --new-token` prints them";
    Err((key, what.into()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Config;

    fn refused(text: &str) -> String {
        let parsed = Config::parse(text, Path::new("mica.toml"));
        parsed.expect_err(text).to_string()
    }

    #[test]
    fn what_others_can_reach_needs_tls_and_users() {
        let plain = refused("[dashboard]\nlisten = \"0.0.0.0:443\"\n");
        assert!(
            plain.contains("line 2") && plain.contains("certificate"),
            "{plain}"
        );
        let tls = "certificate = \"/c\"\nkey = \"/k\"\n";
        let nobody = refused(&format!("[dashboard]\nlisten = \"[::]:443\"\n{tls}"));
        assert!(nobody.contains("names no users"), "{nobody}");
        let digest = "0".repeat(64);
        let user =
            format!("users = [{{ name = \"ann\", uid = 7, token_sha256 = \"{digest}\" }}]\n");
        let text = format!("[dashboard]\nlisten = \"0.0.0.0:443\"\n{tls}{user}");
        assert!(Config::parse(&text, Path::new("mica.toml")).is_ok());
        let half = refused("[dashboard]\ncertificate = \"/c\"\n");
        assert!(half.contains("belong together"), "{half}");
    }

    #[test]
    fn metrics_are_not_served_without_a_token() {
        let open = refused("[metrics]\nlisten = \"127.0.0.1:9440\"\n");
        assert!(open.contains("token"), "{open}");
        let short = refused("[metrics]\nlisten = \"127.0.0.1:9440\"\ntoken_sha256 = [\"ab\"]\n");
        assert!(short.contains("64 hexadecimal"), "{short}");
        let exposed = format!(
            "[metrics]\nlisten = \"0.0.0.0:9440\"\ntoken_sha256 = [\"{}\"]\n",
            "0".repeat(64)
        );
        assert!(refused(&exposed).contains("certificate"));
    }

    #[test]
    fn an_address_needs_a_port() {
        let error = refused("[dashboard]\nlisten = \"127.0.0.1\"\n");
        assert!(
            error.contains("line 2") && error.contains("127.0.0.1:7411"),
            "{error}"
        );
    }

    #[test]
    fn an_otel_collector_is_refused_where_nothing_would_be_pushed() {
        let text = "[otel]\nendpoint = \"http://127.0.0.1:4318\"\n";
        let parsed = Config::parse(text, Path::new("mica.toml"));
        match cfg!(feature = "otel") {
            true => {
                let section = parsed.unwrap().otel;
                let target = section.target().unwrap().to_string();
                assert_eq!(target, "http://127.0.0.1:4318/v1/metrics");
                let wrong = refused("[otel]\nendpoint = \"https://a\"\n");
                assert!(
                    wrong.contains("line 2") && wrong.contains("http://"),
                    "{wrong}"
                );
            }
            false => {
                let why = parsed.unwrap_err().to_string();
                assert!(
                    why.contains("line 2") && why.contains("--features otel"),
                    "{why}"
                );
            }
        }
        let never = refused("[otel]\ninterval_seconds = 0\n");
        assert!(never.contains("between 1 and 3600"), "{never}");
    }
}
