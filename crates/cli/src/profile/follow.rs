//! Reads the lines of a profile while programs write them.

use std::fs::File;

use anyhow::Result;
use mica_views::profile::Recorded;

use crate::follower::{Follower, Lines};

/// The longest line that makes sense.
const LONGEST_LINE: usize = 64 << 10;

/// Begins reading what is appended to a file in memory.
pub(super) fn start(file: File) -> Result<Follower<Recorded>> {
    let reader = (Lines::new(file, LONGEST_LINE), Recorded::default());
    let read = |(lines, recorded): &mut (Lines, Recorded)| lines.read(|line| recorded.take(line));
    Follower::start("profile", reader, read, |(_, recorded)| recorded)
}
