//! Memory and events that two programs of one virtual GPU share, each served by a worker of its own.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mica_limits::{LocalQuota, OpenedFile, Quota, SharedFile};
use mica_vgpu::{Vgpu, VgpuSpec};
use mica_wire::host::message::file_kinds;
use mica_wire::session::client::SessionClient;
use mica_wire::session::*;
use mica_worker::{DeviceSource, OutputBuffer, SharedFiles, SoftwareDevices, serve_sharing};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const MIB: u64 = 1 << 20;

/// A region whose memory nobody has made.
const UNMADE: [u8; 16] = [9; 16];

/// The files of one virtual GPU, as the daemon keeps them.
#[derive(Default)]
struct Files(Mutex<HashMap<[u8; 16], (OwnedFd, u64, u64)>>);

impl SharedFiles for Files {
    fn share(
        &self,
        name: [u8; 16],
        file: BorrowedFd<'_>,
        bytes: u64,
        what: u64,
    ) -> Result<(), String> {
        let file = file.try_clone_to_owned().unwrap();
        self.0.lock().unwrap().insert(name, (file, bytes, what));
        Ok(())
    }

    fn open(&self, name: [u8; 16]) -> Result<OpenedFile, String> {
        let files = self.0.lock().unwrap();
        if name == UNMADE && !files.contains_key(&name) {
            return Ok(OpenedFile::ToMake { bytes: 4 * MIB });
        }
        let (file, bytes, what) = files.get(&name).ok_or("no such file")?;
        let file = file.as_fd().try_clone_to_owned().unwrap();
        let (bytes, what) = (*bytes, *what);
        Ok(OpenedFile::Shared(SharedFile { file, bytes, what }))
    }

    fn keep_region(&self, _: [u8; 16], _: BorrowedFd<'_>, _: u64) {}

    fn forget(&self, name: [u8; 16]) {
        self.0.lock().unwrap().remove(&name);
    }
}

/// A program with a worker of its own.
struct Program {
    client: SessionClient,
    context: u64,
    stream: u64,
    quota: Arc<LocalQuota>,
}

fn program(files: &Arc<Files>) -> Program {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let quota = Arc::new(LocalQuota::new(64 * MIB));
    let devices = SoftwareDevices::new(0, Some(256 * MIB), None);
    let output = Arc::new(OutputBuffer::default());
    let gpu = devices.open(Arc::clone(&output)).unwrap();
    let vgpu = Vgpu::new(
        Arc::clone(&gpu),
        quota.clone(),
        VgpuSpec::new("test", 64 * MIB),
    );
    let files: Arc<dyn SharedFiles> = Arc::clone(files) as _;
    std::thread::spawn(move || {
        let own = devices.open(Arc::clone(&output)).unwrap();
        serve_sharing(&vgpu, own, output, theirs, files).unwrap()
    });
    let client = SessionClient::connect(ours, "test").unwrap();
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    Program {
        client,
        context: new.context,
        stream: new.default_stream,
        quota,
    }
}

impl Program {
    fn alloc(&self, bytes: u64) -> u64 {
        let context = self.context;
        self.client
            .call(&MemoryAlloc { context, bytes })
            .unwrap()
            .value
    }

    fn fill(&self, address: u64, value: u8) {
        self.client
            .write(self.stream, address, &[value; 64])
            .unwrap();
        self.client.synchronize(self.stream).unwrap();
    }

    fn byte(&self, address: u64) -> u8 {
        let mut byte = [0];
        self.client.read(self.stream, address, &mut byte).unwrap();
        byte[0]
    }

    /// Maps a frame and gives it back, so that the mapping alone holds it.
    fn map(&self, opened: &OpenedFrame) -> u64 {
        let bytes = opened.bytes;
        let address = self
            .client
            .call(&AddressReserve { bytes, align: 0 })
            .unwrap()
            .value;
        let frame = opened.frame;
        self.client.call(&FrameMap { address, frame }).unwrap();
        self.client
            .call(&FrameAccess {
                address,
                bytes,
                access: opened.access,
            })
            .unwrap();
        self.client.call(&FrameRelease { frame }).unwrap();
        address
    }

    fn used(&self) -> u64 {
        self.quota.view().used_bytes
    }
}

fn code<T: std::fmt::Debug>(result: Result<T, SessionError>) -> u32 {
    result.unwrap_err().cuda_code()
}

#[test]
fn two_programs_have_one_allocation_and_both_are_charged() {
    let files = Arc::new(Files::default());
    let (a, b) = (program(&files), program(&files));
    let here = a.alloc(4 * MIB);
    a.fill(here, 1);
    let share = ShareMemory {
        context: a.context,
        address: here,
    };
    let shared = a.client.call(&share).unwrap();
    assert_eq!(
        a.client.call(&share).unwrap(),
        shared,
        "one handle for one allocation"
    );
    assert_eq!(shared.bytes, 4 * MIB);
    let there = b.map(&b.client.call(&OpenShared { id: shared.id }).unwrap());
    assert_eq!(b.byte(there), 1);
    b.fill(there + MIB, 2);
    assert_eq!((a.byte(here + MIB), a.byte(here)), (2, 1));
    assert!(b.used() >= 4 * MIB, "{}", b.used());
    let (context, address) = (a.context, here);
    a.client.call(&MemoryFree { context, address }).unwrap();
    assert!(
        files.0.lock().unwrap().is_empty(),
        "shared as long as it is there"
    );
    assert_eq!(code(b.client.call(&OpenShared { id: shared.id })), 1);
    assert_eq!(b.byte(there + MIB), 2, "who has it keeps it");
    let bytes = 4 * MIB;
    b.client
        .call(&FrameUnmap {
            address: there,
            bytes,
        })
        .unwrap();
    b.client
        .call(&AddressFree {
            address: there,
            bytes,
        })
        .unwrap();
    assert_eq!(b.used(), 0);
}

#[test]
fn frames_are_shared_and_their_names_end_with_them() {
    let files = Arc::new(Files::default());
    let (a, b) = (program(&files), program(&files));
    let frame = a
        .client
        .call(&FrameCreate { bytes: 2 * MIB })
        .unwrap()
        .value;
    let shared = a.client.call(&ShareFrame { frame }).unwrap();
    let opened = b.client.call(&OpenShared { id: shared.id }).unwrap();
    let there = b.map(&opened);
    b.fill(there, 7);
    let here = a.map(&OpenedFrame {
        frame,
        bytes: shared.bytes,
        access: 3,
    });
    assert_eq!(a.byte(here), 7);
    assert!(
        files.0.lock().unwrap().is_empty(),
        "the handle was released"
    );
    assert_eq!(code(a.client.call(&ShareFrame { frame })), 400);
}

#[test]
fn a_region_is_one_piece_of_memory_that_nobody_who_opens_it_is_charged_for() {
    let files = Arc::new(Files::default());
    let (a, b) = (program(&files), program(&files));
    let opened = a.client.call(&OpenShared { id: UNMADE }).unwrap();
    assert_eq!((opened.bytes, opened.access), (4 * MIB, 3));
    let here = a.map(&opened);
    a.fill(here + MIB, 7);
    let there = b.map(&b.client.call(&OpenShared { id: UNMADE }).unwrap());
    assert_eq!(b.byte(there + MIB), 7);
    assert_eq!((a.used(), b.used()), (0, 0));
    drop(a);
    b.fill(there, 8);
    let c = program(&files);
    let third = c.map(&c.client.call(&OpenShared { id: UNMADE }).unwrap());
    assert_eq!((c.byte(third), c.byte(third + MIB)), (8, 7));
}

#[test]
fn a_region_that_may_be_read_cannot_be_written_whatever_a_client_asks_for() {
    let files = Arc::new(Files::default());
    let made = create_sealed("region", 2 * MIB).unwrap();
    rustix::io::pwrite(&made, &[5; 64], 0).unwrap();
    let read_only = file_kinds::READ_ONLY_REGION;
    files
        .share([4; 16], made.as_fd(), 2 * MIB, read_only)
        .unwrap();
    let a = program(&files);
    let opened = a.client.call(&OpenShared { id: [4; 16] }).unwrap();
    assert_eq!(opened.access, 1);
    let bytes = opened.bytes;
    let address = a.client.call(&AddressReserve { bytes, align: 0 });
    let address = address.unwrap().value;
    let frame = opened.frame;
    a.client.call(&FrameMap { address, frame }).unwrap();
    let with = |access| FrameAccess {
        address,
        bytes,
        access,
    };
    assert_eq!(code(a.client.call(&with(3))), 1);
    a.client.call(&with(1)).unwrap();
    assert_eq!(a.byte(address), 5);
    let written = a.client.write(a.stream, address, &[6; 64]);
    let written = written.and_then(|()| a.client.synchronize(a.stream));
    assert!(written.is_err(), "a copy into memory that may be read");
    let mut still = [0];
    rustix::io::pread(&made, &mut still, 0).unwrap();
    assert_eq!(still, [5]);
}

#[test]
fn forged_handles_and_what_cannot_be_shared_are_refused() {
    let files = Arc::new(Files::default());
    let (a, b) = (program(&files), program(&files));
    assert_eq!(code(b.client.call(&OpenShared { id: [7; 16] })), 1);
    let small = a.alloc(1024);
    let refused = a.client.call(&ShareMemory {
        context: a.context,
        address: small,
    });
    assert_eq!(code(refused), 801);
    let large = a.alloc(4 * MIB);
    let inside = ShareMemory {
        context: a.context,
        address: large + 4096,
    };
    assert_eq!(code(a.client.call(&inside)), 1);
    // A page of events is no memory, and memory no page of events.
    let event = a
        .client
        .call(&EventCreateShared { context: a.context })
        .unwrap()
        .value;
    let page = a.client.call(&ShareEvent { event }).unwrap();
    assert_eq!(code(b.client.call(&OpenShared { id: page.id })), 1);
    let memory = a
        .client
        .call(&ShareMemory {
            context: a.context,
            address: large,
        })
        .unwrap();
    let open = |id, slot| {
        b.client.call(&OpenSharedEvent {
            context: b.context,
            id,
            slot,
        })
    };
    assert_eq!(code(open(memory.id, 0)), 1);
    assert_eq!(code(open(page.id, u32::MAX)), 1);
    // More than the limit of the one who opens it.
    let most = a.alloc(40 * MIB);
    let most = a
        .client
        .call(&ShareMemory {
            context: a.context,
            address: most,
        })
        .unwrap();
    b.alloc(30 * MIB);
    assert_eq!(code(b.client.call(&OpenShared { id: most.id })), 2);
    // A worker of the same tenant that lies about a file.
    let cut = rustix::fs::memfd_create("cut", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&cut, 2 * MIB).unwrap();
    files.share([9; 16], cut.as_fd(), 2 * MIB, 1).unwrap();
    assert_eq!(code(b.client.call(&OpenShared { id: [9; 16] })), 1);
    b.client.call(&Ping {}).unwrap();
}

#[test]
fn an_event_of_one_program_is_waited_for_by_another() {
    let files = Arc::new(Files::default());
    let (a, b) = (program(&files), program(&files));
    let event = a
        .client
        .call(&EventCreateShared { context: a.context })
        .unwrap()
        .value;
    // A host function holds the stream up.
    let callback = StreamCallback {
        stream: a.stream,
        callback: 1,
    };
    a.client.post(&callback, &[]).unwrap();
    let record = EventRecord {
        event,
        stream: a.stream,
    };
    a.client.post(&record, &[]).unwrap();
    let page = a.client.call(&ShareEvent { event }).unwrap();
    let open = OpenSharedEvent {
        context: b.context,
        id: page.id,
        slot: page.slot,
    };
    let theirs = b.client.call(&open).unwrap().value;
    assert!(!b.client.call(&EventQuery { event: theirs }).unwrap().value);
    assert!(!a.client.call(&EventQuery { event }).unwrap().value);
    let due = a.client.next_notice(Duration::from_secs(10)).unwrap();
    a.client
        .post(
            &CallbackDone {
                callback: due.unwrap(),
            },
            &[],
        )
        .unwrap();
    b.client.call(&EventSynchronize { event: theirs }).unwrap();
    assert!(b.client.call(&EventQuery { event: theirs }).unwrap().value);
    a.client.call(&EventSynchronize { event }).unwrap();
    // And the other way round.
    let record = EventRecord {
        event: theirs,
        stream: b.stream,
    };
    b.client.post(&record, &[]).unwrap();
    a.client.call(&EventSynchronize { event }).unwrap();
    assert_eq!(
        code(b.client.call(&ShareEvent { event: theirs })),
        1,
        "not theirs to hand on"
    );
}
