//! Copies that the program does itself, and waits that run short kernels, on the software GPU through a
//! worker's session.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mica_limits::LocalQuota;
use mica_vgpu::{Vgpu, VgpuSpec};
use mica_wire::session::client::SessionClient;
use mica_wire::session::transport::ClientTransport;
use mica_wire::session::*;
use mica_worker::{DeviceSource, OutputBuffer, SoftwareDevices, serve_session};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// Adds 1 to a 32-bit word, after so many turns of a loop; waits until a word is so much.
const KERNEL: &[u8] = b".version 7.0\n.target sm_75\n.address_size 64\n
.visible .entry bump(.param .u64 p, .param .u32 n)\n{
    .reg .u64 %a; .reg .u32 %v, %n; .reg .pred %done;
    ld.param.u64 %a, [p]; ld.param.u32 %n, [n];
again:
    setp.eq.u32 %done, %n, 0; @%done bra out;
    sub.u32 %n, %n, 1; bra again;
out:
    ld.global.u32 %v, [%a]; add.u32 %v, %v, 1; st.global.u32 [%a], %v; ret;
}\n
.visible .entry until(.param .u64 p, .param .u32 n)\n{
    .reg .u64 %a; .reg .u32 %v, %n; .reg .pred %less;
    ld.param.u64 %a, [p]; ld.param.u32 %n, [n];
again:
    ld.volatile.global.u32 %v, [%a]; setp.lo.u32 %less, %v, %n; @%less bra again; ret;
}\n\0";

struct Program {
    client: Arc<SessionClient>,
    vgpu: Arc<Vgpu>,
    new: NewContext,
    module: u64,
    served: JoinHandle<()>,
}

fn sockets() -> (OwnedFd, OwnedFd) {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap()
}

fn program() -> Program {
    let devices = SoftwareDevices::new(0, Some(256 << 20), None);
    let output = Arc::new(OutputBuffer::default());
    let gpu = devices.open(Arc::clone(&output)).unwrap();
    let quota = Arc::new(LocalQuota::new(256 << 20));
    let spec = VgpuSpec::new("test", 256 << 20);
    let vgpu = Vgpu::new(Arc::clone(&gpu), quota, spec);
    let (ours, theirs) = sockets();
    let serving = Arc::clone(&vgpu);
    let served = std::thread::spawn(move || {
        serve_session(&serving, gpu, output, theirs, None).unwrap();
    });
    let client = Arc::new(SessionClient::connect(ours, "test").unwrap());
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let module = client
        .module_load(new.context, KERNEL, false)
        .unwrap()
        .module;
    Program {
        client,
        vgpu,
        new,
        module,
        served,
    }
}

impl Program {
    fn alloc(&self, bytes: u64) -> u64 {
        let context = self.new.context;
        self.client
            .call(&MemoryAlloc { context, bytes })
            .unwrap()
            .value
    }

    fn free(&self, address: u64) {
        let context = self.new.context;
        self.client.call(&MemoryFree { context, address }).unwrap();
    }

    fn bump(&self, stream: u64, address: u64, turns: u32) {
        self.launch(0, stream, address, turns, 1);
    }

    fn launch(&self, kernel: u32, stream: u64, address: u64, number: u32, blocks: u32) {
        let launch = Launch {
            stream,
            module: self.module,
            kernel,
            grid: [blocks, 1, 1],
            block: [1; 3],
            dynamic_shared: 0,
            cooperative: false,
        };
        let mut params = address.to_le_bytes().to_vec();
        params.extend(number.to_le_bytes());
        self.client.launch(&launch, &params).unwrap();
    }

    fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        let stream = self.new.default_stream;
        self.client.read(stream, address, &mut data).unwrap();
        data
    }

    /// Bytes that the worker moved for the program.
    fn moved(&self) -> u64 {
        let now = self.vgpu.statistics();
        let own = self.client.window_bytes();
        now.bytes_from_host + now.bytes_to_host - own.0 - own.1
    }

    fn end(self) {
        drop(self.client);
        self.served.join().unwrap();
    }
}

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at * 7 + at / 4096 + seed) as u8)
        .collect()
}

#[test]
fn large_copies_are_made_by_the_program_and_kernels_see_them() {
    let p = program();
    let stream = p.new.default_stream;
    for bytes in [70_000, 1 << 20, (5 << 20) + 123] {
        let address = p.alloc(bytes as u64);
        let data = pattern(bytes, 1);
        p.client.write_now(stream, address, &data).unwrap();
        assert_eq!(p.read(address, bytes), data);
        // Kernels and copies see each other's writes, in order, whatever their size.
        for turns in [0, 1_000_000] {
            p.client
                .write_now(stream, address, &5_u32.to_le_bytes())
                .unwrap();
            p.bump(stream, address, turns);
            assert_eq!(p.read(address, 4), 6_u32.to_le_bytes());
            p.bump(stream, address, turns);
            assert_eq!(p.read(address, bytes)[..4], 7_u32.to_le_bytes());
        }
        p.free(address);
    }
    assert_eq!(p.moved(), 0, "nothing went through the worker");
    p.end();
}

#[test]
fn what_kernels_wrote_before_the_first_copy_is_there() {
    let p = program();
    let bytes = 6 << 20;
    let address = p.alloc(bytes);
    for at in [0, 4096, bytes - 4] {
        p.bump(p.new.default_stream, address + at, 10);
    }
    let seen = p.read(address, bytes as usize);
    let mut expected = vec![0; bytes as usize];
    for at in [0, 4096, bytes as usize - 4] {
        expected[at] = 1;
    }
    assert!(seen == expected);
    p.end();
}

#[test]
fn a_window_is_opened_under_a_running_kernel() {
    let p = program();
    let context = p.new.context;
    let request = StreamCreate {
        context,
        non_blocking: true,
        priority: 0,
    };
    let other = p.client.call(&request).unwrap().value;
    let address = p.alloc(4 << 20);
    for _ in 0..40 {
        p.bump(other, address, 200_000);
    }
    // Another part of the same memory: no order is asked for, and nothing may get lost.
    let data = pattern(1 << 20, 3);
    let at = address + (2 << 20);
    p.client.write_now(p.new.default_stream, at, &data).unwrap();
    p.client.call(&StreamSynchronize { stream: other }).unwrap();
    assert_eq!(p.read(address, 4), 40_u32.to_le_bytes());
    assert_eq!(p.read(at, data.len()), data);
    p.end();
}

#[test]
fn a_copy_on_an_idle_blocking_stream_comes_behind_the_default_streams_work() {
    let p = program();
    let request = StreamCreate {
        context: p.new.context,
        non_blocking: false,
        priority: 0,
    };
    let blocking = p.client.call(&request).unwrap().value;
    let address = p.alloc(4 << 20);
    let zeros = vec![0; 4 << 20];
    let default = p.new.default_stream;
    p.client.write_now(default, address, &zeros).unwrap();
    for round in 1..=5_u32 {
        p.bump(default, address, 2_000_000);
        let mut seen = vec![0; 1 << 20];
        p.client.read(blocking, address, &mut seen).unwrap();
        assert_eq!(seen[..4], round.to_le_bytes());
    }
    p.end();
}

#[test]
fn waits_for_short_kernels_are_not_held_up_by_endless_ones() {
    let p = program();
    let context = p.new.context;
    let stream = |non_blocking| {
        let request = StreamCreate {
            context,
            non_blocking,
            priority: 0,
        };
        p.client.call(&request).unwrap().value
    };
    let (endless, short) = (stream(true), stream(false));
    let words = p.alloc(4096);
    let fill = Fill {
        stream: short,
        address: words,
        pitch: 0,
        value: 0,
        element_bytes: 4,
        width: 1024,
        height: 1,
    };
    p.client.post(&fill, &[]).unwrap();
    let wait = |stream| p.client.call(&StreamSynchronize { stream }).unwrap();
    wait(short);
    // Ends when the short kernels, which are waited for one by one, have run so often.
    p.launch(1, endless, words, 300, 3);
    for round in 0..300_u32 {
        p.bump(short, words, 0);
        match round % 3 {
            0 => drop(wait(short)),
            1 => drop(wait(p.new.default_stream)),
            // Given to other threads: nobody waits for it yet.
            _ => {}
        }
    }
    p.client.call(&ContextSynchronize { context }).unwrap();
    assert_eq!(p.read(words, 4), 300_u32.to_le_bytes());
    p.end();
}

#[test]
fn memory_that_is_freed_loses_its_window() {
    let p = program();
    let stream = p.new.default_stream;
    let used_before = p.vgpu.statistics().used_bytes;
    let first = p.alloc(2 << 20);
    p.client
        .write_now(stream, first, &pattern(2 << 20, 1))
        .unwrap();
    p.free(first);
    // The same piece of the file serves other memory each time.
    for round in 0..6 {
        let address = p.alloc(2 << 20);
        assert_eq!(p.read(address, 100_000), vec![0; 100_000], "round {round}");
        let data = pattern(2 << 20, round);
        p.client.write_now(stream, address, &data).unwrap();
        p.bump(stream, address, 0);
        let mut expected = data;
        let word = u32::from_le_bytes(expected[..4].try_into().unwrap()).wrapping_add(1);
        expected[..4].copy_from_slice(&word.to_le_bytes());
        assert!(p.read(address, 2 << 20) == expected);
        p.free(address);
    }
    assert_eq!(p.vgpu.statistics().used_bytes, used_before);
    let mut data = vec![0; 100_000];
    assert!(p.client.read(stream, first, &mut data).is_err());
    p.end();
}

#[test]
fn a_suspended_virtual_gpu_has_no_windows_and_its_copies_wait() {
    let p = program();
    let stream = p.new.default_stream;
    let address = p.alloc(1 << 20);
    let data = pattern(1 << 20, 9);
    p.client.write_now(stream, address, &data).unwrap();
    let direct = p.client.window_bytes();
    p.vgpu.suspend().unwrap();
    let other = pattern(1 << 20, 4);
    let (client, (sender, written)) = (Arc::clone(&p.client), std::sync::mpsc::channel());
    let late = other.clone();
    std::thread::spawn(move || sender.send(client.write_now(stream, address, &late)));
    let early = written.recv_timeout(Duration::from_millis(100));
    assert!(early.is_err(), "the copy did not wait");
    assert_eq!(p.client.window_bytes(), direct, "the worker does these");
    p.vgpu.resume().unwrap();
    written
        .recv_timeout(Duration::from_secs(60))
        .unwrap()
        .unwrap();
    assert_eq!(p.read(address, 1 << 20), other);
    p.client.write_now(stream, address, &data).unwrap();
    assert_eq!(p.read(address, 1 << 20), data);
    assert_ne!(p.client.window_bytes(), direct);
    p.end();
}

#[test]
fn a_dead_worker_is_noticed_by_copies() {
    let p = program();
    let stream = p.new.default_stream;
    let address = p.alloc(1 << 20);
    let data = pattern(1 << 20, 2);
    p.client.write_now(stream, address, &data).unwrap();
    let client = Arc::clone(&p.client);
    // A call that makes no sense ends the session.
    client.transport().post(9999, None, &[], &[]).unwrap();
    let began = Instant::now();
    while client.write_now(stream, address, &data).is_ok() {
        assert!(began.elapsed() < Duration::from_secs(120), "never noticed");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(client);
    p.end();
}
