//! Virtual GPUs that move to another GPU, by way of a snapshot.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mica_control::api::{ApiError, Severity};
use mica_wire::host::message::Role;

use super::{Busy, FILE_WITHIN, LOOK_EVERY, WORKER_ENDED, refused};
use crate::daemon::Daemon;
use crate::gpu_thread::Change;
use crate::placement::error;
use crate::registry::Registry;
use crate::watched::Watched;

/// Besides the memory of a virtual GPU its file has the session's objects, of which there are at most so many bytes.
const MOST_OBJECTS: u64 = 2 << 30;
/// How often it is looked how large the file has become.
const SIZED_EVERY: Duration = Duration::from_millis(100);

/// Looks after a file until it is dropped.
struct Watch(tokio::task::JoinHandle<()>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Registry {
    /// Ends the workers of a virtual GPU.
    fn kill_workers(&self, name: &str) {
        let Ok(vgpu) = self.vgpu(name) else { return };
        let members = vgpu.clients.iter().filter_map(|id| self.clients.get(id));
        let workers = members.filter(|client| client.role == Role::Worker);
        workers
            .filter_map(|worker| worker.process.as_ref())
            .for_each(Watched::kill);
    }

    /// Reserves a place for a virtual GPU on another GPU, besides the one that it has; the number of the GPU that it is on. One
    /// whose move has failed and that `is_kept` may stay where it is.
    fn reserve_place(&mut self, name: &str, gpu: u32, is_kept: bool) -> Result<u32, ApiError> {
        let vgpu = self.vgpu(name)?;
        let is_parked = vgpu.parked_program().is_some();
        match is_parked {
            true => drop(self.to_restore(name)?),
            false => drop(self.to_save(name)?),
        }
        let before = vgpu.gpu as u32;
        let target = self.gpus.get(gpu as usize);
        let target = target.ok_or_else(|| {
            let text = format!("there is no GPU {gpu}");
            error("not_found", text, Some("`mica gpus` lists all GPUs".into()))
        })?;
        if before == gpu && is_parked && is_kept {
            return Ok(before);
        }
        if before == gpu {
            let text = format!("{name} is on GPU {gpu} already");
            return Err(error("invalid", text, None));
        }
        if target.facts.kind != self.kind(vgpu) {
            return Err(refused(
                format!("GPU {gpu} is of another kind than the one that {name} is on"),
                "NVIDIA GPUs can be moved between, and software GPUs",
            ));
        }
        self.check_place(vgpu, gpu)?;
        self.vgpu_mut(name)?.other_place = Some(gpu as usize);
        Ok(before)
    }

    /// Has a virtual GPU without a worker belong to another GPU, on which it has a place. It keeps its place on the one that it
    /// leaves.
    fn move_to(&mut self, name: &str, gpu: u32) -> Result<(), ApiError> {
        let number = gpu as usize;
        let key = self.gpus.get(number).map(|gpu| gpu.facts.key());
        let key = key.ok_or_else(|| error("not_found", format!("there is no GPU {gpu}"), None))?;
        let vgpu = self.vgpu_mut(name)?;
        let (before, id) = (std::mem::replace(&mut vgpu.gpu, number), vgpu.id);
        vgpu.other_place = Some(before);
        vgpu.gpu_key = key;
        vgpu.spec.gpu = vgpu.spec.gpu.map(|_| gpu);
        if let Some(device) = self.gpus.get(before) {
            device.thread.send(Change::TenantGone(id));
        }
        self.publish_entitlements(before);
        self.publish_entitlements(number);
        Ok(())
    }
}

impl Daemon {
    /// Moves a virtual GPU to another GPU by way of a file that the daemon keeps. Its program waits meanwhile; one that waits since
    /// an earlier move goes on. One that is in a snapshot already only gets another GPU to be restored on.
    pub(crate) async fn migrate(self: &Arc<Self>, name: &str, gpu: u32) -> Result<(), ApiError> {
        let busy = self.set_busy(name)?;
        self.until_expected_are_back(name).await;
        let is_kept = self.kept.open(name).is_some();
        let before = self.registry().reserve_place(name, gpu, is_kept)?;
        if self.registry().vgpu(name)?.parked_program().is_none() {
            self.keep_session(&busy).await?;
        }
        match self.kept.open(name) {
            Some(file) => self.go_on_elsewhere(&busy, &file, before, gpu).await?,
            None => self.move_parked(name, before, gpu).await?,
        }
        let text = match before == gpu {
            true => format!("{name} goes on on GPU {gpu}"),
            false => format!("{name} was moved from GPU {before} to GPU {gpu}"),
        };
        self.events
            .add(Severity::Info, "vgpu_migrated", Some(name), None, text);
        Ok(())
    }

    /// Saves a virtual GPU to a file of the daemon's.
    async fn keep_session(self: &Arc<Self>, busy: &Busy) -> Result<(), ApiError> {
        let name = &*busy.name;
        let unmoved = |why: String| {
            let text = format!("{name} was not moved: {why}");
            error("state", text, Some("its program goes on".into()))
        };
        let file = self.kept.begin(name).map_err(unmoved)?;
        let _watch = self.watch_size(name, &file).map_err(unmoved)?;
        let parked = self.park(busy, &file, || self.kept.finish(name)).await;
        let Err(why) = parked else { return Ok(()) };
        if why.reason != WORKER_ENDED {
            self.kept.abandon(name);
            return Err(why);
        }
        // It may have ended just before it could say that the file is whole: its program asks for the session then.
        let _ = self.kept.finish(name);
        let hint = format!(
            "if its program waits (`mica ls`), let it go on with: mica migrate {name} --gpu GPU"
        );
        Err(error(WORKER_ENDED, why.error, Some(hint)))
    }

    /// Ends a worker that writes more to its file than its virtual GPU can have: it is a tenant's.
    fn watch_size(self: &Arc<Self>, name: &str, file: &OwnedFd) -> Result<Watch, String> {
        let file = File::from(file.try_clone().map_err(|error| error.to_string())?);
        let limit = self
            .registry()
            .vgpu(name)
            .map(|vgpu| vgpu.ledger.limit_bytes());
        let most = limit.unwrap_or_default().saturating_add(MOST_OBJECTS);
        let (daemon, name) = (self.clone(), name.to_owned());
        let watch = async move {
            loop {
                tokio::time::sleep(SIZED_EVERY).await;
                let bytes = file.metadata().map_or(0, |file| file.len());
                if bytes <= most {
                    continue;
                }
                daemon.registry().kill_workers(&name);
                let text = format!(
                    "the worker of {name} was ended: it wrote {bytes} bytes to a file that can have {most}"
                );
                let (severity, kind) = (Severity::Warning, "worker_ended");
                daemon.events.add(severity, kind, Some(&name), None, text);
                return;
            }
        };
        Ok(Watch(tokio::spawn(watch)))
    }

    /// Has a virtual GPU that is in a snapshot belong to another GPU.
    async fn move_parked(
        self: &Arc<Self>,
        name: &str,
        before: u32,
        gpu: u32,
    ) -> Result<(), ApiError> {
        self.registry().move_to(name, gpu)?;
        if let Err(why) = self.keep().await {
            self.registry().move_to(name, before)?;
            let text =
                format!("{name} was not moved, because the daemon cannot keep its state: {why}");
            return Err(error("state", text, Some("its program waits on".into())));
        }
        Ok(())
    }

    /// Restores a virtual GPU on another GPU, or, where that fails, on the one that it comes from, where its place was kept.
    async fn go_on_elsewhere(
        self: &Arc<Self>,
        busy: &Busy,
        file: &OwnedFd,
        before: u32,
        gpu: u32,
    ) -> Result<(), ApiError> {
        let name = &*busy.name;
        let Err(why) = self.go_on_on(busy, file, gpu).await else {
            return Ok(());
        };
        let mut text = format!("on GPU {gpu} {}", why.error);
        if before != gpu {
            let Err(also) = self.go_on_on(busy, file, before).await else {
                return Err(why);
            };
            text += &format!("; on GPU {before} {}", also.error);
        }
        let text = format!("{name} could not go on, and its program waits: {text}");
        let hint = format!(
            "all that it has on its GPU is kept; once the cause is mended, let it go on with: mica migrate {name} --gpu {gpu}"
        );
        let told = format!("{text}; {hint}");
        self.events
            .add(Severity::Error, "vgpu_left", Some(name), None, told);
        Err(error("snapshotted", text, Some(hint)))
    }

    /// Restores a virtual GPU on a GPU.
    async fn go_on_on(
        self: &Arc<Self>,
        busy: &Busy,
        file: &OwnedFd,
        gpu: u32,
    ) -> Result<(), ApiError> {
        let name = &*busy.name;
        self.until_restorable(name).await;
        if self.registry().vgpu(name)?.gpu != gpu as usize {
            self.registry().move_to(name, gpu)?;
        }
        self.kept.linger(name);
        self.unpark(busy, file).await
    }

    /// Waits for the end of the worker that saved a session, or that could not restore it, for as long as a file may take.
    async fn until_restorable(&self, name: &str) {
        let began = Instant::now();
        let is_busy = || {
            let restorable = self.registry().to_restore(name);
            restorable.is_err_and(|why| why.reason == "busy")
        };
        while is_busy() && began.elapsed() < FILE_WITHIN {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
