//! A program's session with the worker of its virtual GPU.

use std::time::{Duration, Instant};

use mica_wire::session::SessionError;
use mica_wire::session::client::{SessionClient, WayBack};

use crate::link::reopen_session;
use crate::{Environment, LinkError, open_session};

/// How long a program looks for a worker that answers.
const PATIENCE: Duration = Duration::from_secs(10);
/// First pause between two tries; each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// Workers that may go before the program gives up: one that ends because it was idle is followed by
/// one that is not, but one that cannot start is followed by others that cannot.
const MOST_TRIES: u32 = 12;

/// Opens a session through the daemon. A worker that ends when nobody has used it for a while may do so
/// while the daemon hands it this program: then another is asked for.
///
/// # Errors
/// If the daemon refuses, or no worker answers.
pub fn connect_session(
    environment: &Environment,
    program: &str,
) -> Result<SessionClient, LinkError> {
    let began = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut attempt = 1;
    loop {
        let (_, socket) = open_session(environment)?;
        match SessionClient::connect(socket, program) {
            Ok(client) => {
                client.transport().attach_way_back(way_back(environment));
                return Ok(client);
            }
            Err(SessionError::Unanswered(_) | SessionError::Ended(_))
                if attempt < MOST_TRIES && began.elapsed() < PATIENCE => {}
            Err(error) => return Err(LinkError::Session(error)),
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
        attempt += 1;
    }
}

/// How a program finds the worker that goes on with its session after a snapshot: the daemon that made the snapshot may be
/// gone too, and is waited for.
fn way_back(environment: &Environment) -> WayBack {
    let environment = environment.clone();
    Box::new(move |session| match reopen_session(&environment, session) {
        Ok(socket) => Ok(Some(socket)),
        Err(LinkError::Parked(_) | LinkError::Busy(_) | LinkError::Connect { .. }) => Ok(None),
        Err(error) => Err(error.to_string()),
    })
}
