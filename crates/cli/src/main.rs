//! The `mica` command.

fn main() {}
