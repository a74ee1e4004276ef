//! What a client's request becomes on this machine: held to its allowance, with GPUs and workers of this machine.

use std::time::Duration;

use mica_control::api::{GpuKind, VgpuSpec};
use mica_control::client::{ControlClient, ControlError};
use mica_limits::{Environment, open_session};
use mica_tunnel::RecordPort;

use crate::folder::Allowance;

/// Opens a session with a worker of a virtual GPU: its memory limit, and the session. A worker may end just when it is
/// asked; then another is.
pub(crate) fn open_worker(environment: &Environment) -> Result<(u64, RecordPort), String> {
    let mut pause = Duration::from_millis(2);
    loop {
        let opened = open_session(environment);
        let (welcome, socket) = opened.map_err(|error| error.to_string())?;
        match RecordPort::connect(socket) {
            Ok(port) => return Ok((welcome.limit_bytes, port)),
            Err(error) if pause > Duration::from_millis(500) => return Err(error.to_string()),
            Err(_) => std::thread::sleep(pause),
        }
        pause *= 2;
    }
}

pub(crate) fn words(error: ControlError) -> String {
    match error {
        ControlError::Refused(refusal) => match refusal.hint {
            Some(hint) => format!("{}\n  hint: {hint}", refusal.error),
            None => refusal.error,
        },
        other => other.to_string(),
    }
}

/// Holds a request to what the client may have.
pub(crate) fn apply(allowance: &Allowance, spec: &mut VgpuSpec) -> Result<(), String> {
    if let Some(most) = allowance.memory_bytes {
        match spec.memory_limit_bytes {
            Some(asked) if asked > most => {
                let (asked, most) = (asked.div_ceil(1 << 20), most >> 20);
                return Err(format!(
                    "{asked} MiB of memory were asked for; this client may have {most} MiB"
                ));
            }
            Some(_) => {}
            // A part of the GPU is not known here in bytes.
            None => {
                spec.memory_limit_percent = None;
                spec.memory_limit_bytes = Some(most);
            }
        }
    }
    if let Some(most) = allowance.share_percent {
        let asked = spec.share_percent.unwrap_or(most);
        if asked > most {
            return Err(format!(
                "a share of {asked} % was asked for; this client may have {most} %"
            ));
        }
        spec.share_percent = Some(asked);
    }
    Ok(())
}

pub(crate) fn gpu_index(text: &str, control: &ControlClient) -> Result<u32, String> {
    if let Ok(index) = text.parse() {
        return Ok(index);
    }
    let wanted = match text {
        "software" => GpuKind::Software,
        "nvidia" => GpuKind::Nvidia,
        other => return Err(format!("--gpu {other}: write an index, nvidia or software")),
    };
    let gpus = control.gpus().map_err(words)?;
    let found = gpus.iter().find(|gpu| gpu.kind == wanted);
    found
        .map(|gpu| gpu.index)
        .ok_or_else(|| format!("--gpu {text}: the server has no {wanted} GPU"))
}
