//! A thread that copies contents of frames, one after the other.

use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use mica_gpu::{FrameCopy, Result};

use crate::error::bad_handle;

/// One copy.
pub(super) type Job = Box<dyn FnOnce() -> Result<()> + Send>;

/// The thread, which starts with the first copy and ends with this value.
#[derive(Debug, Default)]
pub(super) struct Copier {
    jobs: Mutex<Option<Sender<(u64, Job)>>>,
    copies: Arc<Copies>,
}

#[derive(Debug, Default)]
struct Copies {
    known: Mutex<Known>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Known {
    last: u64,
    /// Results of copies that nobody has asked for; `None` where the copy has not ended.
    results: HashMap<u64, Option<Result<()>>>,
}

impl Copies {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self) -> u64 {
        let mut known = self.known();
        known.last += 1;
        let number = known.last;
        known.results.insert(number, None);
        number
    }

    fn end(&self, number: u64, result: Result<()>) {
        self.known().results.insert(number, Some(result));
        self.ended.notify_all();
    }
}

impl Copier {
    /// Hands a copy to the thread, or copies here where there can be no thread.
    pub(super) fn begin(&self, job: Job) -> FrameCopy {
        let number = self.copies.add();
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.is_none() {
            *jobs = start(Arc::clone(&self.copies)).ok();
        }
        match &*jobs {
            // The thread ends with its channel only.
            Some(jobs) => drop(jobs.send((number, job))),
            None => self.copies.end(number, job()),
        }
        FrameCopy(number)
    }

    /// Whether a copy has ended; forgets the copy then.
    pub(super) fn ended(&self, copy: FrameCopy, wait: bool) -> Result<bool> {
        let mut known = self.copies.known();
        loop {
            match known.results.get(&copy.0) {
                None => return Err(bad_handle("copy of a frame", copy.0)),
                Some(Some(_)) => break,
                Some(None) if !wait => return Ok(false),
                Some(None) => {
                    let woken = self.copies.ended.wait(known);
                    known = woken.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
        let result = known.results.remove(&copy.0).flatten();
        result.unwrap_or(Ok(())).map(|()| true)
    }
}

fn start(copies: Arc<Copies>) -> std::io::Result<Sender<(u64, Job)>> {
    let (jobs, told) = channel::<(u64, Job)>();
    let thread = std::thread::Builder::new().name("mica-frames".to_owned());
    thread.spawn(move || {
        for (number, job) in told {
            copies.end(number, job());
        }
    })?;
    Ok(jobs)
}
