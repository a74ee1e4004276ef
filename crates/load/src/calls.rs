//! What each call costs the program that makes it: the figures that isolated mode is held to.
//!
//! Owns the calls and their timing. Does not compare: `mica bench gpu` runs the same load on the bare driver, in
//! isolated and in direct mode.

use std::ffi::{c_int, c_uint, c_void};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::driver::{Driver, DriverError, Handle, check};
use crate::micro::median;
use crate::pattern::{Load, LoadReport};

const MIB: usize = 1 << 20;
/// Launches right after a wait: fewer than any queue between the program and the GPU holds.
const BURST: u32 = 200;
/// More launches than any queue holds, so that the slowest part of the path sets the rate.
const BATCH: u32 = 100_000;
const GRAPH_KERNELS: u32 = 300;
/// Figures among which the time of the load is divided: ten calls, five copies in both directions, and two copies after a
/// launch.
const FIGURES: f64 = 22.0;

/// One thread that returns at once.
const PTX: &str = "\
.version 7.0
.target sm_75
.address_size 64

.visible .entry nothing(.param .u64 unused)
{
    ret;
}
\0";

/// Medians in microseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallCosts {
    /// One launch call of a burst that follows a wait.
    pub launch_call_us: f64,
    /// One launch of a batch of 100,000 and its share of the wait for all of them.
    pub batch_launch_us: f64,
    /// A launch and the wait for its end.
    pub launch_wait_us: f64,
    /// The query of an event that was reached long ago.
    pub event_query_us: f64,
    /// Recording an event on an idle stream, and queries until the event is reached.
    pub event_reached_us: f64,
    /// The launch of a graph of 300 empty kernels and the wait for its end.
    pub graph_us: f64,
    /// Allocation and free of 1 MiB.
    pub alloc_free_us: f64,
    /// Allocation and free of 1 MiB in the order of a stream, from a pool that holds the memory.
    pub pool_alloc_free_us: f64,
    /// Creation and destruction of a stream.
    pub stream_us: f64,
    /// Creation and destruction of an event.
    pub event_us: f64,
    /// Copies of 256 MiB and 1 MiB between pinned memory and the device.
    pub pinned: [CopyTimes; 2],
    /// Copies of 256 MiB, 1 MiB and 4 KiB between pageable memory and the device.
    pub pageable: [CopyTimes; 3],
    /// Copies of 256 bytes and 4 KiB of pageable memory to the device, each right after a launch.
    pub after_launch_us: [f64; 2],
}

/// Medians of one size in both directions.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CopyTimes {
    /// Bytes of each copy.
    pub bytes: usize,
    /// Microseconds to the device.
    pub to_device_us: f64,
    /// Microseconds from the device.
    pub from_device_us: f64,
}

pub(crate) fn run(driver: &Driver, load: &Load) -> Result<LoadReport, DriverError> {
    let caller = Caller {
        driver,
        function: driver.function(PTX, c"nothing")?,
        budget: Duration::from_secs_f64(load.seconds / FIGURES),
    };
    Ok(LoadReport {
        calls: Some(caller.measure()?),
        ..LoadReport::default()
    })
}

/// Makes the calls and times them.
struct Caller<'a> {
    driver: &'a Driver,
    function: Handle,
    /// Time for each figure.
    budget: Duration,
}

impl Caller<'_> {
    fn measure(&self) -> Result<CallCosts, DriverError> {
        let wait = || self.driver.synchronize();
        let nothing = || Ok(());
        let launch_call_us = self.per_call_us(BURST, || self.launch(), wait)?;
        let batch_launch_us = self.timed_us(1, || self.batch(), nothing)? / f64::from(BATCH);
        let launch_and_wait = || self.launch().and_then(|()| wait());
        let launch_wait_us = self.per_call_us(1, launch_and_wait, nothing)?;
        let event = self.driver.event()?;
        self.driver.record(event)?;
        wait()?;
        let query = || self.is_reached(event).map(drop);
        let event_query_us = self.per_call_us(1000, query, nothing)?;
        let event_reached_us = self.per_call_us(1, || self.reach(event), nothing)?;
        let graph = self.driver.graph(GRAPH_KERNELS, || self.launch())?;
        let launch_graph = || self.driver.launch_graph(graph).and_then(|()| wait());
        let graph_us = self.per_call_us(1, launch_graph, nothing)?;
        let alloc_free_us = self.per_call_us(20, || self.driver.alloc_and_free(MIB), nothing)?;
        // No wait between the samples: a wait returns the pool's memory to the driver.
        let pool_alloc_free_us = self.per_call_us(100, || self.pool_alloc_free(), nothing)?;
        wait()?;
        Ok(CallCosts {
            launch_call_us,
            batch_launch_us,
            launch_wait_us,
            event_query_us,
            event_reached_us,
            graph_us,
            alloc_free_us,
            pool_alloc_free_us,
            stream_us: self.per_call_us(1, || self.stream_life(), nothing)?,
            event_us: self.per_call_us(20, || self.event_life(), nothing)?,
            pinned: [self.pinned(256 * MIB)?, self.pinned(MIB)?],
            pageable: [
                self.pageable(256 * MIB)?,
                self.pageable(MIB)?,
                self.pageable(4096)?,
            ],
            after_launch_us: [self.after_launch(256)?, self.after_launch(4096)?],
        })
    }

    /// As `timed_us`, after `count` calls that warm up.
    fn per_call_us(
        &self,
        count: u32,
        mut call: impl FnMut() -> Result<(), DriverError>,
        mut after: impl FnMut() -> Result<(), DriverError>,
    ) -> Result<f64, DriverError> {
        for _ in 0..count {
            call()?;
        }
        after()?;
        self.timed_us(count, call, after)
    }

    /// The median of samples of `count` calls, in microseconds a call, for as long as the figure's time lasts. `after`
    /// is not timed.
    fn timed_us(
        &self,
        count: u32,
        mut call: impl FnMut() -> Result<(), DriverError>,
        mut after: impl FnMut() -> Result<(), DriverError>,
    ) -> Result<f64, DriverError> {
        let mut samples = Vec::new();
        let began = Instant::now();
        while samples.is_empty() || began.elapsed() < self.budget {
            let start = Instant::now();
            for _ in 0..count {
                call()?;
            }
            samples.push(start.elapsed().as_nanos() as f64 / 1e3 / f64::from(count));
            after()?;
        }
        Ok(median(samples))
    }

    fn launch(&self) -> Result<(), DriverError> {
        let mut unused = 0_u64;
        let params = [(&raw mut unused).cast()];
        self.driver.launch(self.function, 1, 1, params)
    }

    fn batch(&self) -> Result<(), DriverError> {
        for _ in 0..BATCH {
            self.launch()?;
        }
        self.driver.synchronize()
    }

    fn is_reached(&self, event: Handle) -> Result<bool, DriverError> {
        const NOT_READY: c_int = 600;
        // SAFETY: the handle is live.
        match unsafe { (self.driver.table.event_query)(event) } {
            NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    fn reach(&self, event: Handle) -> Result<(), DriverError> {
        self.driver.record(event)?;
        while !self.is_reached(event)? {
            std::hint::spin_loop();
        }
        Ok(())
    }

    fn pool_alloc_free(&self) -> Result<(), DriverError> {
        let (table, stream) = (&self.driver.table, self.driver.stream);
        let mut address = 0;
        // SAFETY: writes one address; the stream is live.
        let code = unsafe { (table.alloc_async)(&mut address, MIB, stream) };
        check("cuMemAllocAsync", code)?;
        // SAFETY: the address is an allocation's, and not used again.
        check("cuMemFreeAsync", unsafe {
            (table.free_async)(address, stream)
        })
    }

    fn stream_life(&self) -> Result<(), DriverError> {
        const NON_BLOCKING: c_uint = 1;
        let mut stream = std::ptr::null_mut();
        // SAFETY: writes one handle.
        let code = unsafe { (self.driver.table.stream_create)(&mut stream, NON_BLOCKING) };
        check("cuStreamCreate", code)?;
        // SAFETY: the handle is live and not used again.
        check("cuStreamDestroy", unsafe {
            (self.driver.table.stream_destroy)(stream)
        })
    }

    fn event_life(&self) -> Result<(), DriverError> {
        let event = self.driver.event()?;
        // SAFETY: the handle is live and not used again.
        check("cuEventDestroy", unsafe {
            (self.driver.table.event_destroy)(event)
        })
    }

    fn pinned(&self, bytes: usize) -> Result<CopyTimes, DriverError> {
        let memory = Pinned::new(self.driver, bytes)?;
        let (table, stream) = (&self.driver.table, self.driver.stream);
        self.copies(
            memory.pointer,
            bytes,
            |to, host| {
                // SAFETY: reads as many bytes as the host memory has, which lives until the wait is over.
                let code = unsafe { (table.send_async)(to, host, bytes, stream) };
                check("cuMemcpyHtoDAsync", code)?;
                self.driver.synchronize()
            },
            |host, from| {
                // SAFETY: writes as many bytes as the host memory has, which lives until the wait is over.
                let code = unsafe { (table.receive_async)(host, from, bytes, stream) };
                check("cuMemcpyDtoHAsync", code)?;
                self.driver.synchronize()
            },
        )
    }

    fn pageable(&self, bytes: usize) -> Result<CopyTimes, DriverError> {
        let mut memory = vec![0_u8; bytes];
        let table = &self.driver.table;
        self.copies(
            memory.as_mut_ptr().cast(),
            bytes,
            |to, host| {
                // SAFETY: reads as many bytes as the host memory has.
                let code = unsafe { (table.copy_to_device)(to, host, bytes) };
                check("cuMemcpyHtoD", code)
            },
            |host, from| {
                // SAFETY: writes as many bytes as the host memory has.
                let code = unsafe { (table.copy_from_device)(host, from, bytes) };
                check("cuMemcpyDtoH", code)
            },
        )
    }

    /// Times a synchronous copy to the device that finds a launch before it, on a stream that the copy need not wait for.
    fn after_launch(&self, bytes: usize) -> Result<f64, DriverError> {
        let memory = vec![1_u8; bytes];
        let device = self.driver.alloc(bytes)?;
        let copy = || {
            let table = &self.driver.table;
            // SAFETY: reads as many bytes as the host memory has.
            let code = unsafe { (table.copy_to_device)(device, memory.as_ptr().cast(), bytes) };
            check("cuMemcpyHtoD", code)
        };
        let copy_us = self.per_call_us(1, copy, || self.launch())?;
        self.driver.synchronize()?;
        self.driver.free(device)?;
        Ok(copy_us)
    }

    /// Times both directions, and checks that what comes back is what was sent.
    fn copies(
        &self,
        host: *mut c_void,
        bytes: usize,
        send: impl Fn(u64, *const c_void) -> Result<(), DriverError>,
        receive: impl Fn(*mut c_void, u64) -> Result<(), DriverError>,
    ) -> Result<CopyTimes, DriverError> {
        // A prime length: no two pieces of a copy have the same bytes at the same place.
        let pattern: Vec<u8> = (0..65_521_u32)
            .map(|index| (index % 251) as u8 + 1)
            .collect();
        // SAFETY: both callers' memory has so many bytes, is initialized, and nobody else uses it; the slice ends before
        // the driver is called.
        let contents = || unsafe { std::slice::from_raw_parts_mut(host.cast::<u8>(), bytes) };
        for piece in contents().chunks_mut(pattern.len()) {
            piece.copy_from_slice(&pattern[..piece.len()]);
        }
        let device = self.driver.alloc(bytes)?;
        let to_device_us = self.per_call_us(1, || send(device, host), || Ok(()))?;
        contents().fill(0);
        let from_device_us = self.per_call_us(1, || receive(host, device), || Ok(()))?;
        let mut pieces = contents().chunks(pattern.len()).enumerate();
        let wrong = pieces.find(|(_, piece)| **piece != pattern[..piece.len()]);
        self.driver.free(device)?;
        match wrong {
            Some((piece, _)) => Err(DriverError::Copied { bytes, piece }),
            None => Ok(CopyTimes {
                bytes,
                to_device_us,
                from_device_us,
            }),
        }
    }
}

/// Pinned memory, zeroed so that it may be read.
struct Pinned<'a> {
    driver: &'a Driver,
    pointer: *mut c_void,
}

impl<'a> Pinned<'a> {
    fn new(driver: &'a Driver, bytes: usize) -> Result<Self, DriverError> {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        let code = unsafe { (driver.table.host_alloc)(&mut pointer, bytes, 0) };
        check("cuMemHostAlloc", code)?;
        // SAFETY: the memory just made has so many bytes.
        unsafe { pointer.cast::<u8>().write_bytes(0, bytes) };
        Ok(Self { driver, pointer })
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and not used again; refused, it ends with the process.
        unsafe { (self.driver.table.host_free)(self.pointer) };
    }
}
