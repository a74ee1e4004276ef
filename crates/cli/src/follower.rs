//! A thread that reads a file again and again while programs append to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

/// Time between two looks at the file.
const PAUSE: Duration = Duration::from_millis(50);

/// The thread, and what tells it that nothing more will be written.
pub(crate) struct Follower<T> {
    thread: JoinHandle<T>,
    over: Arc<AtomicBool>,
}

impl<T: Default + Send + 'static> Follower<T> {
    /// Begins reading: `read` reads what is new, `result` is what all of it came to.
    pub(crate) fn start<R: Send + 'static>(
        name: &str,
        mut reader: R,
        read: impl Fn(&mut R) + Send + 'static,
        result: impl FnOnce(R) -> T + Send + 'static,
    ) -> Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let last = Arc::clone(&over);
        let run = move || {
            loop {
                // Asked first, so that what was written before the end is read.
                let is_over = last.load(Ordering::Acquire);
                read(&mut reader);
                if is_over {
                    return result(reader);
                }
                std::thread::sleep(PAUSE);
            }
        };
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(run)
            .with_context(|| format!("the thread {name:?} cannot be started"))?;
        Ok(Self { thread, over })
    }

    /// Reads the rest.
    pub(crate) fn finish(self) -> T {
        self.over.store(true, Ordering::Release);
        self.thread.join().unwrap_or_default()
    }
}
