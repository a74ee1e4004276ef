//! Virtual GPUs from creation to removal, with programs in them.

mod support;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use mica_control::api::{OnFull, Resize, VgpuSpec, VgpuState};
use mica_control::client::ControlClient;
use mica_daemon::Running;
use mica_limits::{PageQuota, Quota};
use support::{MIB, Program, control, eventually, spec, start};

#[test]
fn a_limit_holds_to_the_byte_and_a_death_returns_everything() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    let created = control.create(&spec("a", 200)).unwrap();
    let one = Program::join(&created);
    let two = Program::join(&created);
    let (quota_one, quota_two) = (
        PageQuota::new(one.link.clone()),
        PageQuota::new(two.link.clone()),
    );
    quota_one.charge(150 * MIB).unwrap();
    quota_two.charge(50 * MIB).unwrap();
    let refused = quota_two.charge(1).unwrap_err();
    assert!(refused.reason.contains("in use"), "{refused}");
    let info = control.get("a").unwrap();
    assert_eq!(info.memory_used_bytes, 200 * MIB);
    assert_eq!(info.state, VgpuState::Active);
    assert_eq!(info.processes.len(), 2);
    drop((quota_one, one));
    eventually("memory of the dead is back", || {
        control.get("a").unwrap().memory_used_bytes == 50 * MIB
    });
    quota_two.charge(150 * MIB).unwrap();
}

#[test]
fn unused_credit_of_a_sibling_is_recalled() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let created = control(dir.path()).create(&spec("a", 256)).unwrap();
    let (one, two) = (Program::join(&created), Program::join(&created));
    let quota_one = PageQuota::new(one.link.clone());
    let quota_two = PageQuota::new(two.link.clone());
    // A small charge leaves most of a step as credit.
    quota_one.charge(1).unwrap();
    quota_two.charge(256 * MIB - 1).unwrap();
    assert!(quota_one.charge(1).is_err());
    quota_two.release(1);
    quota_one.charge(1).unwrap();
}

#[test]
fn racing_programs_never_exceed_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    let created = control.create(&spec("a", 100)).unwrap();
    let programs: Vec<Program> = (0..4).map(|_| Program::join(&created)).collect();
    let held: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = programs
            .iter()
            .flat_map(|program| [program, program])
            .map(|program| {
                scope.spawn(|| {
                    let quota = PageQuota::new(program.link.clone());
                    let mut held = 0;
                    for round in 0..200 {
                        if quota.charge(MIB).is_ok() {
                            held += MIB;
                        }
                        if round % 3 == 0 && held > 0 {
                            quota.release(MIB);
                            held -= MIB;
                        }
                    }
                    held
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert!(held <= 100 * MIB);
    let info = control.get("a").unwrap();
    assert_eq!(info.memory_used_bytes, held);
    assert!(info.memory_peak_bytes <= 100 * MIB);
    assert!(info.alloc_denied_total > 0);
}

#[test]
fn resize_takes_effect_at_once_and_below_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    let created = control.create(&spec("a", 100)).unwrap();
    let program = Program::join(&created);
    let quota = PageQuota::new(program.link.clone());
    quota.charge(80 * MIB).unwrap();
    let resize = |mib: u64, drain| {
        control.resize(
            "a",
            &Resize {
                memory_limit_bytes: Some(mib * MIB),
                drain,
                ..Resize::default()
            },
        )
    };
    assert_eq!(resize(50, false).unwrap_err().reason(), Some("busy"));
    assert_eq!(control.get("a").unwrap().memory_limit_bytes, 100 * MIB);
    resize(200, false).unwrap();
    quota.charge(120 * MIB).unwrap();
    resize(150, true).unwrap();
    quota.release(120 * MIB);
    eventually("released memory is recalled down to the limit", || {
        quota.view().limit_bytes == 150 * MIB
            && program
                .link
                .page()
                .memory
                .credit_bytes
                .load(std::sync::atomic::Ordering::SeqCst)
                <= 70 * MIB
    });
    assert!(quota.charge(71 * MIB).is_err());
    quota.charge(70 * MIB).unwrap();
    assert_eq!(resize(2000, false).unwrap_err().reason(), Some("no_memory"));
}

/// A virtual GPU that makes askers wait for memory, longer than any test, and programs in it.
struct Waiting<const PROGRAMS: usize> {
    quotas: [PageQuota; PROGRAMS],
    control: ControlClient,
    _programs: [Program; PROGRAMS],
    _daemon: Running,
    _dir: tempfile::TempDir,
}

fn that_wait<const PROGRAMS: usize>(memory_mib: u64) -> Waiting<PROGRAMS> {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let control = control(dir.path());
    let spec = VgpuSpec {
        on_full: OnFull::Wait {
            timeout_ms: 3_600_000,
        },
        ..spec("a", memory_mib)
    };
    let created = control.create(&spec).unwrap();
    let programs = [0; PROGRAMS].map(|_| Program::join(&created));
    Waiting {
        quotas: std::array::from_fn(|k| PageQuota::new(programs[k].link.clone())),
        control,
        _programs: programs,
        _daemon: daemon,
        _dir: dir,
    }
}

impl<const PROGRAMS: usize> Waiting<PROGRAMS> {
    fn used_bytes(&self) -> u64 {
        self.control.get("a").unwrap().memory_used_bytes
    }
}

/// Asks for more than there is, which waits until `free` has made room.
fn waits_until(asker: &PageQuota, bytes: u64, free: impl FnOnce()) {
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| asker.charge(bytes));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!waiting.is_finished());
        free();
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn a_full_virtual_gpu_makes_the_asker_wait_until_memory_is_free() {
    let full = that_wait::<2>(100);
    let [one, two] = &full.quotas;
    one.charge(100 * MIB).unwrap();
    waits_until(two, 30 * MIB, || one.release(40 * MIB));
    assert_eq!(full.used_bytes(), 90 * MIB);
}

#[test]
fn what_the_asker_itself_frees_ends_its_wait() {
    let full = that_wait::<1>(100);
    let [quota] = &full.quotas;
    quota.charge(80 * MIB).unwrap();
    waits_until(quota, 60 * MIB, || quota.release(80 * MIB));
    assert_eq!(full.used_bytes(), 60 * MIB);
}

#[test]
fn what_is_wanted_now_or_not_at_all_neither_waits_nor_counts_as_refused() {
    let full = that_wait::<1>(100);
    let [quota] = &full.quotas;
    quota.charge(90 * MIB).unwrap();
    assert!(!quota.charge_now(20 * MIB));
    assert!(quota.charge_now(10 * MIB));
    assert_eq!(full.control.get("a").unwrap().alloc_denied_total, 0);
    let told = full.control.past_events().unwrap();
    assert!(told.iter().all(|e| e.kind != "memory_denied"), "{told:?}");
}

#[test]
fn nobody_overtakes_one_that_waits_for_much_by_asking_for_little() {
    let full = that_wait::<3>(100);
    let [holder, large, small] = &full.quotas;
    holder.charge(80 * MIB).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| large.charge(60 * MIB));
        // 20 MiB are left, and are refused once somebody waits for more.
        eventually("the large request waits", || {
            let had = small.charge_now(MIB);
            if had {
                // Credit of its own, until it is recalled for the one that waits.
                small.release(MIB);
            }
            !had
        });
        let behind = scope.spawn(|| small.charge(2 * MIB));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!waiting.is_finished());
        holder.release(80 * MIB);
        waiting.join().unwrap().unwrap();
        behind.join().unwrap().unwrap();
    });
    assert_eq!(full.used_bytes(), 62 * MIB);
}

#[test]
fn those_who_wait_share_exactly_what_a_third_frees() {
    let full = that_wait::<4>(96);
    let in_use = AtomicU64::new(0);
    let peak = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (k, quota) in full.quotas.iter().enumerate() {
            let (in_use, peak) = (&in_use, &peak);
            scope.spawn(move || {
                for round in 0..200_u64 {
                    // Any two of these fit, never all four: everybody waits now and then.
                    let bytes = (20 + (round * 7 + k as u64 * 5) % 28) * MIB;
                    quota.charge(bytes).unwrap();
                    peak.fetch_max(in_use.fetch_add(bytes, SeqCst) + bytes, SeqCst);
                    std::thread::yield_now();
                    in_use.fetch_sub(bytes, SeqCst);
                    quota.release(bytes);
                }
            });
        }
    });
    assert!(peak.load(SeqCst) <= 96 * MIB, "{}", peak.load(SeqCst));
    assert_eq!(full.used_bytes(), 0);
}

#[test]
fn waiting_in_vain_ends_with_the_time_limit() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let mut spec = spec("a", 64);
    spec.on_full = OnFull::Wait { timeout_ms: 30 };
    let created = control(dir.path()).create(&spec).unwrap();
    let program = Program::join(&created);
    let quota = PageQuota::new(program.link.clone());
    quota.charge(64 * MIB).unwrap();
    let refused = quota.charge(1).unwrap_err();
    assert!(
        refused.reason.contains("waited without success"),
        "{refused}"
    );
    // What can never fit is refused without waiting.
    let never = quota.charge(65 * MIB).unwrap_err();
    assert!(!never.reason.contains("waited"), "{never}");
}

#[test]
fn the_sum_of_limits_never_exceeds_the_device() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    control.create(&spec("a", 600)).unwrap();
    let refused = control.create(&spec("b", 600)).unwrap_err();
    assert_eq!(refused.reason(), Some("no_memory"));
    assert_eq!(
        refused.to_string(),
        "only 424 MiB of 1 GiB is unreserved on GPU 0, 600 MiB asked; largest virtual GPU: a 600 MiB"
    );
    control.create(&spec("b", 424)).unwrap();
    assert_eq!(
        control.create(&spec("a", 1)).unwrap_err().reason(),
        Some("exists")
    );
    control.remove("a", false).unwrap();
    control.create(&spec("c", 600)).unwrap();
    let names: Vec<String> = control
        .list()
        .unwrap()
        .into_iter()
        .map(|v| v.name)
        .collect();
    assert_eq!(names, ["b", "c"]);
}

#[test]
fn an_ephemeral_virtual_gpu_outlives_neither_its_creator_nor_its_programs() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    let mut spec = spec("run", 64);
    spec.ephemeral = true;
    let created = control.create(&spec).unwrap();
    let program = Program::join(&created);
    // The creator is this process, so the end of the program alone is not enough.
    drop(program);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(control.get("run").is_ok());
    control.remove("run", false).unwrap();
    assert_eq!(control.get("run").unwrap_err().reason(), Some("not_found"));
}
