//! Moves the worker's memory when the daemon says so, and tells the daemon how far it is.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use mica_gpu::Gpu;
use mica_limits::HostLink;
use mica_memory::residency::Place;
use mica_swap::{Status, Swapper};
use mica_wire::host::message::{MemoryPlace, Residency, Severity};

use crate::{DeviceSource, OutputBuffer, WorkerError};

/// How often host memory is brought to the size of what can leave, so that none must be pinned on the way.
const PREPARE_EVERY: Duration = Duration::from_millis(200);
/// How often a device is complained about that has no room although there should be.
const COMPLAIN_EVERY: Duration = Duration::from_secs(5);

/// What the moving thread is told.
enum Order {
    Leave(u64),
    Return(u64),
    /// A call waits for memory that is away.
    Wanted,
}

/// The way to the thread that moves memory.
pub(crate) struct Swapping {
    swapper: Arc<Swapper>,
    orders: Sender<Order>,
}

/// Devices whose memory can leave.
struct SwapDevices {
    inner: Arc<dyn DeviceSource>,
    swapper: Arc<Swapper>,
}

impl DeviceSource for SwapDevices {
    fn open(&self, output: Arc<OutputBuffer>) -> Result<Arc<dyn Gpu>, WorkerError> {
        let device = self.inner.open(output)?;
        Ok(self.swapper.wrap(device))
    }
}

impl Swapping {
    /// Starts the thread.
    pub(crate) fn start(link: &Arc<HostLink>) -> Result<Self, WorkerError> {
        let (orders, told) = channel();
        let wanted = orders.clone();
        let swapper = Swapper::new(move || drop(wanted.send(Order::Wanted)));
        let mover = Mover {
            swapper: Arc::clone(&swapper),
            link: Arc::clone(link),
            order: AtomicU64::new(0),
        };
        std::thread::Builder::new()
            .name("swap".into())
            .spawn(move || mover.run(&told))
            .map_err(WorkerError::Thread)?;
        Ok(Self { swapper, orders })
    }

    pub(crate) fn devices(&self, inner: Arc<dyn DeviceSource>) -> Arc<dyn DeviceSource> {
        let swapper = Arc::clone(&self.swapper);
        Arc::new(SwapDevices { inner, swapper })
    }

    pub(crate) fn leave(&self, order: u64) {
        let _ = self.orders.send(Order::Leave(order));
    }

    pub(crate) fn come_back(&self, order: u64, floor_bytes: u64) {
        // At once: the thread may be on its way and wait for this.
        self.swapper.allow(floor_bytes);
        let _ = self.orders.send(Order::Return(order));
    }
}

/// The thread that moves memory.
struct Mover {
    swapper: Arc<Swapper>,
    link: Arc<HostLink>,
    /// The largest number of an order so far: a new daemon begins to count where the last one ended.
    order: AtomicU64,
}

impl Mover {
    fn run(&self, told: &Receiver<Order>) {
        let mut unprepared = false;
        loop {
            match told.recv_timeout(PREPARE_EVERY) {
                Ok(Order::Leave(order)) => self.leave(order),
                Ok(Order::Return(order)) => self.come_back(order),
                Ok(Order::Wanted) => self.report(self.swapper.status()),
                Err(RecvTimeoutError::Timeout) => {
                    let prepared = self.swapper.prepare();
                    if let Err(error) = &prepared
                        && !unprepared
                    {
                        let text = format!("host memory for swapping cannot be had yet: {error}");
                        self.link.note(Severity::Warning, &text);
                    }
                    unprepared = prepared.is_err();
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn leave(&self, order: u64) {
        self.order.fetch_max(order, AcqRel);
        if let Err(error) = self.swapper.leave(|status| self.report(status)) {
            let text = format!("memory cannot leave the GPU: {error}");
            self.link.note(Severity::Warning, &text);
        }
    }

    fn come_back(&self, order: u64) {
        self.order.fetch_max(order, AcqRel);
        let complained = std::cell::Cell::new(None::<Instant>);
        let trouble = |text: &str| {
            let is_news = (complained.get()).is_none_or(|at| at.elapsed() >= COMPLAIN_EVERY);
            if is_news {
                complained.set(Some(Instant::now()));
                let text = format!("memory cannot return to the GPU yet: {text}");
                self.link.note(Severity::Warning, &text);
            }
        };
        let report = |status| self.report(status);
        self.swapper.come_back(report, trouble, || false);
    }

    fn report(&self, status: Status) {
        self.link.moved(Residency {
            order: self.order.load(Acquire),
            place: match status.place {
                Place::Resident => MemoryPlace::Resident,
                Place::Leaving => MemoryPlace::Leaving,
                Place::Away => MemoryPlace::Away,
                Place::Returning => MemoryPlace::Returning,
            },
            out_bytes: status.out_bytes,
            floor_bytes: status.floor_bytes,
            pinned_bytes: status.pinned_bytes,
            moved_bytes: status.moved_bytes,
            wanted: status.wanted,
        });
    }
}
