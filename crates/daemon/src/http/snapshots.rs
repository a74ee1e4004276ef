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

/// Does something to the end, even if whoever asked does not wait for it.
async fn to_the_end<F>(daemon: &Arc<Daemon>, name: &str, work: F) -> Answer<VgpuInfo>
where
    F: Future<Output = Result<(), ApiError>> + Send + 'static,
{
    let ended = tokio::spawn(work).await;
    ended.map_err(|failure| error("internal", failure.to_string(), None))??;
    Ok(Json(daemon.info_of(name)?))
}

/// Saves a virtual GPU to a file that was lent on the host socket. Its program waits until the file is restored.
#[utoipa::path(post, tag = "vgpus", path = "/v1/vgpus/{name}/snapshot", params(("name" = String, Path)),
    request_body = SnapshotFile,
    responses((status = 200, body = VgpuInfo), (status = "4XX", body = ApiError)))]
pub(crate) async fn save(
    Caller { daemon, peer }: Caller,
    Path(name): Path<String>,
    Body(file): Body<SnapshotFile>,
) -> Answer<VgpuInfo> {
    let name = daemon.owned(&daemon.registry(), peer, &name)?;
    let (lent, its_daemon, its_name) = (file_name(&file.file)?, daemon.clone(), name.clone());
    let work = async move { its_daemon.save_snapshot(&its_name, &lent).await };
    to_the_end(&daemon, &name, work).await
}

/// Restores a virtual GPU from a file that was lent on the host socket. Its program goes on.
#[utoipa::path(post, tag = "vgpus", path = "/v1/vgpus/{name}/restore", params(("name" = String, Path)),
    request_body = SnapshotFile,
    responses((status = 200, body = VgpuInfo), (status = "4XX", body = ApiError)))]
pub(crate) async fn restore(
    Caller { daemon, peer }: Caller,
    Path(name): Path<String>,
    Body(file): Body<SnapshotFile>,
) -> Answer<VgpuInfo> {
    let name = daemon.owned(&daemon.registry(), peer, &name)?;
    let (lent, its_daemon, its_name) = (file_name(&file.file)?, daemon.clone(), name.clone());
    let work = async move { its_daemon.restore_snapshot(&its_name, &lent).await };
    to_the_end(&daemon, &name, work).await
}

/// Moves a virtual GPU to another GPU, by way of a file that was lent on the host socket. Its program waits meanwhile.
#[utoipa::path(post, tag = "vgpus", path = "/v1/vgpus/{name}/migrate", params(("name" = String, Path)),
    request_body = Migration,
    responses((status = 200, body = VgpuInfo), (status = "4XX", body = ApiError)))]
pub(crate) async fn migrate(
    Caller { daemon, peer }: Caller,
    Path(name): Path<String>,
    Body(migration): Body<Migration>,
) -> Answer<VgpuInfo> {
    let name = daemon.owned(&daemon.registry(), peer, &name)?;
    let (lent, gpu) = (file_name(&migration.file)?, migration.gpu);
    let (its_daemon, its_name) = (daemon.clone(), name.clone());
    let work = async move { its_daemon.migrate(&its_name, gpu, &lent).await };
    to_the_end(&daemon, &name, work).await
}
