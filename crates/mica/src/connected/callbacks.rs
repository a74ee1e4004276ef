//! Host functions in streams: the worker tells when one is due, and a thread of this process runs it.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use mica_gpu::{GraphCallback, HostCallback};
use mica_wire::session::client::SessionClient;

use super::lock;
use crate::{Error, Result};

/// How often the thread for host functions looks whether it is still needed.
const NOTICE: Duration = Duration::from_millis(200);

/// A host function.
enum Function {
    Once(HostCallback),
    /// Of a graph, at each of its launches.
    Often(GraphCallback),
}

/// Host functions that wait for their turn.
#[derive(Default)]
pub(super) struct Callbacks {
    next: AtomicU64,
    pending: Mutex<HashMap<u64, Function>>,
    has_thread: Mutex<bool>,
}

impl Callbacks {
    /// Keeps a function until it is due; the number it is known by.
    pub(super) fn keep(
        this: &Arc<Self>,
        client: &Arc<SessionClient>,
        function: HostCallback,
    ) -> Result<u64> {
        Self::add(this, client, Function::Once(function))
    }

    /// Keeps a function that is due again and again, until it is forgotten.
    pub(super) fn keep_for_often(
        this: &Arc<Self>,
        client: &Arc<SessionClient>,
        function: &GraphCallback,
    ) -> Result<u64> {
        Self::add(this, client, Function::Often(Arc::clone(function)))
    }

    fn add(this: &Arc<Self>, client: &Arc<SessionClient>, function: Function) -> Result<u64> {
        Self::start(this, client)?;
        let number = this.next.fetch_add(1, Relaxed) + 1;
        lock(&this.pending).insert(number, function);
        Ok(number)
    }

    /// Drops a function that will not be due.
    pub(super) fn forget(&self, number: u64) {
        lock(&self.pending).remove(&number);
    }

    /// A function that is due.
    fn due(&self, number: u64) -> Option<HostCallback> {
        let mut pending = lock(&self.pending);
        match pending.get(&number)? {
            Function::Often(make) => {
                let make = Arc::clone(make);
                drop(pending);
                Some(make())
            }
            Function::Once(_) => match pending.remove(&number)? {
                Function::Once(function) => Some(function),
                Function::Often(_) => None,
            },
        }
    }

    fn start(this: &Arc<Self>, client: &Arc<SessionClient>) -> Result<()> {
        let mut has_thread = lock(&this.has_thread);
        if *has_thread {
            return Ok(());
        }
        let (client, callbacks) = (Arc::downgrade(client), Arc::downgrade(this));
        let run = move || while serve(&client, &callbacks) {};
        std::thread::Builder::new()
            .name("mica-callbacks".into())
            .spawn(run)
            .map_err(|error| Error::Argument(format!("no thread for host functions: {error}")))?;
        *has_thread = true;
        Ok(())
    }
}

/// Runs host functions that are due; `false` when nobody needs it any more.
fn serve(client: &Weak<SessionClient>, callbacks: &Weak<Callbacks>) -> bool {
    let (Some(client), Some(callbacks)) = (client.upgrade(), callbacks.upgrade()) else {
        return false;
    };
    match client.next_notice(NOTICE) {
        Ok(Some(callback)) => {
            if let Some(function) = callbacks.due(callback) {
                // A function that panics must not leave its stream waiting for ever.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(function));
            }
            client.callback_done(callback).is_ok()
        }
        Ok(None) => true,
        Err(_) => {
            // The session is over: whoever waits for a function learns it by its drop.
            lock(&callbacks.pending).clear();
            false
        }
    }
}
