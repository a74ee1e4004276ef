//! Work over several virtual GPUs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::stream::Stream;
use crate::vgpu::Vgpu;
use crate::{Error, Result};

/// Which virtual GPU is next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Turn {
    /// One after the other.
    #[default]
    RoundRobin,
    /// The one with the fewest pieces of work that have not ended; of several the one that was used longest ago.
    LeastLoaded,
}

#[derive(Debug)]
struct Lane {
    vgpu: Vgpu,
    stream: Stream,
    /// Pieces of work that have not ended.
    open: Arc<AtomicUsize>,
    /// The number of its last piece.
    last: AtomicUsize,
}

/// Gives pieces of work to several virtual GPUs, each of which does its own in the order of a stream. Virtual GPUs share no
/// memory: a piece uses buffers and kernels of the virtual GPU that it is given.
///
/// ```
/// # fn main() -> Result<(), mica::Error> {
/// use mica::{Spread, Turn, Vgpu};
///
/// let device = mica::Device::software()?;
/// let vgpus = [30.0, 60.0].map(|share| Vgpu::builder().memory(16 << 20).share(share).build(&device));
/// let spread = Spread::over(vgpus.into_iter().collect::<Result<Vec<_>, _>>()?, Turn::LeastLoaded)?;
/// let mut results = Vec::new();
/// for piece in 0..6_u32 {
///     let download = spread.submit(|vgpu, stream, _| {
///         let mut buffer = vgpu.alloc::<u32>(100)?;
///         stream.fill(&mut buffer, piece)?;
///         buffer.download(stream)
///     })?;
///     results.push(download);
/// }
/// for (piece, download) in (0..).zip(results) {
///     assert_eq!(download.wait()?, [piece; 100]);
/// }
/// spread.synchronize()?;
/// assert_eq!(spread.open(), [0, 0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Spread {
    lanes: Vec<Lane>,
    turn: Turn,
    /// Pieces so far.
    count: AtomicUsize,
}

/// Counts a piece of work until it is dropped.
struct Piece(Arc<AtomicUsize>);

impl Drop for Piece {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Spread {
    /// Over these virtual GPUs.
    ///
    /// # Errors
    /// If there are none, or one cannot make a stream.
    pub fn over(vgpus: impl IntoIterator<Item = Vgpu>, turn: Turn) -> Result<Self> {
        let lane = |vgpu: Vgpu| {
            Ok(Lane {
                stream: vgpu.stream()?,
                vgpu,
                open: Arc::default(),
                last: AtomicUsize::new(0),
            })
        };
        let lanes = vgpus.into_iter().map(lane).collect::<Result<Vec<_>>>()?;
        if lanes.is_empty() {
            let message = "work is spread over at least one virtual GPU";
            return Err(Error::Argument(message.into()));
        }
        Ok(Self {
            lanes,
            turn,
            count: AtomicUsize::new(0),
        })
    }

    /// Has a piece of work queued in the stream of the virtual GPU whose turn it is; the last argument is that virtual GPU's
    /// number. The piece ends when what was queued has.
    ///
    /// # Errors
    /// Those of the function.
    pub fn submit<T>(&self, queue: impl FnOnce(&Vgpu, &Stream, usize) -> Result<T>) -> Result<T> {
        let (number, lane) = self.next();
        lane.open.fetch_add(1, Ordering::AcqRel);
        let piece = Piece(Arc::clone(&lane.open));
        let queued = queue(&lane.vgpu, &lane.stream, number)?;
        lane.stream.call(move || drop(piece))?;
        Ok(queued)
    }

    fn next(&self) -> (usize, &Lane) {
        let count = self.count.fetch_add(1, Ordering::AcqRel);
        let number = match self.turn {
            Turn::RoundRobin => count % self.lanes.len(),
            Turn::LeastLoaded => {
                let load = |lane: &Lane| {
                    let open = lane.open.load(Ordering::Acquire);
                    (open, lane.last.load(Ordering::Acquire))
                };
                let numbers = 0..self.lanes.len();
                numbers.min_by_key(|n| load(&self.lanes[*n])).unwrap_or(0)
            }
        };
        let lane = &self.lanes[number];
        lane.last.store(count + 1, Ordering::Release);
        (number, lane)
    }

    /// Pieces of each virtual GPU that have not ended.
    pub fn open(&self) -> Vec<usize> {
        let open = |lane: &Lane| lane.open.load(Ordering::Acquire);
        self.lanes.iter().map(open).collect()
    }

    /// Waits for all pieces.
    ///
    /// # Errors
    /// What went wrong in the first virtual GPU whose work failed.
    pub fn synchronize(&self) -> Result<()> {
        self.lanes
            .iter()
            .try_for_each(|lane| lane.stream.synchronize())
    }
}
