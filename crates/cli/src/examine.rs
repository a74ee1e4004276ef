//! What `mica doctor` tries by itself, beside what the daemon reports.
//!
//! A limit is tested by asking for more than it: this process joins the virtual GPU for a moment and
//! charges one byte beyond its limit, on the way every allocation of a program takes. No device memory
//! and no context are involved, so a busy virtual GPU is not disturbed.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Release;

use mica_backend_cuda::symbols::is_shim;
use mica_daemon::api::{Check, Mode, Verdict, VgpuInfo, VgpuState};
use mica_daemon::client::ControlClient;
use mica_limits::{Environment, HostLink, PageQuota, Quota};
use mica_wire::host::message::Role;

/// Whether programs get Mica's `libcuda.so.1`.
pub(crate) fn libraries() -> Check {
    let (verdict, evidence) = match crate::libraries::prepare(Mode::Direct) {
        Ok(folder) => judge(&folder.join("libcuda.so.1")),
        Err(error) => (Verdict::Failed, format!("{error:#}")),
    };
    Check {
        what: "library of programs".into(),
        vgpu: None,
        verdict,
        evidence,
    }
}

fn judge(path: &Path) -> (Verdict, String) {
    let shown = path.display();
    if is_shim(path) {
        (Verdict::Ok, format!("{shown} carries Mica's mark"))
    } else {
        (Verdict::Failed, format!("{shown} is not Mica's"))
    }
}

/// Tries whether more than a virtual GPU's limit can be had.
pub(crate) fn limit(client: &ControlClient, vgpu: &VgpuInfo) -> Check {
    let (verdict, evidence) = if vgpu.state == VgpuState::Lost {
        (Verdict::Unknown, "its GPU is lost".into())
    } else {
        ask_too_much(client, vgpu).unwrap_or_else(|why| (Verdict::Unknown, why))
    };
    Check {
        what: "limit tested".into(),
        vgpu: Some(vgpu.name.clone()),
        verdict,
        evidence,
    }
}

fn ask_too_much(client: &ControlClient, vgpu: &VgpuInfo) -> Result<(Verdict, String), String> {
    let joined = client.join(&vgpu.name).map_err(|e| e.to_string())?;
    let token = Environment::parse_token(&joined.token).ok_or("the daemon gave no token")?;
    let environment = Environment {
        socket: joined.host_socket.into(),
        token,
    };
    let link = HostLink::connect(environment, Role::Direct).map_err(|e| e.to_string())?;
    let stop = AtomicBool::new(false);
    let bytes = vgpu.memory_limit_bytes.saturating_add(1);
    let answer = std::thread::scope(|threads| {
        threads.spawn(|| link.serve(|_| {}, &stop));
        let answer = PageQuota::new(link.clone()).charge(bytes);
        stop.store(true, Release);
        link.disconnect();
        answer
    });
    Ok(match answer {
        Err(denied) => (
            Verdict::Ok,
            format!("a process that asked for one byte more than the limit was refused: {denied}"),
        ),
        Ok(()) => (Verdict::Failed, format!("{bytes} bytes were granted")),
    })
}
