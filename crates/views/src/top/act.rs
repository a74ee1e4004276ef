//! What can be done in place, and doing it.

use mica_control::api::{Priority, Resize};
use mica_control::client::{ControlClient, ControlError};
use mica_wire::host::peer::peer_of;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use mica_command::size::{Memory, Share, show_bytes};

/// Something to be confirmed and done.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Suspend(String),
    Resume(String),
    Cancel(String),
    Resize(String, Resize),
    /// Ends programs of a virtual GPU: their process numbers, and whether they may not refuse.
    End {
        vgpu: String,
        pids: Vec<u32>,
        kill: bool,
    },
}

impl Action {
    /// What will be done, without a question mark.
    pub(crate) fn question(&self) -> String {
        match self {
            Self::Suspend(vgpu) => format!("Suspend {vgpu}: hold everything that runs in it"),
            Self::Resume(vgpu) => format!("Resume {vgpu}"),
            Self::Cancel(vgpu) => format!("Cancel queued and running kernels of {vgpu}"),
            Self::Resize(vgpu, change) => format!("Resize {vgpu} to {}", change_words(change)),
            Self::End { vgpu, pids, kill } => {
                let signal = if *kill { "SIGKILL" } else { "SIGTERM" };
                match &pids[..] {
                    [pid] => format!("End process {pid} of {vgpu} with {signal}"),
                    pids => format!("End all {} programs of {vgpu} with {signal}", pids.len()),
                }
            }
        }
    }

    /// Does it; what was done, in a sentence.
    pub(crate) fn perform(&self, client: &ControlClient) -> Result<String, String> {
        let words = |error: ControlError| match error {
            ControlError::Refused(refusal) => match refusal.hint {
                Some(hint) => format!("{}; {hint}", refusal.error),
                None => refusal.error,
            },
            other => other.to_string(),
        };
        match self {
            Self::Suspend(vgpu) => {
                let info = client.suspend(vgpu).map_err(words)?;
                Ok(format!("{vgpu} is {}", info.state))
            }
            Self::Resume(vgpu) => {
                let info = client.resume(vgpu).map_err(words)?;
                Ok(format!("{vgpu} is {}", info.state))
            }
            Self::Cancel(vgpu) => Ok(client.cancel(vgpu).map_err(words)?.done),
            Self::Resize(vgpu, change) => {
                let info = client.resize(vgpu, change).map_err(words)?;
                let limit = show_bytes(info.memory_limit_bytes);
                Ok(format!(
                    "{vgpu} has {limit} and {} % now",
                    info.share_percent
                ))
            }
            Self::End { vgpu, pids, kill } => end(client, vgpu, pids, *kill),
        }
    }
}

fn end(client: &ControlClient, vgpu: &str, pids: &[u32], kill: bool) -> Result<String, String> {
    let signal = if kill { Signal::KILL } else { Signal::TERM };
    let daemon = client.stats().map_err(|error| error.to_string())?.daemon;
    if !is_here(client, daemon.pid) {
        return Err("its programs run on another host or in another container: end them there, with mica top".into());
    }
    for pid in pids {
        let number = i32::try_from(*pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or_else(|| format!("process {pid} cannot be ended from here"))?;
        let failed = |error| format!("process {pid} cannot be ended: {error}");
        let process = pidfd_open(number, PidfdFlags::empty()).map_err(failed)?;
        // Asked after the process was opened: a later process with the same number is not in the virtual GPU.
        let info = client.get(vgpu).map_err(|error| error.to_string())?;
        if !info.processes.iter().any(|process| process.pid == *pid) {
            return Err(format!("process {pid} has ended already"));
        }
        pidfd_send_signal(&process, signal).map_err(failed)?;
    }
    match pids {
        [pid] => Ok(format!("process {pid} was told to end")),
        pids => Ok(format!("{} programs were told to end", pids.len())),
    }
}

/// Whether the daemon of this number is the process that listens, so that its process numbers mean here what they mean
/// there. Behind `ssh -L` another process listens; in another process namespace the number is another one, or none.
fn is_here(client: &ControlClient, daemon: u32) -> bool {
    let stream = std::os::unix::net::UnixStream::connect(client.socket());
    let peer = stream.ok().and_then(|stream| peer_of(&stream).ok());
    peer.is_some_and(|peer| peer.pid == Some(daemon))
}

/// Reads `memory=8GiB share=30 cap high`.
pub(crate) fn parse_resize(text: &str) -> Result<Resize, String> {
    let mut change = Resize::default();
    for word in text.split_whitespace() {
        match word.split_once('=') {
            Some(("memory", size)) => {
                let memory: Memory = size.parse()?;
                change.memory_limit_bytes = memory.bytes();
                change.memory_limit_percent = memory.part();
            }
            Some(("share", share)) => change.share_percent = Some(share.parse::<Share>()?.0),
            None if word == "cap" => change.cap = Some(true),
            None if word == "nocap" => change.cap = Some(false),
            None if word == "high" => change.priority = Some(Priority::High),
            None if word == "normal" => change.priority = Some(Priority::Normal),
            None if word == "low" => change.priority = Some(Priority::Low),
            _ => {
                return Err(format!(
                    "{word:?} is not memory=SIZE, share=PERCENT, cap, nocap, high, normal or low"
                ));
            }
        }
    }
    match change == Resize::default() {
        true => Err("nothing to change".to_owned()),
        false => Ok(change),
    }
}

fn change_words(change: &Resize) -> String {
    let mut words = Vec::new();
    words.extend(
        change
            .memory_limit_bytes
            .map(|bytes| format!("{} of memory", show_bytes(bytes))),
    );
    words.extend(
        change
            .memory_limit_percent
            .map(|part| format!("{part} % of the GPU's memory")),
    );
    words.extend(
        change
            .share_percent
            .map(|share| format!("{share} % of the time")),
    );
    words.extend(
        change
            .cap
            .map(|cap| if cap { "a cap" } else { "no cap" }.to_owned()),
    );
    words.extend(
        change
            .priority
            .map(|p| format!("{p:?} priority").to_lowercase()),
    );
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_ended_only_where_the_daemon_itself_listens() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("control.sock");
        let client = ControlClient::new(&socket);
        let own = std::process::id();
        assert!(!is_here(&client, own), "nobody listens");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(is_here(&client, own));
        assert!(!is_here(&client, own + 1), "a forwarded socket");
    }
}
