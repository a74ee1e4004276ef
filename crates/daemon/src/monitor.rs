//! Once a second: compares the books with the driver, measures shares, keeps history.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use mica_control::api::{Sample, Severity};
use mica_wire::host::message::Role;

use crate::daemon::Daemon;
use crate::devices::{DeviceReading, Devices, ProcessReading};
use crate::enforce::{Family, check_drains, check_shares, check_slices, mark_strays};
use crate::foreign_processes::{ForeignProcess, stayed};
use crate::kernel_caches::KernelCaches;
use crate::ledger::Ledger;
use crate::recorder::Recorder;
use crate::registry::{Client, Registry};
use crate::store::Outlives;
use crate::web::Textfile;

const EVERY: Duration = Duration::from_secs(1);
/// Seconds that are kept of each virtual GPU to judge it by; `history` keeps more.
const HISTORY: usize = 120;

/// The monitor's thread.
pub(crate) fn run(daemon: &Arc<Daemon>, mut devices: Box<dyn Devices>) {
    let mut last = Instant::now();
    let mut seen = Seen::default();
    let mut looks = 0;
    let mut last_save = Instant::now();
    let mut caches = KernelCaches::new();
    let mut recorder = Recorder::new();
    let mut textfile = Textfile::default();
    #[cfg(feature = "otel")]
    let mut exporter = crate::otel::Exporter::default();
    loop {
        // Short waits so that what must be kept reaches the disk soon, without a write per change.
        if daemon.wait_for_stop(Duration::from_millis(200)) {
            return;
        }
        crate::faults::note(daemon, devices.faults());
        let elapsed = last.elapsed();
        let wanted = looks_wanted(&daemon.registry());
        if elapsed >= EVERY {
            last = Instant::now();
            observe(daemon, devices.as_mut(), &mut seen, elapsed.as_secs_f64());
            recorder.record(daemon, elapsed.as_secs_f64());
            daemon.registry().end_profiles();
            caches.check(daemon);
            textfile.check(daemon);
            #[cfg(feature = "otel")]
            exporter.check(daemon);
            daemon.cgroups.sweep();
            daemon.sweep_kept();
            if daemon.on_demand {
                crate::log::cut_own(&daemon.paths.log_file());
            }
        } else if wanted != looks {
            look_at_memory(daemon, devices.as_mut());
        }
        looks = wanted;
        let used =
            last_save.elapsed() > Duration::from_secs(60) && !daemon.registry().vgpus.is_empty();
        if daemon.dirty.swap(false, Relaxed) || used {
            last_save = Instant::now();
            // What was not kept is an event, and tried again.
            let _ = daemon.save(Outlives::Machine);
        }
    }
}

/// A sum that changes when any process has done something for which the driver takes memory that Mica does not see,
/// such as loading a module. The memory is then looked at before the next second.
fn looks_wanted(registry: &Registry) -> u64 {
    let pages = registry.clients.values().map(|c| &c.governed.page.client);
    pages
        .map(|client| u64::from(client.looks_wanted.load(Relaxed)))
        .fold(0, u64::wrapping_add)
}

/// Compares the books with the driver between two full looks.
fn look_at_memory(daemon: &Daemon, devices: &mut dyn Devices) {
    for (index, driver_index) in begin_look(daemon) {
        let bytes: HashMap<u32, u64> = devices.process_memory(driver_index).into_iter().collect();
        let mut registry = daemon.registry();
        let Registry { vgpus, clients, .. } = &mut *registry;
        for vgpu in vgpus.values_mut().filter(|v| v.gpu == index) {
            for id in &vgpu.clients {
                let Some(client) = clients.get(id) else {
                    continue;
                };
                if let Some(bytes) = bytes.get(&client.pid) {
                    vgpu.ledger.end_look(*id, client.without_regions(*bytes));
                }
            }
            // What the driver has taken cannot be granted to anybody.
            vgpu.ledger.trim();
        }
    }
}

/// Begins a comparison in every ledger; the GPUs that have a driver, by their numbers in Mica and in the driver.
fn begin_look(daemon: &Daemon) -> Vec<(usize, usize)> {
    let mut registry = daemon.registry();
    let ledgers = registry.vgpus.values_mut().map(|vgpu| &mut vgpu.ledger);
    ledgers.for_each(Ledger::begin_look);
    let gpus = registry.gpus.iter().enumerate();
    gpus.filter_map(|(index, gpu)| Some((index, gpu.driver_index?)))
        .collect()
}

/// What the driver reported about one GPU at a look.
struct Reading {
    gpu: usize,
    device: Option<DeviceReading>,
    processes: Vec<ProcessReading>,
    lost: Option<String>,
    unshareable: Option<String>,
}

impl Reading {
    fn take(devices: &mut dyn Devices, gpu: usize, driver_index: usize) -> Self {
        Self {
            gpu,
            device: devices.read(driver_index),
            processes: devices.processes(driver_index),
            lost: devices.lost(driver_index),
            unshareable: devices.unshareable(driver_index),
        }
    }
}

/// Processes on a GPU that Mica does not know, with the bytes they hold.
struct Outsiders {
    gpu: usize,
    held: Vec<(u32, u64)>,
}

impl Outsiders {
    fn of(reading: &Reading, family: &Family) -> Self {
        let outside = (reading.processes.iter()).filter(|p| family.is_outsider(p.pid));
        let held = outside.map(|p| (p.pid, p.memory_used_bytes.unwrap_or(0)));
        Self {
            gpu: reading.gpu,
            held: held.collect(),
        }
    }

    /// The processes that hold memory.
    fn holders(&self) -> impl Iterator<Item = ForeignProcess> {
        let holders = self.held.iter().filter(|(_, bytes)| *bytes > 0);
        holders.filter_map(|(pid, _)| ForeignProcess::of(self.gpu, *pid))
    }
}

/// What the last look saw, so that a process is reported only when two looks see it.
#[derive(Default)]
struct Seen {
    /// Processes of virtual GPUs that are on a GPU where they do not belong, and why they are thought so.
    strays: HashMap<u32, String>,
    outside: HashMap<u32, ForeignProcess>,
}

impl Seen {
    /// The strays of this look that the last one saw too.
    fn strays_twice(&mut self, strays: HashMap<u32, String>) -> HashMap<u32, String> {
        let earlier = std::mem::replace(&mut self.strays, strays.clone());
        let twice = strays.into_iter();
        twice.filter(|(pid, _)| earlier.contains_key(pid)).collect()
    }
}

fn observe(daemon: &Daemon, devices: &mut dyn Devices, seen: &mut Seen, seconds: f64) {
    // The driver is asked without the lock: a slow answer may not hold up a program.
    let gpus = begin_look(daemon).into_iter();
    let readings: Vec<Reading> = gpus
        .map(|(gpu, driver_index)| Reading::take(devices, gpu, driver_index))
        .collect();
    // Only what two looks see is an event: a process may be between two states.
    let family = Family::of(&daemon.registry());
    let on_gpus = readings.iter().flat_map(|reading| &reading.processes);
    let strays = on_gpus
        .filter_map(|process| Some((process.pid, family.strays_from(process.pid)?)))
        .collect();
    let readings_and_outsiders = readings.into_iter().map(|reading| {
        let outsiders = Outsiders::of(&reading, &family);
        (reading, outsiders)
    });
    let (readings, outsiders): (Vec<_>, Vec<_>) = readings_and_outsiders.unzip();
    let holders = outsiders.iter().flat_map(Outsiders::holders);
    let stayed = stayed(&mut seen.outside, holders.collect());
    let strays = seen.strays_twice(strays);
    let hung = crate::faults::hung(daemon);
    let mut news = Vec::new();
    {
        let mut registry = daemon.registry();
        for (gpu, why) in hung {
            note_trouble(daemon, gpu, &HUNG, &mut registry.gpus[gpu].hung, why);
        }
        for reading in readings {
            note_reading(daemon, &mut registry, reading, seconds);
        }
        for Outsiders { gpu, held } in outsiders {
            registry.gpus[gpu].outsiders = held;
        }
        // What the driver has taken cannot be granted to anybody.
        registry.vgpus.values_mut().for_each(|v| v.ledger.trim());
        measure(&mut registry, seconds);
        check_shares(&mut registry, &mut news);
        check_slices(&mut registry, &mut news);
        check_drains(&mut registry, &mut news);
        mark_strays(&mut registry, &strays, &mut news);
        crate::foreign_processes::mark(&mut registry, &stayed, &mut news);
    }
    for (severity, kind, vgpu, pid, text) in news {
        daemon
            .events
            .add(severity, kind, Some(&vgpu), Some(pid), text);
    }
}

/// Puts the driver's report about a GPU into the tables.
fn note_reading(daemon: &Daemon, registry: &mut Registry, reading: Reading, seconds: f64) {
    let index = reading.gpu;
    let gpu = &mut registry.gpus[index];
    note_trouble(daemon, index, &LOST, &mut gpu.lost, reading.lost);
    let known = &mut gpu.unshareable;
    note_trouble(daemon, index, &UNSHAREABLE, known, reading.unshareable);
    if let Some(device) = reading.device {
        gpu.reading = device;
    }
    book_processes(registry, index, &reading.processes, seconds);
}

/// What can be wrong with a GPU: event and words when it begins, event and words when it is over.
struct Trouble {
    begins: (&'static str, &'static str),
    ends: (&'static str, &'static str),
}

/// It went away, or came back.
const LOST: Trouble = Trouble {
    begins: ("gpu_lost", "is lost"),
    ends: ("gpu_returned", "is back"),
};
/// It was set up so that processes cannot share it, or can again.
const UNSHAREABLE: Trouble = Trouble {
    begins: ("gpu_unshareable", "cannot be shared"),
    ends: ("gpu_shareable", "can be shared again"),
};

/// A worker on it does not end, or has ended at last.
const HUNG: Trouble = Trouble {
    begins: ("gpu_hung", "takes no new programs"),
    ends: ("gpu_recovered", "takes new programs again"),
};

/// Notes why a GPU is in trouble, or that the trouble is over; logs an event when that changes.
fn note_trouble(
    daemon: &Daemon,
    index: usize,
    trouble: &Trouble,
    known: &mut Option<String>,
    now: Option<String>,
) {
    if *known == now {
        return;
    }
    let (severity, kind, text) = match &now {
        Some(why) => {
            let (kind, words) = trouble.begins;
            (Severity::Error, kind, format!("GPU {index} {words}: {why}"))
        }
        None => {
            let (kind, words) = trouble.ends;
            (Severity::Info, kind, format!("GPU {index} {words}"))
        }
    };
    *known = now;
    daemon.events.add(severity, kind, None, None, text);
}

/// Compares each process's charge with what the driver reports for it.
fn book_processes(registry: &mut Registry, gpu: usize, processes: &[ProcessReading], seconds: f64) {
    let by_pid: HashMap<u32, &ProcessReading> = processes.iter().map(|p| (p.pid, p)).collect();
    let Registry { vgpus, clients, .. } = registry;
    for vgpu in vgpus.values_mut().filter(|v| v.gpu == gpu) {
        for id in &vgpu.clients {
            let Some(client) = clients.get_mut(id) else {
                continue;
            };
            if client.role == Role::Monitor {
                continue;
            }
            let reading = by_pid.get(&client.pid);
            client.sm_percent = reading.and_then(|r| r.sm_percent).unwrap_or(0.0);
            client.driver_seconds += client.sm_percent / 100.0 * seconds;
            match reading.and_then(|r| r.memory_used_bytes) {
                Some(bytes) => vgpu.ledger.end_look(*id, client.without_regions(bytes)),
                None => vgpu.ledger.not_listed(*id),
            }
        }
    }
}

/// What the processes of a virtual GPU have done since the last look.
#[derive(Default)]
struct Done {
    worker_seconds: f64,
    driver_seconds: f64,
    launches: u64,
    gate_wait_ns: u64,
}

impl Done {
    /// Adds what one process has done, and remembers how far its counters are.
    fn add(&mut self, client: &mut Client, seconds: f64) {
        let step = |last: &mut u64, now: u64| {
            let grown = now.saturating_sub(*last);
            *last = now;
            grown
        };
        let gpu_time_ns = client.gpu_time_ns();
        let counters = &client.governed.page.counters;
        let (launches, waited_ns) = (&counters.launches, &counters.gate_wait_ns);
        let launches = step(&mut client.last_launches, launches.load(Relaxed));
        let waited_ns = step(&mut client.last_gate_wait_ns, waited_ns.load(Relaxed));
        self.worker_seconds += step(&mut client.last_gpu_time_ns, gpu_time_ns) as f64 / 1e9;
        self.driver_seconds += client.sm_percent / 100.0 * seconds;
        // Any value may stand in a page.
        self.launches = self.launches.saturating_add(launches);
        self.gate_wait_ns = self.gate_wait_ns.saturating_add(waited_ns);
    }

    /// GPU time by the most direct measurement there is: the worker's own, the driver's, the leases'.
    fn gpu_seconds(&self, lease_seconds: f64) -> Option<(f64, &'static str)> {
        let sources = [
            (self.worker_seconds, "worker"),
            (self.driver_seconds, "driver"),
            (lease_seconds, "leases"),
        ];
        sources.into_iter().find(|(seconds, _)| *seconds > 0.0)
    }
}

/// GPU time and shares over the last second.
fn measure(registry: &mut Registry, seconds: f64) {
    let now = crate::events::now_seconds() as u64;
    let mut load: HashMap<usize, f64> = HashMap::new();
    let Registry { vgpus, clients, .. } = &mut *registry;
    for vgpu in vgpus.values_mut() {
        vgpu.ledger.note_peak();
        let charged_ns = vgpu.tenant.charged_ns.load(Relaxed);
        let lease_seconds = charged_ns.saturating_sub(vgpu.last_charged_ns) as f64 / 1e9;
        vgpu.last_charged_ns = charged_ns;
        let mut done = Done::default();
        for id in &vgpu.clients {
            if let Some(client) = clients.get_mut(id) {
                done.add(client, seconds);
            }
        }
        let unused = (0.0, vgpu.time_source);
        let (used, source) = done.gpu_seconds(lease_seconds).unwrap_or(unused);
        vgpu.time_source = source;
        vgpu.gpu_seconds += used;
        vgpu.measured_percent = (used / seconds * 100.0).min(100.0);
        *load.entry(vgpu.gpu).or_default() += vgpu.measured_percent;
        if vgpu.history.len() == HISTORY {
            vgpu.history.pop_front();
        }
        vgpu.history.push_back(Sample {
            time_seconds: now,
            memory_used_bytes: vgpu.ledger.used_bytes(),
            share_measured_percent: vgpu.measured_percent as f32,
            launches: u32::try_from(done.launches).unwrap_or(u32::MAX),
            gate_wait_percent: (done.gate_wait_ns as f64 / 1e7 / seconds) as f32,
            processes: u16::try_from(vgpu.clients.len()).unwrap_or(u16::MAX),
        });
    }
    for (index, gpu) in registry.gpus.iter_mut().enumerate() {
        gpu.charged_percent = load.get(&index).copied().unwrap_or(0.0).min(100.0);
        (gpu.processors).second_is_over(gpu.facts.kind, gpu.thread.lease_use_ns());
    }
}
