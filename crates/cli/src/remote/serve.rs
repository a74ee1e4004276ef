//! `mica serve`: a listener that starts a process for each connection.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use mica_limits::Environment;
use mica_remote::folder::Folder;
use mica_remote::handover::{Arrivals, Sessions};
use mica_remote::hello::Purpose;
use mica_remote::invite::with_port;
use mica_remote::server::Server;
use mica_remote::{listener, ticket};
use mica_wire::host::printable::printable;

use crate::args::ServeArgs;
use crate::control;
use mica_command::child::{ends_with_us, own_path};

/// The variable with the key of tickets, for processes that this one starts.
const KEY: &str = "MICA_SERVE_KEY";

/// What clients are granted; the process of each connection is told.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// Seconds that a broken connection is waited for.
    pub(crate) resume_seconds: u32,
    /// Bytes of a client's uploads that are kept.
    pub(crate) upload_bytes: u64,
}

impl Terms {
    fn words(self) -> [String; 4] {
        let (resume, uploads) = (self.resume_seconds, self.upload_bytes);
        [
            "--resume".into(),
            resume.to_string(),
            "--keep-uploads".into(),
            uploads.to_string(),
        ]
    }
}

/// Serves until it is ended.
pub(crate) fn serve(args: &ServeArgs) -> Result<()> {
    let listener = match args.inherited {
        true => {
            let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
            TcpListener::from(socket)
        }
        false => listen(&args.listen)?,
    };
    let terms = Terms {
        resume_seconds: args.resume,
        upload_bytes: args.keep_uploads,
    };
    if let (Some(user), false) = (&args.user, args.inherited) {
        return serve_as(user, terms, listener);
    }
    let folder = Folder::from_environment()?;
    let identity = folder.identity()?;
    // Clients wait for a daemon, so one is started before they come.
    control::connect()?;
    let address = listener.local_addr()?;
    errln!(
        "mica: serving this host's GPUs at {address} to {} paired clients",
        folder.clients()?.len()
    );
    let fingerprint: String = identity
        .fingerprint()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    errln!("mica: certificate {fingerprint}; `mica remote invite` pairs a machine");
    let key = ticket::fresh_key()?;
    let exe = own_path()?;
    let sessions = Arc::new(Sessions::default());
    let known = Arc::clone(&sessions);
    let serve = move |stream: TcpStream, purpose| {
        if let Err(error) = serve_one(&exe, &key, &known, terms, stream, purpose) {
            errln!("mica: no process for a connection: {error:#}");
        }
    };
    listener::run(&listener, &sessions, serve, |line| {
        errln!("mica: {}", printable(&line))
    });
    Ok(())
}

/// Listens at an address, which has the usual port if it names none.
fn listen(address: &str) -> Result<TcpListener> {
    // A free port is asked for with number 0, which is no address of a server.
    let with_port = match address.ends_with(":0") {
        true => address.to_owned(),
        false => with_port(address).with_context(|| format!("--listen {address}"))?,
    };
    TcpListener::bind(&with_port).map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::AddrInUse => {
                "\n  hint: another program, perhaps another `mica serve`, listens there"
            }
            ErrorKind::AddrNotAvailable => {
                "\n  hint: this machine has no such address; 0.0.0.0 is all that it has"
            }
            _ => "",
        };
        anyhow!("--listen {address}: cannot listen there: {error}{hint}")
    })
}

/// Starts a process for a connection and waits for its end.
fn serve_one(
    exe: &std::path::Path,
    key: &ticket::ServeKey,
    sessions: &Arc<Sessions>,
    terms: Terms,
    stream: TcpStream,
    purpose: Purpose,
) -> Result<()> {
    if purpose != Purpose::Pair {
        // The process itself can start none; it tells the client if there is none.
        let _ = control::connect();
    }
    let mut command = Command::new(exe);
    command.arg("serve-connection");
    if purpose == Purpose::Pair {
        command.arg("--pair");
    }
    let (first, second) = key.split_at(16);
    let hex = |half: &[u8]| -> String { half.iter().map(|b| format!("{b:02x}")).collect() };
    command
        .env(KEY, hex(first) + &hex(second))
        .args(terms.words())
        .stdin(Stdio::from(OwnedFd::from(stream)))
        // New connections of the session come over it.
        .stdout(Stdio::from(sessions.attach()?));
    // The thread that starts it waits for it, so the signal comes when this process ends.
    let mut child = ends_with_us(&mut command, libc::SIGTERM).spawn()?;
    drop(command);
    child.wait()?;
    Ok(())
}

/// Serves one connection, which is the standard input.
pub(crate) fn connection(pair: bool, terms: Terms) -> Result<()> {
    let key = std::env::var(KEY).ok().and_then(|key| {
        let (first, second) = key.split_at_checked(32)?;
        let halves = [first, second].map(Environment::parse_token);
        let key = [halves[0]?, halves[1]?].concat();
        key.try_into().ok()
    });
    let Some(key) = key else {
        bail!("mica serve-connection is started by `mica serve`");
    };
    let folder = Folder::from_environment()?;
    // Before the first byte of the peer is read by this process.
    mica_jail::enter_for_connection(folder.root())?;
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    let stream = TcpStream::from(socket);
    let from = stream
        .peer_addr()
        .context("standard input is not a TCP connection")?;
    // `mica serve` has started a daemon if there was none: nothing can be started from here.
    let connect = || Ok(control::connect_existing());
    let log = |line: &str| errln!("mica: {}", printable(line));
    let handover = std::io::stdout().as_fd().try_clone_to_owned()?;
    let arrivals = Arrivals::new(handover).context("`mica serve` starts this command")?;
    let server = Server {
        folder: &folder,
        key,
        control: &connect,
        log: &log,
        arrivals: Some(&arrivals),
        resume_within: Duration::from_secs(terms.resume_seconds.into()),
        upload_bytes: terms.upload_bytes,
    };
    let purpose = match pair {
        true => Purpose::Pair,
        false => Purpose::Use,
    };
    if let Err(error) = server.serve(stream, purpose) {
        let error = anyhow::Error::new(error);
        log(&format!("{from} was refused: {error:#}"));
    }
    Ok(())
}

/// Goes on as another user, with the socket that is there already.
fn serve_as(user: &str, terms: Terms, listener: TcpListener) -> Result<()> {
    let passwd = std::fs::read_to_string("/etc/passwd").context("/etc/passwd cannot be read")?;
    let entry = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(user)).then_some(())?;
        let mut fields = fields.skip(1);
        let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let home = fields.nth(1)?.to_owned();
        Some((uid, gid, home))
    });
    let (uid, gid, home): (u32, u32, String) =
        entry.ok_or_else(|| anyhow!("--user {user}: there is no such user"))?;
    let mut command = Command::new(own_path()?);
    command
        .args(["serve", "--inherited"])
        .args(terms.words())
        .env("HOME", home)
        .env_remove("XDG_RUNTIME_DIR")
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .uid(uid)
        .gid(gid);
    Err(command.exec())
        .with_context(|| format!("--user {user}: this process cannot become that user"))
}
