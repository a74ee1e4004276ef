//! The metrics as a file, for node_exporter's textfile collector.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use mica_control::api::Severity;

use crate::daemon::Daemon;
use crate::http::metrics_page;
use crate::metrics::Format;

/// How often the file is rewritten.
const EVERY: Duration = Duration::from_secs(15);

/// Writes the file now and then.
#[derive(Debug, Default)]
pub(crate) struct Textfile {
    written: Option<Instant>,
    /// A failure was told; told again only after a success.
    failed: bool,
}

impl Textfile {
    /// Writes the file if one is configured and it is time.
    pub(crate) fn check(&mut self, daemon: &Daemon) {
        let path = daemon.registry().config.metrics.textfile.clone();
        let early = self
            .written
            .is_some_and(|written| written.elapsed() < EVERY);
        if path.as_os_str().is_empty() || early {
            return;
        }
        self.written = Some(Instant::now());
        let page = metrics_page(daemon, None).render(Format::Prometheus);
        match write(&path, &page) {
            Ok(()) => self.failed = false,
            Err(failure) if !self.failed => {
                self.failed = true;
                let text = format!("{} cannot be written: {failure}", path.display());
                daemon
                    .events
                    .add(Severity::Error, "metrics_not_written", None, None, text);
            }
            Err(_) => {}
        }
    }
}

/// Writes a file anew beside its place and puts it there: a reader sees the old one or the new one, whole.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let beside = path.with_extension("prom.new");
    let _ = std::fs::remove_file(&beside);
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&beside)?;
    // The collector is another user.
    file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
    file.write_all(text.as_bytes())?;
    std::fs::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_replaced_whole_and_readable_by_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mica.prom");
        write(&path, "a 1\n").unwrap();
        write(&path, "b 2\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "b 2\n");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(write(&dir.path().join("no/where"), "").is_err());
    }
}
