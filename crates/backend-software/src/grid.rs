//! One launch while it waits and runs.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use mica_gpu::Share;
use mica_kernel::{Dim3, stop};

use crate::children::{Children, Family};
use crate::context::Context;
use crate::module::Module;

/// Keeps what every worker changes off the lines that every worker reads.
#[repr(align(128))]
struct OwnLine<T>(T);

/// More blocks than any grid has (its limits multiply to less than 2⁶³), and room to count on.
const ALL_CLAIMED: u64 = 1 << 63;

/// A launch. Blocks are claimed in order by whoever has time.
pub(crate) struct Grid {
    pub(crate) id: u64,
    pub(crate) context: Arc<Context>,
    pub(crate) stream: u64,
    pub(crate) priority: i32,
    pub(crate) module: Arc<Module>,
    pub(crate) kernel: usize,
    pub(crate) grid: Dim3,
    pub(crate) block: Dim3,
    pub(crate) dynamic_shared: u32,
    pub(crate) shared_len: u64,
    pub(crate) local_stride: u64,
    pub(crate) params: Params,
    pub(crate) cooperative: bool,
    /// Blocks of a cluster in each dimension.
    pub(crate) cluster: Dim3,
    /// Clusters in each dimension.
    pub(crate) clusters: Dim3,
    /// Arena address of the cooperative workspace, or 0. Freed with the grid.
    pub(crate) workspace: u64,
    /// What is claimed: blocks, or clusters of them.
    pub(crate) total: u64,
    next: OwnLine<AtomicU64>,
    done: OwnLine<AtomicU64>,
    /// Worker threads on this grid.
    pub(crate) attached: AtomicUsize,
    /// How many of them are in blocks that wait for others.
    pub(crate) stalled: AtomicUsize,
    /// What running blocks poll.
    pub(crate) stop: AtomicU32,
    pub(crate) cancelled: AtomicBool,
    /// One thread has claimed all its blocks, with those of other grids of its stream.
    in_batch: AtomicBool,
    /// More resident blocks than workers: spinning ones must yield, so `stop` asks them to call.
    pub(crate) crowded: bool,
    /// What the module said of this launch (`BlockContext::proven`).
    pub(crate) proven: bool,
    /// When its blocks became claimable.
    pub(crate) ready_ns: AtomicU64,
    /// What its threads have launched.
    pub(crate) children: Mutex<Children>,
    /// Shared with what descends from it; made by the first launch.
    pub(crate) family: OnceLock<Arc<Family>>,
    /// What a launch by a kernel is charged as.
    pub(crate) charge: Option<Share>,
    /// When it was submitted and began, where launches are recorded.
    pub(crate) times: Option<crate::record::GridTimes>,
    /// What was found in it, where the device is checked.
    pub(crate) check: Option<crate::check::GridCheck>,
    /// The order of its blocks and threads, where it is not the usual one.
    pub(crate) schedule: Option<crate::schedule::Schedule>,
}

/// What [`Grid::new`] starts from.
pub(crate) struct Shape {
    pub(crate) grid: Dim3,
    pub(crate) block: Dim3,
    pub(crate) dynamic_shared: u32,
    pub(crate) shared_len: u64,
    pub(crate) local_stride: u64,
    pub(crate) cooperative: bool,
    pub(crate) cluster: Dim3,
    pub(crate) workspace: u64,
    pub(crate) crowded: bool,
    pub(crate) proven: bool,
}

impl Grid {
    #[expect(
        clippy::too_many_arguments,
        reason = "one caller, each of another kind"
    )]
    pub(crate) fn new(
        id: u64,
        context: Arc<Context>,
        stream: u64,
        priority: i32,
        module: Arc<Module>,
        kernel: usize,
        shape: Shape,
        params: Params,
    ) -> Self {
        let running = if shape.crowded {
            stop::PAUSE
        } else {
            stop::RUN
        };
        let (grid, cluster) = (shape.grid, shape.cluster);
        let clusters = Dim3 {
            x: grid.x / cluster.x.max(1),
            y: grid.y / cluster.y.max(1),
            z: grid.z / cluster.z.max(1),
        };
        Self {
            id,
            context,
            stream,
            priority,
            module,
            kernel,
            total: clusters.count(),
            cluster,
            clusters,
            grid: shape.grid,
            block: shape.block,
            dynamic_shared: shape.dynamic_shared,
            shared_len: shape.shared_len,
            local_stride: shape.local_stride,
            params,
            cooperative: shape.cooperative,
            workspace: shape.workspace,
            next: OwnLine(AtomicU64::new(0)),
            done: OwnLine(AtomicU64::new(0)),
            attached: AtomicUsize::new(0),
            stalled: AtomicUsize::new(0),
            stop: AtomicU32::new(running),
            cancelled: AtomicBool::new(false),
            in_batch: AtomicBool::new(false),
            crowded: shape.crowded,
            proven: shape.proven,
            ready_ns: AtomicU64::new(0),
            children: Mutex::default(),
            family: OnceLock::new(),
            charge: None,
            times: None,
            check: None,
            schedule: None,
        }
    }

    /// The kernel's name.
    pub(crate) fn name(&self) -> &str {
        let kernels = self.module.executable.kernels();
        kernels.get(self.kernel).map_or("?", |k| k.name.as_str())
    }

    /// Remembers how long so many blocks took on one thread.
    pub(crate) fn note_pace(&self, blocks: u64, took_ns: u64) {
        if let (Some(pace), Some(each)) = (
            self.module.block_ns.get(self.kernel),
            took_ns.checked_div(blocks),
        ) {
            let each = u32::try_from(each).unwrap_or(u32::MAX - 1) + 1;
            pace.store(each, Ordering::Relaxed);
        }
    }

    /// How long all blocks should take on one thread; `None` before the first time.
    pub(crate) fn expected_ns(&self) -> Option<u64> {
        let pace = self.module.block_ns.get(self.kernel)?;
        match pace.load(Ordering::Relaxed) {
            0 => None,
            each => Some(u64::from(each).saturating_mul(self.total)),
        }
    }

    /// Claims the next `most` blocks, or as many as there are.
    pub(crate) fn claim(&self, most: u64) -> std::ops::Range<u64> {
        let first = self.next.0.fetch_add(most, Ordering::Relaxed);
        first.min(self.total)..first.saturating_add(most).min(self.total)
    }

    /// Blocks nobody claimed yet.
    pub(crate) fn unclaimed(&self) -> u64 {
        self.total
            .saturating_sub(self.next.0.load(Ordering::Relaxed))
    }

    /// Whether a claim could succeed.
    pub(crate) fn has_unclaimed(&self) -> bool {
        self.unclaimed() > 0
    }

    /// Counts finished blocks; true for the call that finishes the grid.
    pub(crate) fn finish(&self, blocks: u64) -> bool {
        blocks > 0 && self.done.0.fetch_add(blocks, Ordering::AcqRel) + blocks == self.total
    }

    /// Takes the blocks nobody claimed off the list. Gives how many, which are still to be counted as finished.
    pub(crate) fn abandon(&self) -> u64 {
        let claimed = self.next.0.swap(ALL_CLAIMED, Ordering::AcqRel);
        self.total.saturating_sub(claimed)
    }

    /// Whether nobody has claimed a block, or is about to.
    pub(crate) fn is_untouched(&self) -> bool {
        self.attached.load(Ordering::SeqCst) == 0 && self.next.0.load(Ordering::SeqCst) == 0
    }

    /// Hands all blocks to one thread. Called under the device's lock, as are all changes of batches.
    pub(crate) fn claim_for_batch(&self) {
        self.in_batch.store(true, Ordering::SeqCst);
        self.claim_all();
    }

    /// Whether a thread has it in its batch, and ends it.
    pub(crate) fn is_in_batch(&self) -> bool {
        self.in_batch.load(Ordering::SeqCst)
    }

    /// The thread that had it in its batch has run it, or gives all its blocks back.
    pub(crate) fn leave_batch(&self, has_run: bool) {
        if !has_run {
            self.next.0.store(0, Ordering::SeqCst);
        }
        self.in_batch.store(false, Ordering::SeqCst);
    }

    /// Gives the last blocks back.
    pub(crate) fn unclaim(&self, left: u64) {
        self.next.0.store(self.total - left, Ordering::SeqCst);
    }

    /// Whether all blocks have been counted as finished.
    pub(crate) fn is_over(&self) -> bool {
        self.done.0.load(Ordering::Acquire) == self.total
    }

    /// Hands all blocks out at once, for cooperative launches.
    pub(crate) fn claim_all(&self) {
        self.next.0.store(ALL_CLAIMED, Ordering::Release);
    }

    /// Sets the stop word from what is wanted. Called under the device's lock.
    pub(crate) fn refresh_stop(&self, gate_open: bool) {
        let value = if self.cancelled.load(Ordering::SeqCst) {
            stop::CANCEL
        } else if self.context.is_suspended() || !gate_open || self.crowded {
            stop::PAUSE
        } else {
            stop::RUN
        };
        self.stop.store(value, Ordering::SeqCst);
    }

    /// The number of a block.
    pub(crate) fn block_number(&self, block: Dim3) -> u64 {
        let (x, y) = (u64::from(self.grid.x), u64::from(self.grid.y));
        u64::from(block.x) + x * (u64::from(block.y) + y * u64::from(block.z))
    }

    /// The block with this number; where blocks run in clusters, the cluster.
    pub(crate) fn block_index(&self, index: u64) -> Dim3 {
        if index < u64::from(self.clusters.x) {
            // Most grids are a row, and divisions are slow.
            return Dim3 {
                x: index as u32,
                y: 0,
                z: 0,
            };
        }
        let (x, y) = (u64::from(self.clusters.x), u64::from(self.clusters.y));
        Dim3 {
            x: (index % x) as u32,
            y: (index / x % y) as u32,
            z: (index / (x * y)) as u32,
        }
    }
}

impl Drop for Grid {
    fn drop(&mut self) {
        if self.workspace != 0 {
            self.module
                .memory
                .free_internal(self.context.id, self.workspace);
        }
    }
}

/// A parameter block, aligned for any parameter.
#[derive(Debug)]
pub(crate) struct Params {
    lines: Vec<Line>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Params {
    /// A copy of `bytes`, zero-padded to at least `least`.
    pub(crate) fn new(bytes: &[u8], least: usize) -> Self {
        let len = bytes.len().max(least);
        let mut lines = vec![Line([0; 64]); len.div_ceil(64)];
        for (line, piece) in lines.iter_mut().zip(bytes.chunks(64)) {
            line.0[..piece.len()].copy_from_slice(piece);
        }
        Self { lines, len }
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.lines.as_ptr().cast()
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: lines are plain bytes without gaps, and hold at least `len` of them.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}
