//! Moves all memory of a worker, as it is told.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use mica_gpu::{Gpu, Result};
use mica_memory::residency::Place;

use crate::device::SwapGpu;
use crate::door::Door;
use crate::growth::Growth;
use crate::guard::Tell;
use crate::moving::Step;

/// A device that cannot give memory although it is promised is asked again after this time.
const RETRY: Duration = Duration::from_millis(50);
/// How long a thread waits for more room before it looks whether its copies have ended: a tenth of the time that a card
/// takes to copy one part.
const COPY_LOOK: Duration = Duration::from_micros(100);

/// Where the memory of a worker is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// On the card or not.
    pub place: Place,
    /// Bytes that are away.
    pub out_bytes: u64,
    /// Bytes that may stay away: those beyond may come back.
    pub floor_bytes: u64,
    /// Bytes on the card that could leave.
    pub movable_bytes: u64,
    /// Bytes on the card that cannot.
    pub pinned_bytes: u64,
    /// Bytes moved so far, in both directions together.
    pub moved_bytes: u64,
    /// Whether a call waits for the memory.
    pub wanted: bool,
}

#[derive(Debug, Default)]
struct Orders {
    place: Place,
    floor_bytes: u64,
    moved_bytes: u64,
}

/// All devices of a worker. One thread moves at a time.
pub struct Swapper {
    door: Arc<Door>,
    growth: Arc<Growth>,
    devices: Mutex<Vec<Weak<SwapGpu>>>,
    orders: Mutex<Orders>,
    ordered: Condvar,
    moving: Mutex<()>,
}

impl std::fmt::Debug for Swapper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Swapper")
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Swapper {
    /// Of no devices yet; `wanted` is told when the first call waits for memory that is away.
    pub fn new(wanted: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            door: Arc::new(Door::new(Box::new(wanted))),
            growth: Arc::default(),
            devices: Mutex::default(),
            orders: Mutex::default(),
            ordered: Condvar::new(),
            moving: Mutex::default(),
        })
    }

    /// Makes the memory of a device movable.
    pub fn wrap(&self, gpu: Arc<dyn Gpu>) -> Arc<SwapGpu> {
        let standing = gpu.has_driver();
        self.wrap_as(gpu, standing, None)
    }

    /// As [`Swapper::wrap`], and each allocation ends at an unmapped page; `tell` is told what a kernel touched that faulted.
    pub fn wrap_guarded(
        &self,
        gpu: Arc<dyn Gpu>,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> Arc<SwapGpu> {
        let standing = gpu.has_driver();
        self.wrap_as(gpu, standing, Some(Box::new(tell)))
    }

    /// As [`Swapper::wrap`]; `standing`: host memory is pinned ahead.
    pub(crate) fn wrap_as(
        &self,
        gpu: Arc<dyn Gpu>,
        standing: bool,
        guard: Option<Tell>,
    ) -> Arc<SwapGpu> {
        let (door, growth) = (Arc::clone(&self.door), Arc::clone(&self.growth));
        let wrapped = Arc::new(SwapGpu::new(gpu, door, growth, standing, guard));
        let mut devices = lock(&self.devices);
        devices.retain(|device| device.strong_count() > 0);
        devices.push(Arc::downgrade(&wrapped));
        wrapped
    }

    fn devices(&self) -> Vec<Arc<SwapGpu>> {
        lock(&self.devices)
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Where the memory is now.
    pub fn status(&self) -> Status {
        let mut status = Status::default();
        for device in self.devices() {
            let sums = device.sums();
            status.out_bytes += sums.out;
            status.movable_bytes += sums.here;
            status.pinned_bytes += sums.pinned;
        }
        let orders = lock(&self.orders);
        status.place = orders.place;
        status.floor_bytes = orders.floor_bytes.min(status.out_bytes);
        status.moved_bytes = orders.moved_bytes;
        status.wanted = self.door.is_wanted();
        status
    }

    fn set_place(&self, place: Place) {
        lock(&self.orders).place = place;
    }

    fn count(&self, bytes: u64) {
        lock(&self.orders).moved_bytes += bytes;
    }

    /// Has host memory stand ready for all that can leave, and for so many bytes more of each device.
    ///
    /// # Errors
    /// There is not so much host memory.
    pub fn prepare(&self, ahead_bytes: u64) -> Result<()> {
        self.devices()
            .iter()
            .try_for_each(|device| device.grow_store(ahead_bytes))
    }

    /// Gives back device memory that pools keep without a piece in it, and host memory beyond what can leave and so many bytes
    /// more of each device.
    pub fn compact(&self, ahead_bytes: u64) {
        for device in self.devices() {
            device.compact(ahead_bytes);
        }
    }

    /// Gives back device memory that pools keep without a piece in it, where nothing was allocated since the last call.
    pub fn trim_if_idle(&self) {
        self.devices()
            .iter()
            .for_each(|device| device.trim_if_idle());
    }

    /// Waits until there is more to save than before, but no longer than so.
    pub fn wait_for_growth(&self, most: Duration) {
        self.growth.wait(most);
    }

    /// Has all memory leave, telling `report` after each part. What cannot leave stays; the first reason is returned.
    ///
    /// # Errors
    /// Some of it could not leave. Where even the work could not be stopped, nothing has moved.
    pub fn leave(&self, report: impl Fn(Status)) -> Result<()> {
        let _only_one = lock(&self.moving);
        if lock(&self.orders).place != Place::Resident {
            report(self.status());
            return Ok(());
        }
        {
            let mut orders = lock(&self.orders);
            (orders.place, orders.floor_bytes) = (Place::Leaving, u64::MAX);
        }
        // Calls that are in the door may take long: whoever watches sees that the order has come.
        report(self.status());
        self.door.close();
        let devices = self.devices();
        devices.iter().for_each(|device| device.set_hurry(true));
        if let Err(error) = devices.iter().try_for_each(|device| device.hold()) {
            devices.iter().for_each(|device| device.release());
            devices.iter().for_each(|device| device.set_hurry(false));
            self.set_place(Place::Resident);
            self.door.open();
            report(self.status());
            return Err(error);
        }
        // A program may wait for work that it has submitted, and say nothing more.
        if devices.iter().any(|device| device.has_work()) {
            self.door.want();
        }
        let mut first = Ok(());
        for device in &devices {
            loop {
                match device.step_out() {
                    Ok(Step::Moved(bytes)) => {
                        self.count(bytes);
                        report(self.status());
                    }
                    Ok(Step::Needs | Step::Copies | Step::Done) => break,
                    // The frame is marked; the next one may leave.
                    Err(error) => first = first.and(Err(error)),
                }
            }
        }
        devices.iter().for_each(|device| device.set_hurry(false));
        self.set_place(Place::Away);
        report(self.status());
        first
    }

    /// Lets memory come back until no more than `floor_bytes` are away; [`Swapper::come_back`] brings it.
    pub fn allow(&self, floor_bytes: u64) {
        let mut orders = lock(&self.orders);
        orders.floor_bytes = orders.floor_bytes.min(floor_bytes);
        self.ordered.notify_all();
    }

    /// Brings memory back as far as it is allowed, and waits for more to be allowed, until all is here. Tells `report`
    /// after each part, and `trouble` what the device says when it has no room although there should be.
    pub fn come_back(
        &self,
        report: impl Fn(Status),
        trouble: impl Fn(&str),
        over: impl Fn() -> bool,
    ) {
        let _only_one = lock(&self.moving);
        if lock(&self.orders).place != Place::Away {
            report(self.status());
            return;
        }
        self.set_place(Place::Returning);
        report(self.status());
        for device in &self.devices() {
            while !over() {
                match self.bring_back(device, &trouble) {
                    Brought::Something => report(self.status()),
                    Brought::Nothing => {}
                    Brought::All => break,
                }
            }
            device.set_hurry(false);
        }
        if over() {
            self.door.look();
            return;
        }
        self.devices().iter().for_each(|device| device.release());
        self.set_place(Place::Resident);
        report(self.status());
        self.door.open();
    }

    /// Brings one part back, or waits a moment.
    fn bring_back(&self, device: &SwapGpu, trouble: &impl Fn(&str)) -> Brought {
        let status = self.status();
        let room = status.out_bytes.saturating_sub(status.floor_bytes);
        device.set_hurry(true);
        match device.step_back(room) {
            Ok(Step::Moved(bytes)) => {
                self.count(bytes);
                Brought::Something
            }
            Ok(Step::Done) => Brought::All,
            Ok(Step::Copies) => {
                self.wait_for_room(status, COPY_LOOK);
                Brought::Nothing
            }
            Ok(Step::Needs) => {
                device.set_hurry(false);
                // Whoever closes a session meanwhile changes what is out: so not for ever.
                self.wait_for_room(status, RETRY);
                Brought::Something
            }
            Err(error) => {
                trouble(&error.to_string());
                std::thread::sleep(RETRY);
                Brought::Something
            }
        }
    }

    /// Waits until more may come back than at the time of a status.
    fn wait_for_room(&self, status: Status, most: Duration) {
        let orders = lock(&self.orders);
        if orders.floor_bytes.min(status.out_bytes) == status.floor_bytes {
            drop(self.ordered.wait_timeout(orders, most));
        }
    }
}

/// What became of one part of memory that comes back.
enum Brought {
    /// It came, or something changed.
    Something,
    /// Nothing has changed.
    Nothing,
    /// All of the device is here.
    All,
}
