//! How long operations take, which kernels compute them, and how much they do. Recorded inside [`Ops::timings`] alone.
//!
//! An operation that a user calls is one entry, whatever operations it is made of. Each launch has an event before and one after
//! it; times are read when all is done.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mica::{Event, Stream, Vgpu};

use crate::{Ops, Result, Tensor};

/// A kernel of an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTime {
    /// Its name; for a library's kernel the library and the number of the algorithm.
    pub name: String,
    /// Seconds between the events around its launch.
    pub seconds: f64,
}

/// What an operation took.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationTime {
    /// Name of the function of [`Ops`].
    pub operation: &'static str,
    /// Whose kernels computed it: `mica`, or a library of the user for all or some of it.
    pub provider: &'static str,
    /// Its kernels, in the order of their launches.
    pub kernels: Vec<KernelTime>,
    /// Seconds on the device: all its kernels together.
    pub seconds: f64,
    /// Bytes of its inputs and results, each counted once, whatever the kernels read again.
    pub bytes: u64,
    /// Multiplications and additions of products, convolutions and attention, and steps of expressions; 0 for an operation that is
    /// bound by memory.
    pub flops: u64,
}

fn rate(amount: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        amount as f64 / seconds
    } else {
        0.0
    }
}

impl OperationTime {
    /// Bytes in a second.
    pub fn bytes_per_second(&self) -> f64 {
        rate(self.bytes, self.seconds)
    }

    /// Floating-point operations in a second, or those of integers.
    pub fn flops_per_second(&self) -> f64 {
        rate(self.flops, self.seconds)
    }
}

impl fmt::Display for OperationTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (operation, provider) = (self.operation, self.provider);
        let milliseconds = self.seconds * 1e3;
        let gigabytes = self.bytes_per_second() / 1e9;
        write!(f, "{operation} {milliseconds:.3} ms, {gigabytes:.1} GB/s")?;
        if self.flops > 0 {
            write!(f, ", {:.1} GFLOP/s", self.flops_per_second() / 1e9)?;
        }
        let mut names: Vec<&str> = self
            .kernels
            .iter()
            .map(|kernel| kernel.name.as_str())
            .collect();
        names.dedup();
        write!(f, ", {provider}: {}", names.join(", "))
    }
}

/// A launch between two events.
struct Launched {
    name: String,
    start: Event,
    end: Event,
}

/// An operation whose kernels may not have run yet.
struct Recorded {
    operation: &'static str,
    provider: &'static str,
    launches: Vec<Launched>,
    bytes: u64,
    flops: u64,
}

#[derive(Default)]
struct Log {
    operations: Vec<Recorded>,
    /// Operations that are under way: the outermost one and those it is made of.
    depth: usize,
    /// Launches are measurements of the tuner.
    is_paused: bool,
}

/// What a closure's operations launch.
pub(crate) struct Recorder {
    vgpu: Vgpu,
    log: Mutex<Log>,
}

impl Recorder {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a launch between two events, where it belongs to an operation.
    pub(crate) fn around<E: From<mica::Error>>(
        &self,
        stream: &Stream,
        provider: Option<&'static str>,
        name: impl FnOnce() -> String,
        launch: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let counts = {
            let log = self.log();
            log.depth > 0 && !log.is_paused
        };
        if !counts {
            return launch();
        }
        let (start, end) = (self.vgpu.event()?, self.vgpu.event()?);
        start.record(stream)?;
        launch()?;
        end.record(stream)?;
        let name = name();
        if let Some(operation) = self.log().operations.last_mut() {
            operation.provider = provider.unwrap_or(operation.provider);
            operation.launches.push(Launched { name, start, end });
        }
        Ok(())
    }

    fn times(&self) -> Result<Vec<OperationTime>> {
        let operations = std::mem::take(&mut self.log().operations);
        let launched = operations
            .into_iter()
            .filter(|operation| !operation.launches.is_empty());
        launched.map(Recorded::time).collect()
    }
}

impl Recorded {
    fn time(self) -> Result<OperationTime> {
        let mut kernels = Vec::with_capacity(self.launches.len());
        for launched in self.launches {
            let milliseconds = launched.end.elapsed_since_ms(&launched.start)?;
            kernels.push(KernelTime {
                name: launched.name,
                seconds: f64::from(milliseconds) / 1e3,
            });
        }
        Ok(OperationTime {
            operation: self.operation,
            provider: self.provider,
            seconds: kernels.iter().map(|kernel| kernel.seconds).sum(),
            kernels,
            bytes: self.bytes,
            flops: self.flops,
        })
    }
}

/// Bytes of the elements that a tensor has: one that is repeated along an axis counts once.
fn bytes(tensors: &[&Tensor]) -> u64 {
    let one = |tensor: &&Tensor| {
        let axes = tensor.shape().iter().zip(tensor.strides());
        let own = axes.map(|(size, stride)| if *stride == 0 { (*size).min(1) } else { *size });
        tensor.dtype().bytes_of(own.product()) as u64
    };
    tensors.iter().map(one).sum()
}

/// An operation that is under way; without a recorder nothing.
pub(crate) struct Timed<'a>(Option<&'a Recorder>);

impl Timed<'_> {
    fn change(&self, change: impl FnOnce(&mut Recorded)) {
        let Some(recorder) = self.0 else { return };
        let mut log = recorder.log();
        // What operations of this one do is a part of what it does.
        if log.depth == 1
            && let Some(operation) = log.operations.last_mut()
        {
            change(operation);
        }
    }

    /// Counts tensors that are read or written.
    pub(crate) fn moves(&self, tensors: &[&Tensor]) {
        self.change(|operation| operation.bytes += bytes(tensors));
    }

    /// Counts operations on numbers.
    pub(crate) fn computes(&self, flops: impl FnOnce() -> u64) {
        self.change(|operation| operation.flops += flops());
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        if let Some(recorder) = self.0 {
            recorder.log().depth -= 1;
        }
    }
}

/// A time in which launches are not recorded.
pub(crate) struct Paused<'a>(Option<&'a Recorder>);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        if let Some(recorder) = self.0 {
            recorder.log().is_paused = false;
        }
    }
}

impl Ops {
    /// What the operations inside a closure took, each with the kernels that computed it, and the closure's result. The operations
    /// have to be called on the [`Ops`] that the closure is given; others are not recorded. Waits for them.
    ///
    /// The device's own clock measures: on the software GPU a time is that of the kernel; on a card a kernel of a few microseconds
    /// takes as long as its launch. A kernel's first run may include its translation.
    ///
    /// # Errors
    /// Those of the operations.
    pub fn timings<T>(
        &self,
        operations: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<(T, Vec<OperationTime>)> {
        let recorder = Arc::new(Recorder {
            vgpu: self.vgpu.clone(),
            log: Mutex::default(),
        });
        let recording = Self {
            stream: self.stream.recording(&recorder),
            ..self.clone()
        };
        let result = operations(&recording)?;
        self.synchronize()?;
        Ok((result, recorder.times()?))
    }

    /// Begins an operation that reads these tensors; it ends when the value is dropped.
    pub(crate) fn begin(&self, operation: &'static str, reads: &[&Tensor]) -> Timed<'_> {
        let recorder = self.stream.recorder();
        if let Some(recorder) = recorder {
            let mut log = recorder.log();
            if log.depth == 0 {
                log.operations.push(Recorded {
                    operation,
                    provider: "mica",
                    launches: Vec::new(),
                    bytes: bytes(reads),
                    flops: 0,
                });
            }
            log.depth += 1;
        }
        Timed(recorder)
    }

    /// Launches until the value is dropped belong to no operation.
    pub(crate) fn pause_recording(&self) -> Paused<'_> {
        let recorder = self.stream.recorder();
        if let Some(recorder) = recorder {
            recorder.log().is_paused = true;
        }
        Paused(recorder)
    }
}
