//! A real Prometheus that scrapes a real daemon over TLS with a token, and the alerts.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::faults;
use super::stage::{Stage, TENANTS, TOKEN, digest, free_port};
use crate::command::root;

/// Longest that a condition may take, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the daemon's listener for metrics needs.
pub(super) struct Door {
    folder: PathBuf,
    port: u16,
}

impl Door {
    /// A certificate of its own for this host.
    pub(super) fn make(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let made = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ])
            .args([
                "-days",
                "2",
                "-subj",
                "/CN=localhost",
                "-addext",
                "subjectAltName=DNS:localhost,IP:127.0.0.1",
            ])
            .args(["-keyout", "key.pem", "-out", "certificate.pem"])
            .current_dir(folder)
            .stderr(Stdio::null())
            .status()
            .context("openssl")?;
        ensure!(made.success(), "openssl makes no certificate");
        std::fs::write(folder.join("token"), TOKEN)?;
        Ok(Self {
            folder: folder.to_owned(),
            port: free_port()?,
        })
    }

    /// The section of the daemon's configuration.
    pub(super) fn section(&self) -> String {
        let file = |name| self.folder.join(name).display().to_string();
        format!(
            "[metrics]\nlisten = \"127.0.0.1:{}\"\ncertificate = \"{}\"\nkey = \"{}\"\n\
             token_sha256 = [\"{}\"]\ntextfile = \"{}\"\n",
            self.port,
            file("certificate.pem"),
            file("key.pem"),
            digest(TOKEN),
            file("mica.prom"),
        )
    }
}

/// A Prometheus.
pub(super) struct Prometheus {
    child: Child,
    port: u16,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    /// Scrapes these; the files are in the folder of the first.
    fn start(doors: [&Door; 2]) -> Result<Self> {
        let [door, other] = doors;
        let port = free_port()?;
        // Alerts that wait a minute in production wait a moment here.
        let rules = std::fs::read_to_string(root().join("packaging/prometheus/mica-alerts.yml"))?;
        let quick = |line: &str| match line.trim_start().starts_with("for: ") {
            true => format!(
                "{}for: 2s\n",
                " ".repeat(line.len() - line.trim_start().len())
            ),
            false => format!("{line}\n"),
        };
        let rules: String = rules.lines().map(quick).collect();
        let rules = rules.replace("[10m]", "[20s]").replace("[1m]", "[10s]");
        let rules = rules
            .replace("[5m]", "[20s]")
            .replace("offset 5m", "offset 20s")
            .replace("offset 10m", "offset 20s");
        std::fs::write(door.folder.join("rules.yml"), rules)?;
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [rules.yml]\nscrape_configs:\n\
             \x20 - job_name: mica\n    scheme: https\n    authorization: {{ credentials_file: token }}\n\
             \x20   tls_config: {{ ca_file: certificates.pem }}\n\
             \x20   static_configs: [{{ targets: [\"127.0.0.1:{}\", \"127.0.0.1:{}\"] }}]\n",
            door.port, other.port
        );
        let both = [&door.folder, &other.folder].map(|f| std::fs::read(f.join("certificate.pem")));
        let both: Vec<Vec<u8>> = both.into_iter().collect::<std::io::Result<_>>()?;
        std::fs::write(door.folder.join("certificates.pem"), both.concat())?;
        std::fs::write(door.folder.join("prometheus.yml"), config)?;
        let log = std::fs::File::create(door.folder.join("prometheus.log"))?;
        let child = Command::new("prometheus")
            .arg("--config.file=prometheus.yml")
            .arg("--storage.tsdb.path=data")
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .current_dir(&door.folder)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("prometheus")?;
        Ok(Self { child, port })
    }

    /// The samples of a query.
    fn query(&self, query: &str) -> Result<Vec<Value>> {
        let escaped: String = query
            .bytes()
            .map(|b| match b.is_ascii_alphanumeric() || b == b'_' {
                true => char::from(b).to_string(),
                false => format!("%{b:02X}"),
            })
            .collect();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        write!(
            stream,
            "GET /api/v1/query?query={escaped} HTTP/1.0\r\nHost: localhost\r\n\r\n"
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (_, body) = text
            .split_once("\r\n\r\n")
            .context("Prometheus answers nothing")?;
        let answer: Value = serde_json::from_str(body)?;
        Ok(answer["data"]["result"]
            .as_array()
            .cloned()
            .unwrap_or_default())
    }

    fn until(&self, what: &str, query: &str, so: impl Fn(&[Value]) -> bool) -> Result<()> {
        let since = Instant::now();
        loop {
            let found = self.query(query).unwrap_or_default();
            if so(&found) {
                println!("    {what}");
                return Ok(());
            }
            if since.elapsed() > PATIENCE {
                bail!("{what}: never; {query} says {found:?}");
            }
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    pub(super) fn alert(&self, name: &str, fires: bool) -> Result<()> {
        let query = format!("ALERTS{{alertname=\"{name}\", alertstate=\"firing\"}}");
        let words = if fires { "fires" } else { "is quiet" };
        self.until(&format!("{name} {words}"), &query, |found| {
            found.is_empty() != fires
        })
    }
}

/// Scrapes the stage's daemon, looks at what arrives, and fires alerts by real faults.
pub(super) fn check(stage: &mut Stage, door: &Door) -> Result<()> {
    check_files(stage, door)?;
    let folder = door.folder.join("card");
    let card_door = Door::make(&folder)?;
    let mut card = faults::Card::start(stage.mica(), &folder, &card_door)?;
    let prometheus = Prometheus::start([door, &card_door])?;
    prometheus.until(
        "scraped over TLS with a token",
        "up{job=\"mica\"} == 1",
        |found| found.len() == 2,
    )?;
    // One of them may have been cancelled.
    let all = |found: &[Value]| found.len() >= TENANTS.len() - 1;
    prometheus.until(
        "every tenant has its figures",
        "mica_vgpu_memory_limit_bytes{user!=\"\"}",
        all,
    )?;
    let busy = "rate(mica_vgpu_gpu_seconds_total[10s]) > 0";
    prometheus.until("GPU time grows", busy, |found| found.len() >= 4)?;
    let waits = "histogram_quantile(0.99, sum by (le) (rate(mica_vgpu_lease_wait_seconds_bucket[10s]))) > 0";
    prometheus.until("waits have a quantile", waits, |found| found.len() == 1)?;
    board(&prometheus)?;
    faults::of_tenants(&prometheus, stage)?;
    faults::of_the_card(&prometheus, &mut card)?;
    faults::of_the_daemon(&prometheus, stage)
}

/// promtool's word on the metrics and the rules.
fn check_files(stage: &Stage, door: &Door) -> Result<()> {
    let folder = root().join("packaging/prometheus");
    for (what, words) in [
        ("check", ["check", "rules", "mica-alerts.yml"]),
        ("test", ["test", "rules", "mica-alerts-test.yml"]),
    ] {
        let output = Command::new("promtool")
            .args(words)
            .current_dir(&folder)
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "promtool {what} rules: {text}");
    }
    let textfile = door.folder.join("mica.prom");
    let since = Instant::now();
    while !textfile.exists() {
        ensure!(
            since.elapsed() < PATIENCE,
            "{} is not written",
            textfile.display()
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    let metrics = std::fs::read(&textfile)?;
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    promtool
        .stdin
        .take()
        .context("promtool")?
        .write_all(&metrics)?;
    let output = promtool.wait_with_output()?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "promtool check metrics: {words}");
    ensure!(
        stage.run(&["stats", "--prometheus"])?.contains("# EOF"),
        "no OpenMetrics on the socket"
    );
    println!("    promtool accepts the metrics and the rules, and every alert fires in its test");
    Ok(())
}

/// Every query of the Grafana board must be one that Prometheus takes.
fn board(prometheus: &Prometheus) -> Result<()> {
    let board: Value = serde_json::from_str(&std::fs::read_to_string(
        root().join("packaging/grafana/mica.json"),
    )?)?;
    let panels = board["panels"]
        .as_array()
        .context("the board has no panels")?;
    let mut with_data = 0;
    for panel in panels {
        let expression = panel["targets"][0]["expr"]
            .as_str()
            .context("a panel without a query")?;
        let expression = expression
            .replace("$__rate_interval", "10s")
            .replace("$vgpu", ".*")
            .replace("$instance", ".*");
        let found = prometheus
            .query(&expression)
            .with_context(|| expression.clone())?;
        with_data += usize::from(!found.is_empty());
    }
    ensure!(
        with_data == panels.len(),
        "{with_data} of {} panels of the board have data",
        panels.len()
    );
    println!(
        "    all {} panels of the Grafana board have data",
        panels.len()
    );
    Ok(())
}
