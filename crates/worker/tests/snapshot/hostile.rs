//! Snapshots that a hostile user has made: right hashes around wrong objects.

use std::sync::Arc;
use std::time::Duration;

use mica_backend_software::{Config, SoftwareGpu};
use mica_gpu::{DevicePtr, Fill2d, Gpu};
use mica_limits::{LocalQuota, Quota};
use mica_snapshot::fuzzing::{claim, objects, read_objects, seal};
use mica_snapshot::{Manifest, SavedSession, Snapshot};
use mica_swap::Swapper;
use mica_vgpu::{Session, Vgpu, VgpuSpec};

use crate::support::{MIB, environment, eventually};
use crate::{restore, snapshot, start, swappable, train, training};

const LIMIT: u64 = 64 * MIB;
const ROUNDS: u64 = 600;

/// A virtual GPU of its own, and a session on a device with the addresses of a snapshot.
fn session(
    first: &Arc<dyn Gpu>,
    quota: Arc<LocalQuota>,
    manifest: &Manifest,
) -> (Arc<Vgpu>, Arc<Session>) {
    let config = Config {
        memory_bytes: Some(256 * MIB),
        address_space: Some(manifest.device.address_space),
        workers: Some(1),
        ..Config::default()
    };
    let mut device = SoftwareGpu::new(config.clone());
    // The one before gives its addresses back with the last of its threads.
    eventually("the addresses", || {
        if device.is_err() {
            device = SoftwareGpu::new(config.clone());
        }
        device.is_ok()
    });
    let device: Arc<dyn Gpu> = Arc::new(device.unwrap());
    let gpu = Swapper::new(|| {}).wrap(Arc::clone(&device));
    let mut spec = VgpuSpec::new("hostile", LIMIT);
    spec.can_be_saved = true;
    spec.max_streams = 100;
    // As in a worker: the virtual GPU has a device of its own, or it would keep the session's.
    let vgpu = Vgpu::new(Arc::clone(first), quota, spec);
    let session = vgpu.open_session_on(gpu).unwrap();
    (vgpu, session)
}

/// Restores objects into a virtual GPU of its own; whether that was possible. Nothing is left of them afterwards.
fn restored(first: &Arc<dyn Gpu>, saved: &SavedSession, manifest: &Manifest) -> bool {
    let quota = Arc::new(LocalQuota::new(LIMIT));
    let (_vgpu, session) = session(first, quota.clone(), manifest);
    let made = session.restore(saved);
    let most = quota.view().used_bytes;
    assert!(most <= LIMIT, "{most} bytes");
    if made.is_ok() {
        // What was made is a session like any other: it can be saved, and is the same.
        let again = session.save().unwrap();
        let mut before = saved.allocations.clone();
        before.sort_by_key(|memory| memory.address);
        assert_eq!(again.allocations, before);
    }
    session.close();
    drop(session);
    assert_eq!(quota.view().used_bytes, 0, "{made:?}");
    made.is_ok()
}

/// A session that is restored while its virtual GPU is suspended does nothing before the resumption.
fn holds_still_where_its_virtual_gpu_does(
    first: &Arc<dyn Gpu>,
    saved: &SavedSession,
    manifest: &Manifest,
) {
    let (vgpu, session) = session(first, Arc::new(LocalQuota::new(LIMIT)), manifest);
    vgpu.suspend().unwrap();
    session.restore(saved).unwrap();
    let fill = Fill2d {
        dst: DevicePtr(saved.allocations[0].address),
        pitch: 0,
        value: 1,
        element_bytes: 1,
        width: 1,
        height: 1,
    };
    let stream = saved.contexts[0].default_stream;
    session.fill(stream, &fill).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(!session.gpu().is_idle(), "it was filled");
    vgpu.resume().unwrap();
    eventually("the fill", || session.gpu().is_idle());
    session.close();
}

#[test]
fn objects_that_were_changed_are_refused_or_within_all_limits() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start(dir.path());
    let created = control.create(&swappable("all")).unwrap();
    let client = mica_limits::connect_session(&environment(&created), "test").unwrap();
    let mut everything = training::Everything::begin(&client).unwrap();
    // Its host memory lies at the same addresses in this process, the program, where the devices below are to be.
    everything.free_host(&client).unwrap();
    let file = snapshot(&control, &created).unwrap();
    let opened = Snapshot::open(&file).unwrap();
    let manifest = opened.manifest().clone();
    let (saved, port) = opened.session().unwrap();
    // The program's own device is gone, so its addresses are free in this process too.
    let first: Arc<dyn Gpu> = Arc::new(SoftwareGpu::new(Config::default()).unwrap());
    assert!(restored(&first, &saved, &manifest), "as it was");
    holds_still_where_its_virtual_gpu_does(&first, &saved, &manifest);
    let right = objects(&saved, &port);
    let mut state = 77_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let (mut refused, mut made) = (0, 0);
    for _ in 0..ROUNDS {
        let mut wrong = right.clone();
        for _ in 0..1 + random() % 3 {
            let at = random() as usize % wrong.len();
            wrong[at] = match random() % 3 {
                0 => 0xff,
                1 => 0,
                _ => wrong[at] ^ (1 << (random() % 8)),
            };
        }
        let Some((saved, _)) = read_objects(&wrong) else {
            continue;
        };
        match restored(&first, &saved, &manifest) {
            true => made += 1,
            false => refused += 1,
        }
    }
    assert!(refused > 20 && made > 20, "{refused} refused, {made} made");
    restore(&control, &created, &file).unwrap();
    everything.check(&client).unwrap();
}

#[test]
fn a_position_that_the_program_has_not_come_to_ends_the_session_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start(dir.path());
    let created = control.create(&swappable("a")).unwrap();
    let (done, thread) = train(&created, 1 << 20);
    eventually("some steps", || {
        done.load(std::sync::atomic::Ordering::SeqCst) >= 3
    });
    let file = snapshot(&control, &created).unwrap();
    let opened = Snapshot::open(&file).unwrap();
    let (saved, mut port) = opened.session().unwrap();
    port.position = u64::MAX - 7;
    let lying = tempfile::tempfile().unwrap();
    let mut memory = vec![0; opened.manifest().memory.bytes as usize];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut memory, opened.manifest().memory.at)
        .unwrap();
    seal(&lying, opened.manifest(), &objects(&saved, &port), &memory).unwrap();
    restore(&control, &created, &lying).unwrap();
    assert!(thread.join().unwrap().is_err(), "its session is ended");
    eventually("nothing in use", || {
        control.get("a").unwrap().memory_used_bytes == 0
    });
}

#[test]
fn objects_are_charged_before_they_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start(dir.path());
    let created = control.create(&swappable("a")).unwrap();
    let (done, thread) = train(&created, 40);
    eventually("some steps", || {
        done.load(std::sync::atomic::Ordering::SeqCst) >= 3
    });
    let file = snapshot(&control, &created).unwrap();
    let manifest = Snapshot::open(&file).unwrap().manifest().clone();
    // The most that a file may have. The session may hold 1 GiB and as much as the virtual GPU has memory.
    let lying = tempfile::tempfile().unwrap();
    claim(&lying, &manifest, 1 << 30).unwrap();
    let why = restore(&control, &created, &lying).unwrap_err();
    assert!(
        why.contains("of host memory for the objects of a snapshot"),
        "{why}"
    );
    // Some that may be read, and are not what was written.
    let lying = tempfile::tempfile().unwrap();
    claim(&lying, &manifest, 1 << 20).unwrap();
    let why = restore(&control, &created, &lying).unwrap_err();
    assert!(why.contains("damaged"), "{why}");
    restore(&control, &created, &file).unwrap();
    assert!(thread.join().unwrap().is_ok());
}
