//! Virtual GPUs that move to another GPU, by way of a snapshot.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use mica_control::api::{ApiError, Severity};

use super::{Busy, FILE_WITHIN, LOOK_EVERY, Name, refused};
use crate::daemon::Daemon;
use crate::gpu_thread::Change;
use crate::placement::error;
use crate::registry::Registry;

impl Registry {
    /// Reserves a place for a virtual GPU on another GPU, besides the one that it has; the number of the GPU that it is on.
    fn reserve_place(&mut self, name: &str, gpu: u32) -> Result<u32, ApiError> {
        let vgpu = self.vgpu(name)?;
        match vgpu.parked_program() {
            Some(_) => drop(self.to_restore(name)?),
            None => drop(self.to_save(name)?),
        }
        let before = vgpu.gpu as u32;
        let target = self.gpus.get(gpu as usize);
        let target = target.ok_or_else(|| {
            let text = format!("there is no GPU {gpu}");
            error("not_found", text, Some("`mica gpus` lists all GPUs".into()))
        })?;
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
    /// Moves a virtual GPU to another GPU by way of a file that was lent. Its program waits meanwhile. One that is in a snapshot
    /// already only gets another GPU to be restored on.
    pub(crate) async fn migrate(
        self: &Arc<Self>,
        name: &str,
        gpu: u32,
        lent: &Name,
    ) -> Result<(), ApiError> {
        let file = self.lent_files.file(lent, name)?;
        let busy = self.set_busy(name)?;
        self.until_expected_are_back(name).await;
        let before = self.registry().reserve_place(name, gpu)?;
        if self.registry().vgpu(name)?.parked_program().is_some() {
            self.move_parked(name, before, gpu).await?;
        } else {
            self.park(&busy, &file, || true).await?;
            self.go_on_elsewhere(&busy, &file, before, gpu).await?;
        }
        let text = format!("{name} was moved from GPU {before} to GPU {gpu}");
        self.events
            .add(Severity::Info, "vgpu_migrated", Some(name), None, text);
        Ok(())
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
        self.until_restorable(name).await;
        self.registry().move_to(name, gpu)?;
        let Err(why) = self.unpark(busy, file).await else {
            return Ok(());
        };
        self.until_restorable(name).await;
        self.registry().move_to(name, before)?;
        let Err(also) = self.unpark(busy, file).await else {
            return Err(why);
        };
        let text = format!(
            "{name} could go on on neither GPU, and its program waits: on GPU {gpu} {}; on GPU {before} {}",
            why.error, also.error
        );
        let hint = "keep the file that was lent, and restore it once the cause is mended";
        self.events
            .add(Severity::Error, "vgpu_left", Some(name), None, text.clone());
        Err(error("snapshotted", text, Some(hint.into())))
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
