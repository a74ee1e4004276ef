//! A worker's session with this process, on a device made of vectors.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod host;
pub(crate) mod nvidia;
pub(crate) mod stand_in;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

use mica_limits::{LocalQuota, Quota};
use mica_vgpu::test_gpu::TestGpu;
use mica_vgpu::{Vgpu, VgpuSpec};
use mica_wire::host::socket::HostSocket;
use mica_wire::session::client::SessionClient;
use mica_wire::session::{
    AREA_AT, HEAP_AT, Handshake, LEAST_IVSHMEM_BYTES, Mapping, SESSION_VERSION, SessionArea,
    create_sealed,
};
use mica_worker::{OutputBuffer, serve_session};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

pub(crate) const MODULE: &[u8] = b"fill 8 4 4\nadd 8 4 4\nfault\nblock\nglobal counter 64\n";

pub(crate) struct Bench {
    pub(crate) gpu: Arc<TestGpu>,
    pub(crate) quota: Arc<LocalQuota>,
    pub(crate) vgpu: Arc<Vgpu>,
}

pub(crate) type Served = JoinHandle<Option<String>>;

pub(crate) fn bench(limit: u64) -> Bench {
    let gpu = Arc::new(TestGpu::new(1 << 32));
    let quota = Arc::new(LocalQuota::new(limit));
    let spec = VgpuSpec::new("test", limit);
    let vgpu = Vgpu::new(gpu.clone(), quota.clone(), spec);
    Bench { gpu, quota, vgpu }
}

impl Bench {
    pub(crate) fn socket(&self) -> (OwnedFd, Served) {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let (vgpu, gpu) = (self.vgpu.clone(), self.gpu.clone());
        let output = Arc::new(OutputBuffer::default());
        let served = std::thread::spawn(move || {
            serve_session(&vgpu, gpu, output, theirs, None).unwrap_or(None)
        });
        (ours, served)
    }

    pub(crate) fn client(&self) -> (Arc<SessionClient>, Served) {
        let (socket, served) = self.socket();
        (
            Arc::new(SessionClient::connect(socket, "test").unwrap()),
            served,
        )
    }

    pub(crate) fn used(&self) -> u64 {
        self.quota.view().used_bytes
    }

    /// Everything is back.
    pub(crate) fn assert_clean(&self) {
        assert_eq!((self.used(), self.gpu.leftovers()), (0, 0));
    }
}

pub(crate) fn params(address: u64, count: u32, value: u32) -> Vec<u8> {
    let mut bytes = address.to_le_bytes().to_vec();
    bytes.extend(count.to_le_bytes());
    bytes.extend(value.to_le_bytes());
    bytes
}

/// Shakes hands as a program does; answers the socket, the area, and the area's bytes. Every other session lies in a
/// ivshmem file, as that of a program in a virtual machine.
pub(crate) fn shake_hands(socket: OwnedFd) -> (HostSocket, SessionArea, Mapping) {
    static SESSIONS: AtomicU32 = AtomicU32::new(0);
    let socket = HostSocket::from_fd(socket);
    let version = SESSION_VERSION.into();
    if SESSIONS.fetch_add(1, Relaxed).is_multiple_of(2) {
        socket.send(&Handshake::Hello { version }, &[]).unwrap();
        let (_, fds) = socket.receive().unwrap();
        let fd = fds.into_iter().next().unwrap();
        let len = rustix::fs::fstat(&fd).unwrap().st_size as usize;
        let bytes = Mapping::new(fd.try_clone().unwrap(), 0, len).unwrap();
        return (socket, SessionArea::adopt(fd).unwrap(), bytes);
    }
    let ivshmem = create_sealed("ivshmem", LEAST_IVSHMEM_BYTES).unwrap();
    let hello = Handshake::Hello { version };
    socket.send(&hello, &[ivshmem.as_fd()]).unwrap();
    let (answer, fds) = socket.receive().unwrap();
    assert!(matches!(answer.read(), Ok(Handshake::Ivshmem { .. })));
    assert!(fds.is_empty());
    let area = SessionArea::in_ivshmem(ivshmem.try_clone().unwrap()).unwrap();
    let len = (HEAP_AT - AREA_AT) as usize;
    (socket, area, Mapping::new(ivshmem, AREA_AT, len).unwrap())
}
