//! The calls about snapshots.

use std::sync::Arc;

use axum::Json;
use mica_control::api::{ApiError, Migration, SnapshotFile, VgpuInfo};

use super::{Answer, Body, Caller, Path};
use crate::daemon::Daemon;
use crate::placement::error;

/// The name of a lent file as it travels.
fn file_name(text: &str) -> Result<[u8; 16], ApiError> {
    let wrong = || {
        error(
            "invalid",
            "the name of a file has 32 hexadecimal digits".into(),
            None,
        )
    };
    let number = u128::from_str_radix(text, 16).map_err(|_| wrong())?;
    match text.len() {
        32 => Ok(number.to_be_bytes()),
        _ => Err(wrong()),
    }
}

/// Does something with a virtual GPU to the end, even if whoever asked does not wait for it.
async fn to_the_end<F>(
    Caller { daemon, peer }: Caller,
    name: &str,
    work: impl FnOnce(Arc<Daemon>, String) -> F,
) -> Answer<VgpuInfo>
where
    F: Future<Output = Result<(), ApiError>> + Send + 'static,
{
    let name = daemon.owned(&daemon.registry(), peer, name)?;
    let ended = tokio::spawn(work(daemon.clone(), name.clone())).await;
    ended.map_err(|failure| error("internal", failure.to_string(), None))??;
    Ok(Json(daemon.info_of(&name)?))
}

/// Saves a virtual GPU to a file that was lent on the host socket. Its program waits until the file is restored.
#[utoipa::path(post, tag = "vgpus", path = "/v1/vgpus/{name}/snapshot", params(("name" = String, Path)),
    request_body = SnapshotFile,
    responses((status = 200, body = VgpuInfo), (status = "4XX", body = ApiError)))]
pub(crate) async fn save(
    caller: Caller,
    Path(name): Path<String>,
    Body(file): Body<SnapshotFile>,
) -> Answer<VgpuInfo> {
    let lent = file_name(&file.file)?;
    to_the_end(caller, &name, |daemon, name| async move {
        daemon.save_snapshot(&name, &lent).await
    })
    .await
}

/// Restores a virtual GPU from a file that was lent on the host socket. Its program goes on.
#[utoipa::path(post, tag = "vgpus", path = "/v1/vgpus/{name}/restore", params(("name" = String, Path)),
    request_body = SnapshotFile,
    responses((status = 200, body = VgpuInfo), (status = "4XX", body = ApiError)))]
pub(crate) async fn restore(
    caller: Caller,
    Path(name): Path<String>,
    Body(file): Body<SnapshotFile>,
) -> Answer<VgpuInfo> {
    let lent = file_name(&file.file)?;
    to_the_end(caller, &name, |daemon, name| async move {
        daemon.restore_snapshot(&name, &lent).await
    })
    .await
}

/// Moves a virtual GPU to another GPU, by way of a file that the daemon keeps. Its program waits meanwhile; one that waits since an
/// earlier move goes on.
#[utoipa::path(post, tag = "vgpus", path = "/v1/vgpus/{name}/migrate", params(("name" = String, Path)),
    request_body = Migration,
    responses((status = 200, body = VgpuInfo), (status = "4XX", body = ApiError)))]
pub(crate) async fn migrate(
    caller: Caller,
    Path(name): Path<String>,
    Body(migration): Body<Migration>,
) -> Answer<VgpuInfo> {
    to_the_end(caller, &name, |daemon, name| async move {
        daemon.migrate(&name, migration.gpu).await
    })
    .await
}
