//! Memory that leaves and returns: reports of workers in, orders to them out.

use mica_limits::monotonic_ns;
use mica_wire::host::message::Residency;

use super::HostServer;

impl HostServer {
    /// A worker reports where its memory is. Each part that is out may be room for somebody.
    pub(super) fn worker_moved(&mut self, client: u64, residency: &Residency) {
        let news = self
            .daemon
            .registry()
            .worker_moved(client, residency, monotonic_ns());
        if let Some((severity, kind, vgpu, pid, text)) = news {
            let events = &self.daemon.events;
            events.add(severity, kind, Some(&vgpu), Some(pid), text);
        }
        self.plan_swaps();
    }

    /// Decides who leaves and who returns, and tells the workers.
    pub(super) fn plan_swaps(&mut self) {
        let steps = self.daemon.registry().plan_swaps(monotonic_ns());
        let events = &self.daemon.events;
        for (severity, kind, vgpu, pid, text) in steps.news {
            events.add(severity, kind, Some(&vgpu), (pid != 0).then_some(pid), text);
        }
        for (socket, frame) in steps.messages {
            // A worker that does not read is cut off by its next message, and its death frees its memory.
            let _ = socket.send_frame(&frame, &[]);
        }
    }
}
