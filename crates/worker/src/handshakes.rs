//! Programs that have not said hello yet.
//!
//! A socket alone costs nothing but a thread that waits for its hello: no device, no address space, no place among
//! the sessions. Who opens many and says nothing displaces its own: a user has so many half handshakes, and all
//! users together have so many. The oldest of the user with the most goes first.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mica_wire::session::SessionError;
use mica_wire::session::server::Greeting;

/// Most half handshakes of one user.
const PER_USER: usize = 16;
/// Most half handshakes of a worker.
const IN_ALL: usize = 64;

/// The half handshakes of a worker, the oldest first.
#[derive(Default)]
pub(crate) struct Handshakes {
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    last: u64,
    /// Number, user and a second descriptor of the socket.
    list: Vec<(u64, u32, OwnedFd)>,
}

/// A place among the half handshakes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(u64);

impl Handshakes {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a socket of this user's process, and the place of another where there are too many.
    pub(crate) fn begin(&self, socket: BorrowedFd<'_>, user: u32) -> std::io::Result<Place> {
        let copy = socket.try_clone_to_owned()?;
        let mut pending = self.pending();
        let mut by_user = HashMap::<u32, usize>::new();
        for (_, user, _) in &pending.list {
            *by_user.entry(*user).or_default() += 1;
        }
        let most = by_user.iter().max_by_key(|(_, count)| **count);
        let displaced = match by_user.get(&user) {
            Some(own) if *own >= PER_USER => Some(user),
            _ if pending.list.len() >= IN_ALL => most.map(|(user, _)| *user),
            _ => None,
        };
        if let Some(displaced) = displaced
            && let Some(at) = pending
                .list
                .iter()
                .position(|(_, user, _)| *user == displaced)
        {
            let (_, _, socket) = pending.list.remove(at);
            // Its thread sees the end and goes.
            let _ = rustix::net::shutdown(socket.as_fd(), rustix::net::Shutdown::Both);
        }
        pending.last += 1;
        let number = pending.last;
        pending.list.push((number, user, copy));
        Ok(Place(number))
    }

    /// Waits for the hello; the place is free afterwards.
    pub(crate) fn receive(&self, place: Place, socket: OwnedFd) -> Result<Greeting, SessionError> {
        let greeting = Greeting::receive(socket);
        self.give_up(place);
        greeting
    }

    /// Frees a place.
    pub(crate) fn give_up(&self, place: Place) {
        self.pending()
            .list
            .retain(|(number, _, _)| *number != place.0);
    }
}
