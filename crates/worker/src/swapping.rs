//! Moves the worker's memory when the daemon says so, and tells the daemon how far it is.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mica_gpu::Gpu;
use mica_limits::HostLink;
use mica_memory::residency::Place;
use mica_swap::{Status, Swapper};
use mica_wire::host::message::{MemoryPlace, Residency, Severity};

use crate::guarding;
use crate::{DeviceSource, OutputBuffer, WorkerError};

/// Host memory stands ready for what can leave and so much more, so that a program that has just begun can leave too.
const AHEAD_BYTES: u64 = 256 << 20;
/// How often host memory is brought to that size even if nobody says that it is needed.
const PREPARE_EVERY: Duration = Duration::from_secs(1);
/// A pool in which nothing was allocated for this time gives back what it keeps for later.
const TRIM_EVERY: Duration = Duration::from_secs(10);
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
    ahead_bytes: u64,
    /// Who is told of kernels that fault, where allocations are guarded.
    guard: Option<Arc<HostLink>>,
}

/// Devices whose memory can leave.
struct SwapDevices {
    inner: Arc<dyn DeviceSource>,
    swapper: Arc<Swapper>,
    guard: Option<Arc<HostLink>>,
}

impl DeviceSource for SwapDevices {
    fn open(&self, output: Arc<OutputBuffer>) -> Result<Arc<dyn Gpu>, WorkerError> {
        Ok(self.wrap(self.inner.open(output)?))
    }

    fn open_at(
        &self,
        output: Arc<OutputBuffer>,
        address_space: (u64, u64),
    ) -> Result<Arc<dyn Gpu>, WorkerError> {
        Ok(self.wrap(self.inner.open_at(output, address_space)?))
    }
}

impl SwapDevices {
    fn wrap(&self, device: Arc<dyn Gpu>) -> Arc<dyn Gpu> {
        match &self.guard {
            Some(link) => guarding::guarded(&self.swapper, link, device),
            None => self.swapper.wrap(device),
        }
    }
}

impl Swapping {
    /// Starts the thread.
    pub(crate) fn start(link: &Arc<HostLink>, guard: bool) -> Result<Self, WorkerError> {
        let (orders, told) = channel();
        let wanted = orders.clone();
        let swapper = Swapper::new(move || drop(wanted.send(Order::Wanted)));
        let mover = Mover {
            swapper: Arc::clone(&swapper),
            link: Arc::clone(link),
            order: AtomicU64::new(0),
        };
        let ahead_bytes = AHEAD_BYTES.min(link.welcome().limit_bytes);
        let keeper = Keeper {
            swapper: Arc::downgrade(&swapper),
            link: Arc::clone(link),
            ahead_bytes,
        };
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        thread("swap")
            .spawn(move || mover.run(&told))
            .map_err(WorkerError::Thread)?;
        thread("swap-host")
            .spawn(move || keeper.run())
            .map_err(WorkerError::Thread)?;
        Ok(Self {
            swapper,
            orders,
            ahead_bytes,
            guard: guard.then(|| Arc::clone(link)),
        })
    }

    pub(crate) fn devices(&self, inner: Arc<dyn DeviceSource>) -> Arc<dyn DeviceSource> {
        let swapper = Arc::clone(&self.swapper);
        let guard = self.guard.clone();
        Arc::new(SwapDevices {
            inner,
            swapper,
            guard,
        })
    }

    /// What gives back memory that is kept for later.
    pub(crate) fn compacting(&self) -> impl Fn() + Send + use<> {
        let (swapper, ahead_bytes) = (Arc::clone(&self.swapper), self.ahead_bytes);
        move || swapper.compact(ahead_bytes)
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
    /// The largest number of an order so far: numbers of a new daemon are larger than those of the last one.
    order: AtomicU64,
}

impl Mover {
    fn run(&self, told: &Receiver<Order>) {
        // So that a later daemon hears of this worker's memory, even if it never moves.
        self.report(self.swapper.status());
        for order in told {
            match order {
                Order::Leave(order) => self.leave(order),
                Order::Return(order) => self.come_back(order),
                Order::Wanted => self.report(self.swapper.status()),
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

/// The thread that has host memory stand ready. Memory leaves without waiting for it: what is ready is used first.
struct Keeper {
    swapper: Weak<Swapper>,
    link: Arc<HostLink>,
    ahead_bytes: u64,
}

impl Keeper {
    fn run(&self) {
        let mut unprepared = false;
        let mut trimmed = Instant::now();
        while let Some(swapper) = self.swapper.upgrade() {
            let prepared = swapper.prepare(self.ahead_bytes);
            if let Err(error) = &prepared
                && !unprepared
            {
                let text = format!("host memory for swapping cannot be had yet: {error}");
                self.link.note(Severity::Warning, &text);
            }
            unprepared = prepared.is_err();
            if trimmed.elapsed() >= TRIM_EVERY {
                trimmed = Instant::now();
                swapper.trim_if_idle();
            }
            swapper.wait_for_growth(PREPARE_EVERY);
        }
    }
}
