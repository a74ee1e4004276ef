//! What the engine may know and ask of a program's windows on its device memory.

use std::sync::Arc;
use std::time::Duration;

use mica_vgpu::Windows;
use mica_wire::session::server::SessionPort;

/// The windows of the program at the other end.
pub(crate) struct PortWindows(pub(crate) Arc<SessionPort>);

impl Windows for PortWindows {
    fn set_open(&self, open: bool) {
        match open {
            true => self.0.open_windows(),
            false => {
                self.close_within(Duration::ZERO);
            }
        }
    }

    fn close_within(&self, patience: Duration) -> bool {
        self.0.close_windows(patience)
    }

    fn copied_bytes(&self) -> (u64, u64) {
        self.0.window_bytes()
    }
}
