//! Reaching the daemon, starting one when there is none.

use anyhow::{Context, Result, anyhow};
use mica_control::client::ControlClient;

/// A client of the running daemon; starts one on demand.
pub(crate) fn connect() -> Result<ControlClient> {
    let exe = std::env::current_exe().context("this program's own path is unknown")?;
    mica_control::ensure_running(&exe).map_err(|error| match error {
        mica_control::StartError::Foreign { .. } => anyhow!(
            "{error}\n  hint: unset MICA_RUNTIME_DIR to use the system's daemon, or one of your own"
        ),
        other => anyhow::Error::new(other).context("no Mica daemon runs and none could be started"),
    })
}

/// A client of the daemon if one runs already.
pub(crate) fn connect_existing() -> ControlClient {
    let system = mica_control::Paths::system_socket();
    let system = system.filter(|socket| std::os::unix::net::UnixStream::connect(socket).is_ok());
    let own = || mica_control::Paths::from_environment().control_socket();
    ControlClient::new(system.unwrap_or_else(own))
}
