//! What people type and what they see, as transcripts against a daemon of the test's own.

mod cdi;
mod completion;
mod doctor;
mod endings;
mod escapes;
mod events;
mod home;
mod listings;
mod logs;
mod programs;
mod serve;
mod vgpus;
mod views;
mod words;
