//! The first words with a daemon: a process introduces itself and is let in or refused.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use mica_wire::host::frame::Frame;
use mica_wire::host::message::{
    ClientMessage, DaemonMessage, Introduction, PROTOCOL_VERSION, Refusal, Role,
};
use mica_wire::host::socket::{HostSocket, SocketError};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::{LinkError, Welcome};
use crate::{Environment, SharedPage};

/// How often a reader that nothing comes for looks at its descriptor.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(super) type Greeting = (HostSocket, Frame, Vec<OwnedFd>);

/// A connection to a daemon that has let this process in.
pub(super) type Admission = (HostSocket, Welcome, Vec<OwnedFd>);

/// Connects and introduces this process as one that was not known before.
pub(super) fn hello(environment: &Environment, role: Role) -> Result<Admission, LinkError> {
    admitted(greet(environment, role, None)?)
}

fn admitted((socket, answer, fds): Greeting) -> Result<Admission, LinkError> {
    match answer.read() {
        Ok(DaemonMessage::Refused { reason, text }) => Err(match reason {
            Refusal::Parked => LinkError::Parked(text.into()),
            Refusal::Busy => LinkError::Busy(text.into()),
            _ => LinkError::Refused(text.into()),
        }),
        Ok(message) => match Welcome::of(message) {
            Some(welcome) => Ok((socket, welcome, fds)),
            None => Err(LinkError::Unexpected(answer.kind())),
        },
        Err(_) => Err(LinkError::Unexpected(answer.kind())),
    }
}

/// Joins as a process that wants nothing but the connection.
pub(crate) fn hello_as(environment: &Environment, role: Role) -> Result<HostSocket, LinkError> {
    hello(environment, role).map(|(socket, ..)| socket)
}

/// Connects and introduces this process, whatever the daemon answers; with a page, as a process that an earlier daemon knew.
pub(super) fn greet(
    environment: &Environment,
    role: Role,
    resume: Option<(&SharedPage, u64)>,
) -> Result<Greeting, LinkError> {
    let Some((page, client_id)) = resume else {
        return say(
            environment,
            &ClientMessage::hello(role, environment.token),
            &[],
        );
    };
    let introduction = Introduction {
        role,
        version: PROTOCOL_VERSION,
        claimed_bytes: page.commands.granted_bytes.load(Acquire),
        client_id,
        token: environment.token,
    };
    let file = page.file().map_err(LinkError::Page)?;
    let hello = ClientMessage::Hello { introduction };
    say(environment, &hello, &[file.as_fd()])
}

/// Connects, says hello and waits for what the daemon says to it.
fn say(
    environment: &Environment,
    hello: &ClientMessage,
    fds: &[BorrowedFd<'_>],
) -> Result<Greeting, LinkError> {
    let connect = |source| LinkError::Connect {
        path: environment.socket.clone(),
        source,
    };
    let socket = HostSocket::connect(&environment.socket).map_err(connect)?;
    // The reader looks now and then whether its descriptor is still its own: a program that closes it does not wake the reader.
    let _ = set_socket_timeout(&socket, Timeout::Recv, Some(LOOK_EVERY));
    socket.send(hello, fds).map_err(connect)?;
    let (answer, fds) = first_answer(&socket).map_err(connect)?;
    Ok((socket, answer, fds))
}

/// What the daemon says to a hello, however long it takes.
fn first_answer(socket: &HostSocket) -> Result<(Frame, Vec<OwnedFd>), SocketError> {
    loop {
        match socket.receive() {
            Err(error) if error.would_block() => {}
            other => return other,
        }
    }
}

/// Connects as a program that wants a session with its virtual GPU's worker; the descriptor is the
/// session's socket.
pub fn open_session(environment: &Environment) -> Result<(Welcome, OwnedFd), LinkError> {
    let (_socket, welcome, fds) = hello(environment, Role::Program)?;
    match fds.into_iter().next() {
        Some(session) => Ok((welcome, session)),
        None => Err(LinkError::NoDescriptor),
    }
}

/// As [`open_session`], for a program whose session of this number is in a snapshot: the socket leads to the worker that goes
/// on with it.
pub(crate) fn reopen_session(
    environment: &Environment,
    session: u64,
) -> Result<OwnedFd, LinkError> {
    let hello = ClientMessage::hello_for_session(environment.token, session);
    let (_socket, _, fds) = admitted(say(environment, &hello, &[])?)?;
    fds.into_iter().next().ok_or(LinkError::NoDescriptor)
}
