//! Launches, and nodes of graphs one by one.

use std::sync::RwLockReadGuard;
use std::sync::atomic::Ordering::Relaxed;

use mica_cuda_abi::CuResult;
use mica_gpu::{ClusterQuestion, GpuError, Launch, LaunchAttribute};

use super::{Session, Tables};
use crate::graph::{GraphOp, OwnedLaunch, RawAttribute};
use crate::{Result, VgpuError};

/// Plain launches in a row. The tables stay in use between two of them, which spares each the lock: other threads that end or
/// make something wait meanwhile, and the thread that has this makes no other call of the session.
pub struct LaunchRun<'a> {
    session: &'a Session,
    tables: RwLockReadGuard<'a, Tables>,
    launched: u64,
}

impl LaunchRun<'_> {
    /// The context of a stream; `None` if the stream is not this session's.
    #[inline]
    pub fn context_of_stream(&self, stream: u64) -> Option<u64> {
        Some(self.tables.streams.get(stream).ok()?.context)
    }

    /// Whether a launch with so many bytes of parameters need not wait for room. One that must cannot be in a run.
    #[inline]
    pub fn has_room(&self, bytes: u64) -> bool {
        self.session.gpu.has_plenty_of_room(bytes)
    }

    /// Launches a kernel; `launch.module` is overridden by the session's handle `module`.
    ///
    /// # Errors
    /// As [`Session::launch`].
    #[inline]
    pub fn launch(&mut self, stream: u64, module: u64, launch: &Launch<'_>) -> Result<()> {
        self.session.check()?;
        let stream = self.tables.streams.get(stream)?;
        let launch = Launch {
            module: self.tables.modules.get(module)?.id,
            ..*launch
        };
        let launched = self.session.gpu.launch(stream.id, &launch);
        self.session.watch(stream.context, launched)?;
        self.launched += 1;
        Ok(())
    }
}

impl LaunchRun<'_> {
    /// How many launches [`LaunchRun::launch_row`] takes; 0 where nothing is gained by it.
    pub fn row_length(&self) -> usize {
        self.session.gpu.row_length()
    }

    /// Launches so many kernels on one stream at once, each with the session's handle of its module. `false` if none of them was
    /// launched: one by one they are, or it is told what is wrong with them.
    pub fn launch_row<'p>(
        &mut self,
        stream: u64,
        launches: impl Iterator<Item = (u64, Launch<'p>)>,
    ) -> bool {
        let Ok(stream) = self.tables.streams.get(stream) else {
            return false;
        };
        let known = |(module, launch): (u64, Launch<'p>)| {
            let module = self.tables.modules.get(module).ok()?.id;
            Some(Launch { module, ..launch })
        };
        let Some(launches) = launches.map(known).collect::<Option<Vec<_>>>() else {
            return false;
        };
        let is_open = self.session.check().is_ok();
        let launched = is_open && self.session.gpu.launch_row(stream.id, &launches);
        if launched {
            self.launched += launches.len() as u64;
        }
        launched
    }
}

impl Drop for LaunchRun<'_> {
    fn drop(&mut self) {
        let counters = self.session.vgpu.counters();
        counters.launches.fetch_add(self.launched, Relaxed);
    }
}

impl Session {
    /// Begins launches in a row; `None` on a device that has no driver, whose launches often wait for room.
    pub fn launch_run(&self) -> Option<LaunchRun<'_>> {
        self.gpu.has_driver().then(|| LaunchRun {
            session: self,
            tables: self.read(),
            launched: 0,
        })
    }

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

    /// Launches a kernel with attributes.
    ///
    /// # Errors
    /// As a plain launch; also for an attribute that is not known, or an event that is not the session's.
    pub fn launch_with(&self, stream: u64, launch: &OwnedLaunch) -> Result<()> {
        self.check()?;
        self.make_room(stream, launch.params.len() as u64)?;
        let tables = self.read();
        let stream = tables.streams.get(stream)?;
        let attributes = known_attributes(&tables, &launch.attributes)?;
        let launch = launch.of(tables.modules.get(launch.module)?.id);
        let launched = self.gpu.launch_with(stream.id, &launch, &attributes);
        self.watch(stream.context, launched)?;
        self.vgpu.counters().launches.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Clusters of a kernel's blocks that run at once, or the largest that fits.
    pub fn clusters(&self, launch: &OwnedLaunch, largest: bool) -> Result<u32> {
        self.check()?;
        let tables = self.read();
        let attributes = known_attributes(&tables, &launch.attributes)?;
        Ok(self.gpu.clusters(&ClusterQuestion {
            module: tables.modules.get(launch.module)?.id,
            kernel: launch.kernel,
            grid: launch.grid,
            block: launch.block,
            dynamic_shared: launch.dynamic_shared,
            attributes: &attributes,
            largest,
        })?)
    }

    /// Carries out a node of a graph that the device does not launch as a whole.
    pub(super) fn replay(&self, stream: u64, op: &GraphOp) -> Result<()> {
        match op {
            GraphOp::Nothing => Ok(()),
            GraphOp::Launch(launch) => self.launch_with(stream, launch),
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

/// Launch attributes with the device's own events in place of the session's handles.
pub(super) fn known_attributes(
    tables: &Tables,
    attributes: &[RawAttribute],
) -> Result<Vec<LaunchAttribute>> {
    let known = |&RawAttribute { id, value }: &RawAttribute| {
        if id == LaunchAttribute::DEVICE_UPDATABLE_KERNEL_NODE || id > LaunchAttribute::LAST {
            let what = format!("launch attribute {id} is not served");
            return Err(VgpuError::Argument(what));
        }
        let event = match LaunchAttribute::records_event(id) {
            true => {
                let handle = u64::from(value[0]) | u64::from(value[1]) << 32;
                Some(tables.events.get(handle)?.id)
            }
            false => None,
        };
        Ok(LaunchAttribute { id, value, event })
    };
    attributes.iter().map(known).collect()
}
