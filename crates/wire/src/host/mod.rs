//! Between the daemon and the processes whose use of a GPU it limits.
//!
//! One `SOCK_SEQPACKET` connection per process, messages ([`message`]) in frames of one size ([`frame`]), and one shared
//! page per client ([`page`]) for what must not cost a system call.
//!
//! ```text
//!   program / worker                                daemon
//!      │ Hello{role, token}  ──────────────────────► who is this? (peer credentials, token)
//!      │ ◄────────── Welcome{limits} + fds [page, doorbell]
//!      │ charge: credit in the page, one atomic      (maps the same page)
//!      │ NeedCredit{bytes}   ──────────────────────► ledger
//!      │ ◄────────── Credit{granted}
//!      │ gate in the page ◄───────────────────────── leases   (futex)
//!      │ command in the page ◄────────────────────── slices, suspend, resize (futex)
//!      │ doorbell (eventfd)  ──────────────────────► "look at my page": yielded, context made
//!      ╳ closed socket       ──────────────────────► everything it held returns
//! ```

pub mod frame;
pub mod message;
pub mod namespace;
pub mod page;
pub mod peer;
pub mod printable;
pub mod socket;
