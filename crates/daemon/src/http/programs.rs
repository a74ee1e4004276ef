//! Reports of commands that start programs, and requests about running programs.

use std::time::Duration;

use axum::Json;
use mica_control::api::{
    ApiError, Cancelled, Done, GpuKind, LinkInfo, LinkReport, Mode, ProgramEnd, ProgramReport,
    Severity, signal_name,
};
use mica_limits::Environment;
use mica_wire::host::message::{DaemonMessage, Role};
use tokio::sync::oneshot::Receiver;

use super::peer::{Body, Caller};
use super::{Answer, Path};
use crate::daemon::Daemon;
use crate::placement::{count, error};
use crate::registry::{Registry, Vgpu, not_found};

/// How long workers are waited for that were told to cancel.
const CANCEL_WITHIN: Duration = Duration::from_secs(5);
/// Characters of a command line that are kept.
const COMMAND_CHARACTERS: usize = 256;

/// Tells that a program was started in a virtual GPU, or how it ended.
#[utoipa::path(post, tag = "vgpus", path = "/v1/vgpus/{name}/programs", params(("name" = String, Path)),
    request_body = ProgramReport,
    responses((status = 200, body = Done), (status = 404, body = ApiError)))]
pub(crate) async fn report(
    Caller { daemon, peer }: Caller,
    Path(name): Path<String>,
    Body(report): Body<ProgramReport>,
) -> Answer<Done> {
    let command: String = report.command.chars().take(COMMAND_CHARACTERS).collect();
    let name = {
        let mut registry = daemon.registry();
        let name = daemon.owned(&registry, peer, &name)?;
        let vgpu = registry.vgpu_mut(&name)?;
        if Environment::token_hex(&vgpu.token) != report.token {
            return Err(not_found(&name).into());
        }
        if report.end.is_none() {
            vgpu.program_started(report.pid, peer.pid, &command);
        }
        name
    };
    let (severity, kind, text) = words(report.pid, &command, report.end);
    daemon
        .events
        .add(severity, kind, Some(&name), Some(report.pid), text.clone());
    Ok(Json(Done { done: text }))
}

/// Tells what the way to programs on another machine is like.
#[utoipa::path(post, tag = "vgpus", path = "/v1/vgpus/{name}/link", params(("name" = String, Path)),
    request_body = LinkReport,
    responses((status = 200, body = Done), (status = 404, body = ApiError)))]
pub(crate) async fn report_link(
    Caller { daemon, peer }: Caller,
    Path(name): Path<String>,
    Body(report): Body<LinkReport>,
) -> Answer<Done> {
    let mut registry = daemon.registry();
    let name = daemon.owned(&registry, peer, &name)?;
    let vgpu = registry.vgpu_mut(&name)?;
    if Environment::token_hex(&vgpu.token) != report.token {
        return Err(not_found(&name).into());
    }
    let peer = report.link.peer.chars().take(COMMAND_CHARACTERS).collect();
    vgpu.link = Some(LinkInfo {
        peer,
        ..report.link
    });
    let done = format!("the link of {name} is noted");
    Ok(Json(Done { done }))
}

/// The event that a report makes.
fn words(pid: u32, command: &str, end: Option<ProgramEnd>) -> (Severity, &'static str, String) {
    match end {
        None => {
            let text = format!("process {pid} started: {command}");
            (Severity::Info, "program_started", text)
        }
        Some(ProgramEnd::ExitCode(code)) => {
            let severity = match code {
                0 => Severity::Info,
                _ => Severity::Warning,
            };
            let text = format!("process {pid} exited with code {code}: {command}");
            (severity, "program_ended", text)
        }
        Some(ProgramEnd::Signal(signal)) => {
            let name = signal_name(signal);
            let text = format!("process {pid} was ended by {name}: {command}");
            (Severity::Warning, "program_ended", text)
        }
    }
}

/// Ends a virtual GPU's running and queued kernels.
#[utoipa::path(post, tag = "vgpus", path = "/v1/vgpus/{name}/cancel", params(("name" = String, Path)),
    responses((status = 200, body = Cancelled), (status = "4XX", body = ApiError)))]
pub(crate) async fn cancel(
    Caller { daemon, peer }: Caller,
    Path(name): Path<String>,
) -> Answer<Cancelled> {
    let (name, told) = {
        let registry = daemon.registry();
        let name = daemon.owned(&registry, peer, &name)?;
        let vgpu = registry.vgpu(&name)?;
        can_cancel(&registry, vgpu)?;
        let told = daemon.tell_to_cancel(&registry, vgpu);
        (name, told)
    };
    let mut sum = Cancelled {
        programs: told.len() as u32,
        ..Cancelled::default()
    };
    for answer in told {
        match tokio::time::timeout(CANCEL_WITHIN, answer).await {
            Ok(Ok((kernels, copies))) => {
                sum.kernels += kernels;
                sum.copies += copies;
            }
            // A worker that ends meanwhile takes its kernels along.
            Ok(Err(_)) => {}
            Err(_) => sum.unanswered += 1,
        }
    }
    sum.done = sentence(&name, &sum);
    if sum.kernels + sum.copies > 0 {
        daemon.note("kernels_cancelled", &name, sum.done.clone());
    }
    Ok(Json(sum))
}

fn can_cancel(registry: &Registry, vgpu: &Vgpu) -> Result<(), ApiError> {
    let why = match (registry.kind(vgpu), registry.mode(vgpu)) {
        (GpuKind::Software, Mode::Isolated) => return Ok(()),
        (GpuKind::Nvidia, _) => "the NVIDIA driver cannot cancel kernels",
        (_, Mode::Direct) => "kernels can be cancelled in isolated mode only",
    };
    Err(error(
        "state",
        format!("no kernel of {} can be cancelled: {why}", vgpu.name),
        Some("end the program, or `mica suspend` the virtual GPU".into()),
    ))
}

fn sentence(name: &str, sum: &Cancelled) -> String {
    let kernels = count(sum.kernels, "kernel", "kernels");
    if sum.unanswered > 0 {
        let workers = count(sum.unanswered.into(), "worker", "workers");
        return format!("cancelled {kernels} in {name}; {workers} did not answer");
    }
    match (sum.kernels, sum.copies) {
        (0, 0) => format!("no kernel runs in {name}"),
        (_, 0) => format!("cancelled {kernels} in {name}"),
        (_, copies) => {
            let copies = count(copies, "copy", "copies");
            format!("cancelled {kernels} and {copies} in {name}")
        }
    }
}

impl Daemon {
    /// Tells the workers of a virtual GPU to cancel; their answers are still to come.
    fn tell_to_cancel(&self, registry: &Registry, vgpu: &Vgpu) -> Vec<Receiver<(u64, u64)>> {
        let members = vgpu.clients.iter();
        let members = members.filter_map(|id| Some((*id, registry.clients.get(id)?)));
        let workers = members.filter(|(_, client)| client.role == Role::Worker);
        let tell = |(id, client): (u64, &crate::registry::Client)| {
            let (request, answer) = self.cancels.expect(id);
            let message = DaemonMessage::Cancel { request };
            client.socket.send(&message, &[]).is_ok().then_some(answer)
        };
        workers.filter_map(tell).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_kernel_is_one_kernel() {
        let sentence = |kernels, copies| {
            let sum = Cancelled {
                kernels,
                copies,
                ..Cancelled::default()
            };
            sentence("a", &sum)
        };
        assert_eq!(sentence(0, 0), "no kernel runs in a");
        assert_eq!(sentence(1, 0), "cancelled 1 kernel in a");
        assert_eq!(sentence(2, 1), "cancelled 2 kernels and 1 copy in a");
    }
}
