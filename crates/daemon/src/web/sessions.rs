//! Who is signed in to the page.
//!
//! A session is a signed text with a user number and an end. It comes in two halves: a cookie that scripts cannot
//! read, and a key that the page keeps in storage of its own origin. Browsers send cookies to every port of a host,
//! so on a host with several users the cookie alone would reach other users' servers; the key does not.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mica_control::files;
use ring::hmac;

use super::secrets::{hex, new_token, random, same};
use crate::config::WebUser;

/// How long a ticket is good.
pub(super) const TICKET: Duration = Duration::from_secs(300);
/// How long a session lasts.
pub(super) const SESSION: Duration = Duration::from_secs(12 * 3600);
/// Most tickets of one user; the oldest goes.
const TICKETS_EACH: usize = 8;
/// Most tickets in all.
const TICKETS: usize = 1024;

/// Signed-out sessions that are remembered of one user; the oldest goes.
const ENDED_EACH: usize = 64;
/// Signed-out sessions that are remembered in all.
const ENDED: usize = 1024;
/// Length of a page's key.
const KEY_LEN: usize = 64;

/// Who a request comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SignedIn {
    pub(crate) uid: u32,
    /// Name of a configured user; empty for a user of this host.
    pub(crate) name: String,
}

/// Signs its bearer in once.
#[derive(Debug)]
struct Ticket {
    text: String,
    uid: u32,
    made: Instant,
}

/// Tickets and sessions.
#[derive(Debug)]
pub(super) struct Sessions {
    key_file: PathBuf,
    key: Mutex<Option<hmac::Key>>,
    tickets: Mutex<VecDeque<Ticket>>,
    /// Users and keys of pages that were signed out of before their session's end.
    ended: Mutex<VecDeque<(u32, String)>>,
    /// When a refusal was logged last, and how many were not since.
    refusals: Mutex<(Option<Instant>, u64)>,
}

impl Sessions {
    pub(super) fn new(key_file: PathBuf) -> Self {
        Self {
            key_file,
            key: Mutex::default(),
            tickets: Mutex::default(),
            ended: Mutex::default(),
            refusals: Mutex::default(),
        }
    }

    /// Ends the session of a user's page: copies of its two secrets open nothing from then on.
    pub(super) fn end(&self, uid: u32, page_key: &str) {
        if page_key.len() != KEY_LEN {
            return;
        }
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let own = |(of, _): &(u32, String)| *of == uid;
        if ended.iter().filter(|e| own(e)).count() >= ENDED_EACH
            && let Some(oldest) = ended.iter().position(own)
        {
            ended.remove(oldest);
        }
        if ended.len() >= ENDED {
            ended.pop_front();
        }
        ended.push_back((uid, page_key.to_owned()));
    }

    fn has_ended(&self, page_key: &str) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.iter().any(|(_, key)| same(key, page_key))
    }

    /// Logs that somebody was refused, once a second at most: nobody may fill the log by guessing.
    pub(super) fn log_refusal(&self, what: &str) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, more) = &mut *refusals;
        if last.is_some_and(|last| last.elapsed() < Duration::from_secs(1)) {
            *more += 1;
            return;
        }
        let more = match std::mem::take(more) {
            0 => String::new(),
            more => format!(" ({more} more since the last such line)"),
        };
        tracing::warn!("a sign-in to the web page was refused: {what}{more}");
        *last = Some(Instant::now());
    }

    /// A ticket for a user; nothing where the system has no random numbers.
    pub(super) fn ticket(&self, uid: u32) -> Option<String> {
        let text = new_token()?;
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.retain(|ticket| ticket.made.elapsed() < TICKET);
        let own = |ticket: &Ticket| ticket.uid == uid;
        if tickets.iter().filter(|t| own(t)).count() >= TICKETS_EACH
            && let Some(oldest) = tickets.iter().position(own)
        {
            tickets.remove(oldest);
        }
        if tickets.len() >= TICKETS {
            tickets.pop_front();
        }
        tickets.push_back(Ticket {
            text: text.clone(),
            uid,
            made: Instant::now(),
        });
        Some(text)
    }

    /// The user of a ticket, which is used up.
    pub(super) fn redeem(&self, text: &str) -> Option<u32> {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let found = tickets.iter().position(|ticket| same(&ticket.text, text))?;
        let ticket = tickets.remove(found)?;
        (ticket.made.elapsed() < TICKET).then_some(ticket.uid)
    }

    /// A session's two halves: the cookie and the page's key.
    pub(super) fn open(
        &self,
        who: &SignedIn,
        users: &[WebUser],
        now: u64,
    ) -> Option<(String, String)> {
        let end = now + SESSION.as_secs();
        let nonce = hex(&random()?[..8]);
        let text = format!("{}.{end}.{nonce}.{}", who.uid, who.name);
        let seal = self.seal("session", &text, binding(who, users)?)?;
        let cookie = format!("{text}.{seal}");
        let page_key = self.page_key(&cookie)?;
        Some((cookie, page_key))
    }

    /// The user of a session, if both halves are right, it has not ended and its user is still configured.
    pub(super) fn check(
        &self,
        cookie: &str,
        page_key: &str,
        users: &[WebUser],
        now: u64,
    ) -> Option<SignedIn> {
        let (text, seal) = cookie.rsplit_once('.')?;
        let mut parts = text.split('.');
        let who = SignedIn {
            uid: parts.next()?.parse().ok()?,
            name: {
                let end: u64 = parts.next()?.parse().ok()?;
                let _nonce = parts.next()?;
                if now >= end {
                    return None;
                }
                parts.next()?.to_owned()
            },
        };
        let wanted = self.seal("session", text, binding(&who, users)?)?;
        let both = same(&wanted, seal) & same(&self.page_key(cookie)?, page_key);
        (parts.next().is_none() && both && !self.has_ended(page_key)).then_some(who)
    }

    fn page_key(&self, cookie: &str) -> Option<String> {
        self.seal("page", cookie, "")
    }

    /// A signature of a text for a purpose. The parts are separated by bytes that none of them holds.
    fn seal(&self, purpose: &str, text: &str, binding: &str) -> Option<String> {
        let mut key = self.key.lock().unwrap_or_else(PoisonError::into_inner);
        if key.is_none() {
            *key = Some(hmac::Key::new(hmac::HMAC_SHA256, &self.load_key()?));
        }
        let message = format!("{purpose}\0{text}\0{binding}");
        let seal = hmac::sign(key.as_ref()?, message.as_bytes());
        Some(hex(seal.as_ref()))
    }

    /// The key that signs, which survives a restart so that open pages do.
    fn load_key(&self) -> Option<[u8; 32]> {
        let mut bytes = [0; 32];
        if let Ok(mut file) = files::open(&self.key_file)
            && file.read_exact(&mut bytes).is_ok()
        {
            return Some(bytes);
        }
        let bytes = random()?;
        let written = files::replace(&self.key_file).and_then(|mut file| file.write_all(&bytes));
        if let Err(failure) = written {
            tracing::warn!(
                "{} cannot be written, so sessions of the web page end with this daemon: {failure}",
                self.key_file.display()
            );
        }
        Some(bytes)
    }
}

/// What of the configuration a session depends on: it ends when its user's token is changed or removed.
fn binding<'a>(who: &SignedIn, users: &'a [WebUser]) -> Option<&'a str> {
    if who.name.is_empty() {
        return Some("");
    }
    let user = users
        .iter()
        .find(|user| user.name == who.name && user.uid == who.uid)?;
    Some(&user.token_sha256)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions() -> (tempfile::TempDir, Sessions) {
        let dir = tempfile::tempdir().unwrap();
        let sessions = Sessions::new(dir.path().join("dashboard.key"));
        (dir, sessions)
    }

    fn user(uid: u32) -> SignedIn {
        SignedIn {
            uid,
            name: String::new(),
        }
    }

    #[test]
    fn a_ticket_is_good_once() {
        let (_dir, sessions) = sessions();
        let ticket = sessions.ticket(7).unwrap();
        assert_eq!(sessions.redeem("x"), None);
        assert_eq!(sessions.redeem(&ticket), Some(7));
        assert_eq!(sessions.redeem(&ticket), None);
    }

    #[test]
    fn a_user_who_asks_for_many_tickets_takes_none_of_anothers() {
        let (_dir, sessions) = sessions();
        let other = sessions.ticket(8).unwrap();
        let first = sessions.ticket(7).unwrap();
        for _ in 0..TICKETS_EACH {
            sessions.ticket(7).unwrap();
        }
        assert_eq!(sessions.redeem(&first), None);
        assert_eq!(sessions.redeem(&other), Some(8));
    }

    #[test]
    fn a_session_needs_both_halves_unchanged_and_in_time() {
        let (_dir, sessions) = sessions();
        let (cookie, key) = sessions.open(&user(7), &[], 1000).unwrap();
        let check = |cookie: &str, key: &str, now| sessions.check(cookie, key, &[], now);
        assert_eq!(check(&cookie, &key, 1001), Some(user(7)));
        assert_eq!(check(&cookie, "", 1001), None);
        assert_eq!(check("", &key, 1001), None);
        assert_eq!(check(&cookie.replacen("7.", "0.", 1), &key, 1001), None);
        assert_eq!(check(&cookie, &key, 1000 + SESSION.as_secs()), None);
        let (other, other_key) = sessions.open(&user(7), &[], 1000).unwrap();
        assert_eq!(check(&other, &key, 1001), None, "another session's key");
        assert_eq!(check(&cookie, &other_key, 1001), None);
    }

    #[test]
    fn a_user_who_signs_out_often_revives_no_session_of_another() {
        let (_dir, sessions) = sessions();
        let (cookie, key) = sessions.open(&user(7), &[], 1000).unwrap();
        sessions.end(7, &key);
        for number in 0..2 * ENDED {
            sessions.end(8, &format!("{number:064}"));
        }
        sessions.end(8, "short");
        assert_eq!(sessions.check(&cookie, &key, &[], 1001), None);
        assert_eq!(sessions.ended.lock().unwrap().len(), 1 + ENDED_EACH);
    }

    #[test]
    fn a_session_survives_a_restart_and_another_key_ends_it() {
        let (dir, first) = sessions();
        let (cookie, key) = first.open(&user(7), &[], 1000).unwrap();
        let file = dir.path().join("dashboard.key");
        let restarted = Sessions::new(file.clone());
        assert!(restarted.check(&cookie, &key, &[], 1001).is_some());
        use std::os::unix::fs::MetadataExt;
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        std::fs::remove_file(&file).unwrap();
        let renewed = Sessions::new(file);
        assert!(renewed.check(&cookie, &key, &[], 1001).is_none());
    }

    #[test]
    fn the_session_of_a_configured_user_ends_with_the_token() {
        let (_dir, sessions) = sessions();
        let ann = |digest: &str| WebUser {
            name: "ann".into(),
            uid: 7,
            token_sha256: digest.repeat(64),
        };
        let who = SignedIn {
            uid: 7,
            name: "ann".into(),
        };
        let (cookie, key) = sessions.open(&who, &[ann("a")], 1000).unwrap();
        assert_eq!(sessions.check(&cookie, &key, &[ann("a")], 1001), Some(who));
        assert_eq!(sessions.check(&cookie, &key, &[ann("b")], 1001), None);
        assert_eq!(sessions.check(&cookie, &key, &[], 1001), None);
    }
}
