//! Data of an open page: who had a GPU when; and how to open the page.

use serde::{Deserialize, Serialize};

/// How a process came to use the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TurnKind {
    /// It held the lease: nobody else of those under leases could submit.
    #[default]
    Lease,
    /// Its gate was open: it was alone, or the hardware's slices divided the time.
    Open,
}

/// A time in which one process of a virtual GPU had the GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Turn {
    /// Grows by one per turn of a GPU. A turn that has grown or ended is sent again under the same number.
    pub sequence: u64,
    /// The virtual GPU.
    pub vgpu: String,
    /// How it came to its turn.
    pub kind: TurnKind,
    /// Begin, on the clock of [`Turns::now_ns`].
    pub start_ns: u64,
    /// End; absent while it goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_ns: Option<u64>,
    /// How long the process had waited for it.
    #[serde(skip_serializing_if = "is_zero")]
    pub waited_ns: u64,
    /// GPU time within it, where that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_ns: Option<u64>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Turns of one GPU, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Turns {
    /// Index of the GPU.
    pub gpu: u32,
    /// The clock of the turns (CLOCK_MONOTONIC) when this was said.
    pub now_ns: u64,
    /// Seconds since the epoch when this was said.
    pub time_seconds: f64,
    /// Ask for what changes after this number next. It is not a sequence number.
    pub next: u64,
    /// Some turns after the number asked for are remembered no more.
    pub missed: bool,
    /// The turns.
    pub turns: Vec<Turn>,
}

/// Where the web page is, and how to sign in once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Dashboard {
    /// Address of the page, with a ticket that signs its first user in as the user who asked for it.
    pub url: String,
    /// Address without the ticket.
    pub page: String,
    /// Seconds for which the ticket is good.
    pub ticket_seconds: u64,
}

/// Who is signed in to the web page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Session {
    /// Name; empty for a user that `mica dashboard` signed in.
    pub name: String,
    /// The user whose rights hold.
    pub uid: u32,
    /// Whether this user may do everything.
    pub admin: bool,
    /// Second half of the session, which only the page's own origin can keep.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub page_key: String,
}
