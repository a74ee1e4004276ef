//! A program's session through a tunnel, with a worker on a device made of vectors.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use mica_limits::{LocalQuota, Quota};
use mica_tunnel::near::LinkStats;
use mica_tunnel::{Carrier, RecordPort, SocketCarrier, far, near};
use mica_vgpu::test_gpu::TestGpu;
use mica_vgpu::{Vgpu, VgpuSpec};
use mica_wire::session::client::SessionClient;
use mica_worker::{OutputBuffer, serve_session};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

pub(crate) struct Bench {
    pub(crate) gpu: Arc<TestGpu>,
    pub(crate) quota: Arc<LocalQuota>,
    pub(crate) vgpu: Arc<Vgpu>,
    pub(crate) caches: far::Caches,
}

/// A program's session, and what serves it.
pub(crate) struct Through {
    pub(crate) client: SessionClient,
    pub(crate) stats: Arc<LinkStats>,
    pub(crate) wire: UnixStream,
    threads: Vec<JoinHandle<()>>,
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

pub(crate) fn bench(limit: u64) -> Bench {
    let gpu = Arc::new(TestGpu::new(1 << 32));
    let quota = Arc::new(LocalQuota::new(limit));
    let vgpu = Vgpu::new(gpu.clone(), quota.clone(), VgpuSpec::new("test", limit));
    Bench {
        gpu,
        quota,
        vgpu,
        caches: far::Caches::default(),
    }
}

/// A wire that takes so many bytes a second.
struct Slow(SocketCarrier<UnixStream>, u64);

impl Carrier for Slow {
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let seconds = bytes.len() as f64 / self.1 as f64;
        std::thread::sleep(Duration::from_secs_f64(seconds));
        self.0.send(bytes)
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.receive(buffer)
    }

    fn close(&self) {
        self.0.close();
    }
}

impl Bench {
    pub(crate) fn through(&self) -> Through {
        self.through_at(u64::MAX)
    }

    /// A session whose program reaches the worker over a wire that takes so many bytes a second.
    pub(crate) fn through_at(&self, bytes_per_second: u64) -> Through {
        let (program, near_end) = pair();
        let (near_wire, far_wire) = UnixStream::pair().unwrap();
        let wire = near_wire.try_clone().unwrap();
        let stats = Arc::new(LinkStats::default());
        let stats_there = stats.clone();
        let mut threads = self.serve(far_wire);
        threads.push(std::thread::spawn(move || {
            let wire = Slow(SocketCarrier::new(near_wire), bytes_per_second);
            let _ = near::serve(near_end, None, Arc::new(wire), stats_there);
        }));
        Through {
            client: SessionClient::connect(program, "test").unwrap(),
            stats,
            wire,
            threads,
        }
    }

    /// A worker and the end of a tunnel beside it.
    pub(crate) fn serve(&self, wire: UnixStream) -> Vec<JoinHandle<()>> {
        let (worker, far_end) = pair();
        let (vgpu, gpu) = (self.vgpu.clone(), self.gpu.clone());
        let output = Arc::new(OutputBuffer::default());
        let caches = self.caches.clone();
        vec![
            std::thread::spawn(move || {
                serve_session(&vgpu, gpu, output, worker, None).unwrap();
            }),
            std::thread::spawn(move || {
                let far_end = RecordPort::connect(far_end).unwrap();
                let wire = Arc::new(SocketCarrier::new(wire));
                let _ = far::serve(far_end, wire, caches, &Default::default());
            }),
        ]
    }

    pub(crate) fn assert_clean(&self) {
        assert_eq!((self.quota.view().used_bytes, self.gpu.leftovers()), (0, 0));
    }
}

impl Through {
    pub(crate) fn end(self) {
        drop(self.client);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}
