//! The virtual GPU: limits, state, counters, and the list of its sessions.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use mica_cuda_abi::CuResult;
use mica_gpu::budget::Charging;
use mica_gpu::{Aborted, Gpu, GpuError, MemorySums, SessionBudget};
use mica_limits::{Denied, MemoryView, Quota};

use crate::session::{Piece, Session};
use crate::spec::{MemoryFull, State, VgpuSpec};
use crate::{Result, VgpuError};

/// What device memory comes in; smaller requests are charged as this much.
const GRANULARITY: u64 = 256;

/// Counters since the virtual GPU was made.
#[derive(Debug, Default)]
pub struct Counters {
    /// Kernels launched.
    pub launches: AtomicU64,
    /// Bytes copied from the host.
    pub bytes_from_host: AtomicU64,
    /// Bytes copied to the host.
    pub bytes_to_host: AtomicU64,
    /// Bytes copied on the device.
    pub bytes_on_device: AtomicU64,
    /// Memory requests refused.
    pub denials: AtomicU64,
    /// Contexts that faulted.
    pub faults: AtomicU64,
    /// Bytes charged now.
    pub used_bytes: AtomicU64,
    /// Most bytes ever charged.
    pub peak_bytes: AtomicU64,
    /// Streams open now, default streams not counted.
    pub streams: AtomicU32,
    /// Modules loaded now.
    pub modules: AtomicU32,
    /// GPU time of contexts that have ended.
    pub(crate) past_gpu_time_ns: AtomicU64,
}

/// A reading of [`Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Kernels launched.
    pub launches: u64,
    /// Bytes copied from the host.
    pub bytes_from_host: u64,
    /// Bytes copied to the host.
    pub bytes_to_host: u64,
    /// Bytes copied on the device.
    pub bytes_on_device: u64,
    /// Memory requests refused.
    pub denials: u64,
    /// Contexts that faulted.
    pub faults: u64,
    /// Bytes charged now.
    pub used_bytes: u64,
    /// Most bytes ever charged.
    pub peak_bytes: u64,
    /// Streams open now, default streams not counted.
    pub streams: u32,
    /// Modules loaded now.
    pub modules: u32,
    /// Sessions open now.
    pub sessions: u32,
    /// GPU time used, where the device can tell.
    pub gpu_time_ns: u64,
}

/// One virtual GPU.
pub struct Vgpu {
    gpu: Arc<dyn Gpu>,
    quota: Arc<dyn Quota>,
    spec: Mutex<VgpuSpec>,
    /// What is held for all sessions together.
    host: Arc<SessionBudget>,
    degraded: Mutex<Option<String>>,
    lost: Mutex<Option<String>>,
    is_lost: AtomicBool,
    suspended: AtomicBool,
    sessions: Mutex<Vec<Weak<Session>>>,
    counters: Counters,
    released: Condvar,
    release_count: Mutex<u64>,
    remarks: Mutex<Vec<String>>,
}

/// How long programs may take to let go of their windows, all together.
const WINDOW_PATIENCE: Duration = Duration::from_millis(100);

/// Remarks that are kept until somebody takes them.
const MOST_REMARKS: usize = 16;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Vgpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vgpu")
            .field("name", &lock(&self.spec).name)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// Memory taken from the quota; given back when dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    vgpu: Arc<Vgpu>,
    bytes: u64,
}

impl Charge {
    /// Takes the bytes of another charge over.
    pub(crate) fn absorb(&mut self, mut other: Charge) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        self.vgpu.release_now(self.bytes);
    }
}

/// Host bytes that the workers of a virtual GPU share.
struct SharedHost(Arc<dyn Quota>);

impl Charging for SharedHost {
    fn charge(&self, bytes: u64) -> Result<(), GpuError> {
        let refused = |denied: Denied| GpuError::new(CuResult::OutOfMemory, denied.reason);
        self.0.charge_now(bytes).map_err(refused)
    }

    fn release(&self, bytes: u64) {
        self.0.release(bytes);
    }
}

impl Vgpu {
    /// A virtual GPU over a device, limited by a quota.
    pub fn new(gpu: Arc<dyn Gpu>, quota: Arc<dyn Quota>, spec: VgpuSpec) -> Arc<Self> {
        let host = SessionBudget::new(spec.host_bytes.saturating_mul(2));
        Self::with_budget(gpu, quota, host, spec)
    }

    /// The part of a virtual GPU that one of its workers serves: host bytes are charged to a quota too, which the
    /// workers share.
    pub fn of_worker(
        gpu: Arc<dyn Gpu>,
        quota: Arc<dyn Quota>,
        host_quota: Arc<dyn Quota>,
        spec: VgpuSpec,
    ) -> Arc<Self> {
        let host = SessionBudget::new(spec.host_bytes.saturating_mul(2));
        let host = host.with_outer(Box::new(SharedHost(host_quota)));
        Self::with_budget(gpu, quota, host, spec)
    }

    fn with_budget(
        gpu: Arc<dyn Gpu>,
        quota: Arc<dyn Quota>,
        host: SessionBudget,
        spec: VgpuSpec,
    ) -> Arc<Self> {
        let host = Arc::new(host);
        Arc::new(Self {
            gpu,
            quota,
            spec: Mutex::new(spec),
            host,
            degraded: Mutex::default(),
            lost: Mutex::default(),
            is_lost: AtomicBool::new(false),
            suspended: AtomicBool::new(false),
            sessions: Mutex::default(),
            counters: Counters::default(),
            released: Condvar::new(),
            release_count: Mutex::default(),
            remarks: Mutex::default(),
        })
    }

    /// The device.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.gpu
    }

    /// The limits now.
    pub fn spec(&self) -> VgpuSpec {
        lock(&self.spec).clone()
    }

    /// Changes the limits that the engine keeps; memory itself is the quota's to change.
    pub fn update_spec(&self, change: impl FnOnce(&mut VgpuSpec)) {
        change(&mut lock(&self.spec));
    }

    /// How it is.
    pub fn state(&self) -> State {
        if let Some(reason) = lock(&self.lost).clone() {
            return State::Lost(reason);
        }
        if let Some(reason) = lock(&self.degraded).clone() {
            return State::Degraded(reason);
        }
        if self.suspended.load(Acquire) {
            return State::Suspended;
        }
        match self.live_sessions().is_empty() {
            true => State::Ready,
            false => State::Active,
        }
    }

    /// Says that a limit is not in force, or (with `None`) that all are again.
    pub fn set_degraded(&self, reason: Option<String>) {
        *lock(&self.degraded) = reason;
    }

    /// Says that the device is gone: every later call fails.
    pub fn set_lost(&self, reason: impl Into<String>) {
        *lock(&self.lost) = Some(reason.into());
        self.is_lost.store(true, Release);
    }

    /// Fails if the virtual GPU is lost.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_lost.load(Relaxed) {
            let reason = lock(&self.lost).clone().unwrap_or_default();
            return Err(VgpuError::Lost(reason));
        }
        Ok(())
    }

    /// Opens a session for one program.
    pub fn open_session(self: &Arc<Self>) -> Result<Arc<Session>> {
        self.open_session_on(Arc::clone(&self.gpu))
    }

    /// Opens a session on a handle of its own to the same device, so that nothing of it is in the
    /// address space of another.
    pub fn open_session_on(self: &Arc<Self>, gpu: Arc<dyn Gpu>) -> Result<Arc<Session>> {
        self.check()?;
        let is_own = !Arc::ptr_eq(&gpu, &self.gpu);
        let session = Session::new(Arc::clone(self), gpu);
        if is_own {
            session.gpu().attach_budget(session.budget());
        }
        let mut sessions = lock(&self.sessions);
        sessions.retain(|session| session.strong_count() > 0);
        sessions.push(Arc::downgrade(&session));
        Ok(session)
    }

    pub(crate) fn live_sessions(&self) -> Vec<Arc<Session>> {
        let sessions: Vec<_> = lock(&self.sessions)
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        sessions.into_iter().filter(|s| !s.is_closed()).collect()
    }

    /// Pauses all its work, now and until [`Vgpu::resume`].
    pub fn suspend(&self) -> Result<()> {
        self.suspended.store(true, Release);
        let sessions = self.live_sessions();
        // The work of all first: what one program does, or does not, delays nobody's suspension.
        let results: Vec<Result<()>> = sessions.iter().map(|s| s.suspend()).collect();
        let end = Instant::now() + WINDOW_PATIENCE;
        for patience in [Duration::ZERO, WINDOW_PATIENCE] {
            for session in &sessions {
                let left = end.saturating_duration_since(Instant::now());
                let let_go = session.close_windows(left.min(patience));
                if !let_go && !patience.is_zero() {
                    tracing::warn!("a program does not let go of its windows on device memory");
                }
            }
        }
        results.into_iter().collect()
    }

    /// Lets its work go on.
    pub fn resume(&self) -> Result<()> {
        self.suspended.store(false, Release);
        self.live_sessions().iter().try_for_each(|s| s.resume())
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.load(Acquire)
    }

    /// The device memory of each session, and what its device says of all of it.
    pub fn memory_pieces(&self) -> Vec<(Vec<Piece>, MemorySums)> {
        let sessions = self.live_sessions();
        sessions.iter().map(|s| s.memory_pieces()).collect()
    }

    /// Waits for everything submitted by all sessions; whether all of it could be waited for. On no thread of a
    /// session: what runs may wait for what that session does next.
    pub fn drain(&self) -> bool {
        let mut done = true;
        for session in self.live_sessions() {
            done &= session.drain();
        }
        done
    }

    /// Ends running and queued kernels of every session, as a driver's watchdog does: a context that
    /// had any is broken from then on, and its program is told `CUDA_ERROR_LAUNCH_TIMEOUT` by every
    /// call. Contexts without kernels do not notice. Says what was ended.
    pub fn cancel(&self) -> Aborted {
        self.live_sessions().iter().map(|s| s.abort_all()).sum()
    }

    /// The budget of all sessions together.
    pub(crate) fn host_budget(&self) -> &Arc<SessionBudget> {
        &self.host
    }

    /// Charges without waiting, for the device itself; [`Vgpu::release_now`] gives it back.
    pub(crate) fn charge_now(&self, bytes: u64) -> Result<()> {
        let charged = self.quota.charge_now(bytes);
        self.note_charge(bytes, bytes, charged).inspect_err(|_| {
            self.counters.denials.fetch_add(1, Relaxed);
        })
    }

    pub(crate) fn release_now(&self, bytes: u64) {
        self.quota.release(bytes);
        self.counters.used_bytes.fetch_sub(bytes, Relaxed);
        *lock(&self.release_count) += 1;
        self.released.notify_all();
    }

    /// Counters, to add to.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Keeps a sentence for whoever runs this virtual GPU: a program was refused what its owner forbids.
    pub(crate) fn remark(&self, text: String) {
        let mut remarks = lock(&self.remarks);
        if remarks.len() < MOST_REMARKS {
            remarks.push(text);
        }
    }

    /// The sentences kept since this was called last; what is said too often is said once in a while.
    pub fn take_remarks(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.remarks))
    }

    /// Counters now.
    pub fn statistics(&self) -> Statistics {
        let counters = &self.counters;
        let sessions = self.live_sessions();
        let gpu_time_now: u64 = sessions.iter().map(|session| session.gpu_time_ns()).sum();
        let (mut from_host, mut to_host) = (
            counters.bytes_from_host.load(Relaxed),
            counters.bytes_to_host.load(Relaxed),
        );
        for session in &sessions {
            let (to_device, from_device) = session.copied_bytes();
            from_host = from_host.saturating_add(to_device);
            to_host = to_host.saturating_add(from_device);
        }
        Statistics {
            launches: counters.launches.load(Relaxed),
            bytes_from_host: from_host,
            bytes_to_host: to_host,
            bytes_on_device: counters.bytes_on_device.load(Relaxed),
            denials: counters.denials.load(Relaxed),
            faults: counters.faults.load(Relaxed),
            used_bytes: counters.used_bytes.load(Relaxed),
            peak_bytes: counters.peak_bytes.load(Relaxed),
            streams: counters.streams.load(Relaxed),
            modules: counters.modules.load(Relaxed),
            sessions: sessions.len() as u32,
            gpu_time_ns: counters.past_gpu_time_ns.load(Relaxed) + gpu_time_now,
        }
    }

    /// Kernels launched so far; cheaper than [`Vgpu::statistics`].
    pub fn launches(&self) -> u64 {
        self.counters.launches.load(Relaxed)
    }

    /// Limit and use of memory.
    pub fn memory(&self) -> MemoryView {
        self.collect();
        self.quota.view()
    }

    /// Frees what streams have let go of. Call it now and then when nothing else happens.
    pub fn collect(&self) {
        for session in self.live_sessions() {
            session.collect_freed(false);
        }
    }

    /// Charges memory, rounded up to what the device deals in.
    pub(crate) fn charge(self: &Arc<Self>, bytes: u64, for_session: &Session) -> Result<Charge> {
        let denied = |bytes| {
            VgpuError::Memory(mica_limits::Denied {
                asked_bytes: bytes,
                reason: "no GPU has so much memory".into(),
            })
        };
        let rounded = bytes
            .checked_next_multiple_of(GRANULARITY)
            .ok_or_else(|| denied(bytes))?;
        let deadline = match lock(&self.spec).memory_full {
            MemoryFull::Fail => None,
            MemoryFull::Wait(limit) => Instant::now().checked_add(limit),
        };
        loop {
            let seen = *lock(&self.release_count);
            let Err(refusal) = self.try_charge(rounded, bytes) else {
                return Ok(Charge {
                    vgpu: Arc::clone(self),
                    bytes: rounded,
                });
            };
            self.collect();
            if *lock(&self.release_count) != seen
                || for_session.wait_pending_frees()
                || for_session.gpu().trim()
            {
                continue;
            }
            let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
            match left {
                Some(left) if !left.is_zero() && !for_session.is_closed() => {
                    let count = lock(&self.release_count);
                    if *count == seen {
                        // Woken by a release; the time limit also lets a closed session notice.
                        let nap = left.min(Duration::from_millis(20));
                        let _ = self.released.wait_timeout(count, nap);
                    }
                }
                _ => {
                    self.counters.denials.fetch_add(1, Relaxed);
                    return Err(refusal);
                }
            }
        }
    }

    fn try_charge(&self, bytes: u64, asked_bytes: u64) -> Result<()> {
        self.note_charge(bytes, asked_bytes, self.quota.charge(bytes))
    }

    /// Counts what the quota granted, or says what it refused.
    fn note_charge(
        &self,
        bytes: u64,
        asked_bytes: u64,
        charged: Result<(), mica_limits::Denied>,
    ) -> Result<()> {
        charged.map_err(|denied| mica_limits::Denied {
            asked_bytes,
            reason: denied.reason,
        })?;
        let used = self.counters.used_bytes.fetch_add(bytes, AcqRel) + bytes;
        self.counters.peak_bytes.fetch_max(used, Relaxed);
        Ok(())
    }
}
