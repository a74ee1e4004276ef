//! GPUs of other machines: pairing, listing, serving and running.

pub(crate) mod run;
pub(crate) mod serve;

use anyhow::{Context, Result, bail};
use mica_remote::client;
use mica_remote::folder::{Allowance, Folder, Invitation, KnownServer, now};
use mica_remote::invite::{Invite, with_port};
use serde_json::json;

use crate::args::{InviteArgs, JsonArgs, PairArgs, RemoteAddArgs, RemoteCommand};
use crate::listing::print_json;
use mica_command::size::show_bytes;
use mica_command::table::Table;

/// `mica remote`.
pub(crate) fn manage(command: &RemoteCommand) -> Result<()> {
    match command {
        RemoteCommand::Invite(args) => invite(args),
        RemoteCommand::Pair(args) => pair(args),
        RemoteCommand::Add(args) => add(args),
        RemoteCommand::Ls(args) => list(args),
        RemoteCommand::Rm { names } => forget(names),
        RemoteCommand::Revoke { names } => revoke(names),
    }
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".into(),
        name => name.to_owned(),
    }
}

fn invite(args: &InviteArgs) -> Result<()> {
    let folder = Folder::from_environment()?;
    let memory_bytes = match args.memory {
        Some(memory) => match memory.bytes() {
            Some(bytes) => Some(bytes),
            None => bail!(
                "--memory: write bytes here, such as 8GiB; a part of a GPU differs from GPU to GPU"
            ),
        },
        None => None,
    };
    let secret = mica_remote::invite::secret()?;
    let client = match &args.name {
        Some(name) => name.clone(),
        None => format!("client-{:02x}{:02x}", secret[0], secret[1]),
    };
    mica_remote::folder::check_name(&client)?;
    let taken = folder
        .clients()?
        .into_iter()
        .any(|(name, _)| name == client);
    if taken {
        bail!(
            "a client called {client} is paired already (`mica remote revoke {client}` removes it)"
        );
    }
    let invitation = Invitation {
        client: client.clone(),
        allowance: Allowance {
            memory_bytes,
            share_percent: args.share.map(|share| share.0),
        },
        until: now() + 60 * u64::from(args.minutes),
    };
    let address = with_port(&args.address.clone().unwrap_or_else(host_name))?;
    folder.put_invitation(&secret, &invitation)?;
    let invite = Invite {
        address,
        fingerprint: folder.identity()?.fingerprint(),
        secret,
    };
    let text = invite.to_text();
    if args.json {
        let (address, minutes) = (&invite.address, args.minutes);
        return print_json(&json!({
            "client": client, "address": address, "minutes": minutes, "invite": text,
        }));
    }
    outln!("{text}");
    errln!(
        "mica: within {} minutes, once, on the other machine: mica remote pair STRING\n\
         mica: `mica serve` must run here and be reached at {}",
        args.minutes,
        invite.address
    );
    Ok(())
}

fn pair(args: &PairArgs) -> Result<()> {
    let folder = Folder::from_environment()?;
    let invite = Invite::parse(&args.invite)?;
    let host = invite.address.rsplit_once(':').map_or("", |(host, _)| host);
    let name = match &args.name {
        Some(name) => name.clone(),
        None => host.trim_matches(['[', ']']).replace(':', "."),
    };
    let client = client::pair(&folder, &invite, &name)?;
    outln!(
        "{name}: paired; this machine is called {client} there\nrun on it with: mica run --on {name} -- CMD"
    );
    Ok(())
}

fn add(args: &RemoteAddArgs) -> Result<()> {
    let folder = Folder::from_environment()?;
    let identity = folder.identity()?;
    let address = with_port(&args.address)?;
    let mut last = None;
    for (_, server) in folder.servers()? {
        let server = KnownServer {
            address: address.clone(),
            certificate: server.certificate,
        };
        match client::status(&identity, &server) {
            Ok(_) => {
                folder.put_server(&args.name, &server)?;
                outln!("{}: {address}", args.name);
                return Ok(());
            }
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(error).with_context(|| format!("no paired server answers at {address}")),
        None => bail!(
            "no server is paired with this machine\n  hint: `mica remote invite` on the GPU's machine, then \
             `mica remote pair` here"
        ),
    }
}

fn list(args: &JsonArgs) -> Result<()> {
    let folder = Folder::from_environment()?;
    let (servers, clients) = (folder.servers()?, folder.clients()?);
    let identity = folder.identity()?;
    let status: Vec<_> = std::thread::scope(|scope| {
        let identity = &identity;
        let ask = |server| scope.spawn(move || client::status(identity, server));
        let asked: Vec<_> = servers.iter().map(|(_, server)| ask(server)).collect();
        asked.into_iter().map(|asked| asked.join().ok()).collect()
    });
    if args.json {
        let servers: Vec<_> = servers.iter().zip(&status).map(|((name, server), status)| match status {
            Some(Ok((took, version, client, gpus))) => json!({
                "name": name, "address": server.address, "reachable": true, "version": version,
                "known_there_as": client, "gpus": gpus, "round_trip_us": took.as_micros() as u64,
            }),
            Some(Err(error)) => json!({
                "name": name, "address": server.address, "reachable": false, "error": error.to_string(),
            }),
            None => json!({ "name": name, "address": server.address, "reachable": false }),
        }).collect();
        let clients: Vec<_> = clients.iter().map(|(name, client)| json!({
            "name": name, "paired_at": client.paired_at,
            "memory_bytes": client.allowance.memory_bytes, "share_percent": client.allowance.share_percent,
        })).collect();
        return print_json(&json!({ "servers": servers, "clients": clients }));
    }
    let mut table = Table::new(&["SERVER", "ADDRESS", "ROUND TRIP", "GPUS"]).cut(3);
    for ((name, server), status) in servers.iter().zip(status) {
        let (trip, gpus) = match status {
            Some(Ok((took, _, _, gpus))) => (
                format!("{:.2} ms", took.as_secs_f64() * 1e3),
                gpus.join(", "),
            ),
            Some(Err(error)) => ("-".into(), error.to_string()),
            None => ("-".into(), "-".into()),
        };
        table.row(vec![name.clone(), server.address.clone(), trip, gpus]);
    }
    match table.is_empty() {
        true => outln!("no servers (`mica remote pair` adds one)"),
        false => out!("{}", table.render()),
    }
    if !clients.is_empty() {
        let mut table = Table::new(&["CLIENT", "MOST MEMORY", "MOST SHARE"]);
        for (name, client) in clients {
            let most = client.allowance;
            table.row(vec![
                name,
                most.memory_bytes.map_or_else(|| "-".into(), show_bytes),
                most.share_percent
                    .map_or_else(|| "-".into(), |share| format!("{share} %")),
            ]);
        }
        out!("\n{}", table.render());
    }
    Ok(())
}

fn forget(names: &[String]) -> Result<()> {
    let folder = Folder::from_environment()?;
    for name in names {
        if !folder.remove_server(name)? {
            bail!(
                "no server is called {name}\n  hint: `mica remote revoke` removes a client of this machine"
            );
        }
    }
    Ok(())
}

fn revoke(names: &[String]) -> Result<()> {
    let folder = Folder::from_environment()?;
    for name in names {
        if !folder.remove_client(name)? {
            bail!("no client is called {name} (see `mica remote ls`)");
        }
    }
    Ok(())
}
