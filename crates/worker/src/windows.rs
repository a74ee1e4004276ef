//! What the engine may know and ask of a program's windows on its device memory.

use std::sync::Arc;
use std::time::Duration;

use mica_vgpu::Windows;
use mica_wire::session::server::SessionPort;

/// How long a program's threads may take to let go of its windows.
const WINDOW_PATIENCE: Duration = Duration::from_millis(100);

/// The windows of the program at the other end.
pub(crate) struct PortWindows(pub(crate) Arc<SessionPort>);

impl Windows for PortWindows {
    fn set_open(&self, open: bool) {
        match open {
            true => self.0.open_windows(),
            false if self.0.close_windows(WINDOW_PATIENCE) => {}
            false => tracing::warn!("a program does not let go of its windows on device memory"),
        }
    }

    fn copied_bytes(&self) -> (u64, u64) {
        self.0.window_bytes()
    }
}
