//! Launches, and nodes of graphs one by one.

use std::sync::atomic::Ordering::Relaxed;

use mica_cuda_abi::CuResult;
use mica_gpu::{GpuError, Launch};

use super::Session;
use crate::Result;
use crate::graph::{GraphOp, OwnedLaunch};

impl Session {
    /// Launches a kernel; `launch.module` is overridden by the session's handle `module`.
    #[expect(clippy::too_many_arguments, reason = "they are a launch's own")]
    pub fn launch(
        &self,
        stream: u64,
        module: u64,
        kernel: u32,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared: u32,
        cooperative: bool,
        params: &[u8],
    ) -> Result<()> {
        self.check()?;
        self.make_room(stream, params.len() as u64)?;
        let tables = self.read();
        let stream = tables.streams.get(stream)?;
        let launch = Launch {
            module: tables.modules.get(module)?.id,
            kernel,
            grid,
            block,
            dynamic_shared,
            cooperative,
            params,
        };
        self.watch(stream.context, self.gpu.launch(stream.id, &launch))?;
        self.vgpu.counters().launches.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Carries out a node of a graph that the device does not launch as a whole.
    pub(super) fn replay(&self, stream: u64, op: &GraphOp) -> Result<()> {
        match op {
            GraphOp::Nothing => Ok(()),
            GraphOp::Launch(launch) => {
                let OwnedLaunch {
                    module,
                    kernel,
                    grid,
                    block,
                    dynamic_shared,
                    cooperative,
                    params,
                } = launch;
                self.launch(
                    stream,
                    *module,
                    *kernel,
                    *grid,
                    *block,
                    *dynamic_shared,
                    *cooperative,
                    params,
                )
            }
            GraphOp::Copy(copy) => self.copy(stream, copy),
            GraphOp::Fill(fill) => self.fill(stream, fill),
            GraphOp::Write(address, bytes) => self.write_shared(stream, *address, bytes),
            GraphOp::EventRecord(event) => self.event_record(*event, stream),
            GraphOp::WaitEvent(event) => self.stream_wait_event(stream, *event),
            GraphOp::Callback(make) => self.stream_callback(stream, make()),
            GraphOp::Conditional(_) => {
                let what = "this device has no conditional nodes in graphs";
                Err(GpuError::new(CuResult::NotSupported, what).into())
            }
        }
    }
}
