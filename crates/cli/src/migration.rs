//! Moving virtual GPUs to other GPUs.
//!
//! What the program has on its GPU is in a file of the daemon's meanwhile, which stays until the program goes on somewhere. So
//! whoever dies on the way, typing the command again lets the program go on, and this does that where the daemon or the worker
//! died.

use std::time::{Duration, Instant};

use anyhow::Result;
use mica_command::refusal::explain;
use mica_control::api::{VgpuInfo, VgpuState};
use mica_control::client::ControlError;
use mica_wire::host::printable::printable;

use crate::args::MigrateArgs;
use crate::control::connect;
use crate::listing::print_json;
use crate::snapshot::WITHIN;

/// How often a move is asked for again.
const MOST_TRIES: u32 = 3;
/// How long it may take until it is known whether a program waits: it asks for its session when it sees that its worker is gone.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub(crate) fn migrate(args: &MigrateArgs) -> Result<()> {
    let mut tries = 0;
    let info = loop {
        let client = connect()?.with_timeout(WITHIN);
        let error = match client.migrate(&args.name, args.gpu) {
            Ok(info) => break info,
            Err(error) => error,
        };
        tries += 1;
        if tries == MOST_TRIES || !may_wait(&error) {
            return Err(explain(error));
        }
        match became(&args.name, args.gpu) {
            Some(info) if info.state == VgpuState::Snapshotted => {}
            Some(info) => break info,
            None => return Err(explain(error)),
        }
    };
    if args.json {
        return print_json(&info);
    }
    outln!("{} is on GPU {} now", printable(&info.name), info.gpu);
    if info.state == VgpuState::Snapshotted {
        outln!("its program waits; it goes on there with: mica restore FILE");
    }
    Ok(())
}

/// Whether somebody died on the way, after which the program may wait.
fn may_wait(error: &ControlError) -> bool {
    match error {
        ControlError::Refused(_) => error.reason() == Some("worker_ended"),
        _ => true,
    }
}

/// What became of a virtual GPU: it waits, now or soon, or is on the GPU that it was to move to. `None` where it is neither. Asks
/// another daemon if the one before has gone.
fn became(name: &str, gpu: u32) -> Option<VgpuInfo> {
    let began = Instant::now();
    loop {
        let info = connect().ok().and_then(|client| client.get(name).ok());
        let is_known = |info: &VgpuInfo| match info.state {
            VgpuState::Snapshotted => true,
            VgpuState::Active => info.gpu == gpu,
            _ => false,
        };
        let info = info.filter(is_known);
        if info.is_some() || began.elapsed() >= KNOWN_WITHIN {
            return info;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
