//! What people type and what they see, as transcripts against a daemon of the test's own.

mod doctor;
mod escapes;
mod home;
mod programs;
mod vgpus;
mod words;
