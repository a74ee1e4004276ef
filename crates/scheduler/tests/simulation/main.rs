//! The arbiter on a simulated GPU and clock.

mod limits;
mod shares;
mod simulator;
mod stops;
