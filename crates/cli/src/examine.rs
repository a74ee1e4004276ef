//! What `mica doctor` tries by itself, beside what the daemon reports.
//!
//! A limit is tested by asking for more than it: this process joins the virtual GPU for a moment and
//! asks for one byte beyond its limit, on the way every allocation of a program takes. In direct mode no device
//! memory and no context are involved, so a busy virtual GPU is not disturbed; in isolated mode the worker is asked, in a
//! session and a context of this process. With `--probe` a process of its own asks the GPU itself, through
//! `cuMemAlloc`; that takes a context for a moment.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Release;

use anyhow::Context;
use mica_backend_cuda::symbols::is_shim;
use mica_control::api::{Check, Mode, Verdict, VgpuInfo, VgpuState};
use mica_control::client::ControlClient;
use mica_limits::{Environment, HostLink, PageQuota, Quota, open_session};
use mica_load::{Driver, DriverError};
use mica_wire::host::message::Role;
use mica_wire::session::client::SessionClient;
use mica_wire::session::{ContextCreate, MemoryAlloc, SessionError};

use crate::libraries::Origin;

const REFUSED: &str = "a process that asked for one byte more than the limit was refused";

/// Whether programs get Mica's `libcuda.so.1`.
pub(crate) fn libraries() -> Check {
    let (verdict, evidence) = match crate::libraries::prepare(Mode::Direct) {
        Ok(prepared) => judge(&prepared.folder.join("libcuda.so.1"), prepared.origin),
        Err(error) => (Verdict::Failed, format!("{error:#}")),
    };
    Check {
        what: "library of programs".into(),
        vgpu: None,
        verdict,
        evidence,
    }
}

fn judge(path: &Path, origin: Origin) -> (Verdict, String) {
    let shown = path.display();
    if is_shim(path) {
        (
            Verdict::Ok,
            format!("{shown} carries Mica's mark; {origin}"),
        )
    } else {
        (Verdict::Failed, format!("{shown} is not Mica's; {origin}"))
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
    let joined = client.join_as_probe(&vgpu.name);
    let joined = joined.map_err(|e| e.to_string())?;
    let token = Environment::parse_token(&joined.token).ok_or("the daemon gave no token")?;
    let environment = Environment {
        socket: joined.host_socket.into(),
        token,
    };
    let bytes = vgpu.memory_limit_bytes.saturating_add(1);
    match joined.mode {
        Mode::Direct => ask_daemon(environment, bytes),
        Mode::Isolated if vgpu.state == VgpuState::Suspended => {
            Ok((Verdict::Unknown, "it is suspended".into()))
        }
        Mode::Isolated => ask_worker(&environment, bytes),
    }
}

/// Asks for memory as a program in isolated mode does.
fn ask_worker(environment: &Environment, bytes: u64) -> Result<(Verdict, String), String> {
    let (_, socket) = open_session(environment).map_err(|e| e.to_string())?;
    let client = SessionClient::connect(socket, "mica doctor").map_err(|e| e.to_string())?;
    let new = client.call(&ContextCreate { flags: 0 });
    let context = new.map_err(|e| e.to_string())?.context;
    match client.call(&MemoryAlloc { context, bytes }) {
        Ok(_) => Ok((Verdict::Failed, format!("{bytes} bytes were granted"))),
        Err(SessionError::Refused { code, message }) if code == OUT_OF_MEMORY as u32 => {
            // The call's name and the bytes before it are known.
            let reason = message.split_once("refused: ");
            let reason = reason.map_or(&*message, |(_, reason)| reason);
            Ok((Verdict::Ok, format!("{REFUSED}: {reason}")))
        }
        Err(other) => Err(other.to_string()),
    }
}

/// Asks for memory as a program in direct mode does.
fn ask_daemon(environment: Environment, bytes: u64) -> Result<(Verdict, String), String> {
    let link = HostLink::connect(environment, Role::Direct).map_err(|e| e.to_string())?;
    let stop = AtomicBool::new(false);
    let answer = std::thread::scope(|threads| {
        threads.spawn(|| link.serve(|_| {}, &stop));
        let answer = PageQuota::new(link.clone()).charge(bytes);
        stop.store(true, Release);
        link.disconnect();
        answer
    });
    Ok(match answer {
        Err(denied) => (Verdict::Ok, format!("{REFUSED}: {}", denied.reason)),
        Ok(()) => (Verdict::Failed, format!("{bytes} bytes were granted")),
    })
}

/// Tries with a real allocation whether more than a virtual GPU's limit can be had.
pub(crate) fn limit_on_gpu(vgpu: &VgpuInfo) -> Check {
    let (verdict, evidence) =
        probe(vgpu).unwrap_or_else(|error| (Verdict::Unknown, format!("{error:#}")));
    Check {
        what: "limit tried on the GPU".into(),
        vgpu: Some(vgpu.name.clone()),
        verdict,
        evidence,
    }
}

fn probe(vgpu: &VgpuInfo) -> anyhow::Result<(Verdict, String)> {
    let own = mica_command::child::own_path()?;
    let output = Command::new(&own)
        .args(["limit-probe", &vgpu.memory_limit_bytes.to_string()])
        .args(["--in", &vgpu.name])
        .stdin(Stdio::null())
        .output()
        .context("the probe cannot be run")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let said = said.lines().last().unwrap_or_default().trim();
    Ok(match output.status.code() {
        Some(PROBE_REFUSED) => (Verdict::Ok, said.to_owned()),
        Some(PROBE_GRANTED) => (Verdict::Failed, said.to_owned()),
        _ => {
            let error = String::from_utf8_lossy(&output.stderr);
            let error = error.lines().last().unwrap_or_default();
            (Verdict::Unknown, format!("the probe failed: {said}{error}"))
        }
    })
}

const PROBE_REFUSED: i32 = 0;
const PROBE_GRANTED: i32 = 3;
const PROBE_FAILED: i32 = 4;
const OUT_OF_MEMORY: i32 = 2;

/// The probe, after it has joined the virtual GPU that is named.
pub(crate) fn limit_probe(limit: usize, vgpu: Option<&str>) -> anyhow::Result<i32> {
    match vgpu {
        Some(name) => {
            let arguments = ["limit-probe".into(), limit.to_string().into()];
            match crate::program::become_probe(name, &arguments)? {}
        }
        None => Ok(be_limit_probe(limit)),
    }
}

/// The probe: an ordinary CUDA program that asks for one byte more than `limit`, then for a little.
fn be_limit_probe(limit: usize) -> i32 {
    let driver = match Driver::open() {
        Ok(driver) => driver,
        Err(DriverError::Call {
            call,
            code: OUT_OF_MEMORY,
        }) => {
            outln!("there is not even room for a context: {call} was refused");
            return PROBE_REFUSED;
        }
        Err(error) => {
            outln!("{error}");
            return PROBE_FAILED;
        }
    };
    match driver.alloc_and_free(limit.saturating_add(1)) {
        Err(DriverError::Call {
            code: OUT_OF_MEMORY,
            ..
        }) => {
            let little = match driver.alloc_and_free(4096) {
                Ok(()) => "4 KiB were granted",
                Err(_) => "4 KiB were refused too, it is full",
            };
            outln!(
                "cuMemAlloc of one byte more than the limit was refused as out of memory; {little}"
            );
            PROBE_REFUSED
        }
        Ok(()) => {
            outln!("cuMemAlloc gave {} bytes", limit.saturating_add(1));
            PROBE_GRANTED
        }
        Err(error) => {
            outln!("{error}");
            PROBE_FAILED
        }
    }
}
