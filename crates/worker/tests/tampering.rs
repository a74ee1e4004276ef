//! A hostile program with the shared area in its hands: thousands of seeded ways to lie about the ring,
//! each of which ends its own session and nothing else.
//!
//! Beside it an honest session of the same worker computes all the time, and every sum it reads back is
//! right. The area is written as bytes, past the library that a well-behaved program uses.

mod common;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::mpsc::channel;
use std::time::Duration;

use common::{Bench, MODULE, bench, params, shake_hands};
use mica_wire::host::socket::HostSocket;
use mica_wire::session::client::SessionClient;
use mica_wire::session::*;

/// Where things lie in the area; `the_layout_is_the_one_assumed_here` holds these to it.
const TAIL_AT: usize = 0;
const WORKER_LINE_AT: usize = 64;
const CHUNK_STATES_AT: usize = 8 << 10;
const RING_AT: usize = 16 << 10;
const SLOTS_AT: usize = RING_AT + RING_BYTES;
const NO_SLOT: u16 = u16::MAX;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize].clone()
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// A program that shook hands and then writes what it likes.
struct Liar {
    _socket: HostSocket,
    area: SessionArea,
    bytes: Mapping,
    producer: Producer,
}

impl Liar {
    fn new(socket: OwnedFd) -> Self {
        let (socket, area, bytes) = shake_hands(socket);
        Self {
            _socket: socket,
            area,
            bytes,
            producer: Producer::default(),
        }
    }

    fn push(&mut self, call: u16, slot: u16, body: &[u8]) {
        self.producer.try_push(&self.area, call, slot, body, &[]);
    }

    fn post<R: Request>(&mut self, request: &R) {
        self.push(R::NUMBER, NO_SLOT, request.encode().as_slice());
    }

    fn call<R: Request>(&mut self, slot: u16, request: &R) {
        self.push(R::NUMBER, slot, request.encode().as_slice());
    }

    fn set_tail(&self, tail: u64) {
        self.bytes.write(TAIL_AT, &tail.to_ne_bytes());
        self.wake();
    }

    fn tail(&self) -> u64 {
        let mut bytes = [0; 8];
        self.bytes.read(TAIL_AT, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    /// Rings the doorbell behind the tail.
    fn wake(&self) {
        let word = self.bytes.as_ptr().wrapping_add(TAIL_AT + 8).cast::<u32>();
        // SAFETY: inside the mapping, aligned, and an atomic for everybody who touches it.
        let bell = unsafe { std::sync::atomic::AtomicU32::from_ptr(word) };
        bell.fetch_add(1, Release);
        let _ = rustix::thread::futex::wake(bell, rustix::thread::futex::Flags::empty(), 8);
    }

    fn record(&self, at: u64, length: u32, call: u16, slot: u16) {
        let mut header = [0; 16];
        header[..4].copy_from_slice(&length.to_le_bytes());
        header[4..6].copy_from_slice(&call.to_le_bytes());
        header[6..8].copy_from_slice(&slot.to_le_bytes());
        self.bytes.write(RING_AT + at as usize, &header);
    }
}

/// Lets a liar loose; answers why its session ended, `None` if it only left.
fn session(b: &Bench, lie: impl FnOnce(&mut Liar)) -> Option<String> {
    let (socket, served) = b.socket();
    let mut liar = Liar::new(socket);
    lie(&mut liar);
    drop(liar);
    let (sender, ended) = channel();
    std::thread::spawn(move || sender.send(served.join()));
    let ended = ended.recv_timeout(Duration::from_secs(60));
    ended
        .expect("the session does not end")
        .expect("the worker panicked")
}

/// A lie that must be found: waits until it is, then leaves.
fn caught(b: &Bench, lie: impl FnOnce(&mut Liar)) -> String {
    let (socket, served) = b.socket();
    let mut liar = Liar::new(socket);
    lie(&mut liar);
    let (sender, ended) = channel();
    std::thread::spawn(move || sender.send(served.join()));
    let ended = ended.recv_timeout(Duration::from_secs(60));
    let reason = ended
        .expect("the lie is believed")
        .expect("the worker panicked");
    drop(liar);
    reason.expect("a reason")
}

/// A tenant who adds numbers until told to stop, and says how many sums it has checked.
fn honest(client: &SessionClient, stop: &AtomicBool) -> u64 {
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream) = (new.context, new.default_stream);
    let module = client.module_load(context, MODULE, false).unwrap().module;
    let bytes = 4096;
    let address = client.call(&MemoryAlloc { context, bytes }).unwrap().value;
    let launch = |kernel: u32, value: u32| {
        let launch = Launch {
            stream,
            module,
            kernel,
            grid: [1; 3],
            block: [1; 3],
            dynamic_shared: 0,
            cooperative: false,
        };
        client
            .launch(&launch, &params(address, 1024, value))
            .unwrap();
    };
    let mut checked = 0;
    while !stop.load(Acquire) || checked == 0 {
        let first = checked as u32;
        launch(0, first);
        for _ in 0..3 {
            launch(1, 7);
        }
        let mut back = [0; 4096];
        client.read(stream, address, &mut back).unwrap();
        for word in back.chunks_exact(4) {
            let word = u32::from_le_bytes(word.try_into().unwrap());
            assert_eq!(word, first + 21, "after {checked} sums");
        }
        checked += 1;
    }
    client.call(&ContextDestroy { context }).unwrap();
    checked
}

/// Runs lies beside an honest tenant, then looks for anything that was left behind.
fn beside_an_honest_tenant(lies: impl FnOnce(&Bench)) {
    let b = bench(256 << 20);
    let (client, served) = b.client();
    let stop = Arc::new(AtomicBool::new(false));
    let tenant = {
        let (client, stop) = (Arc::clone(&client), Arc::clone(&stop));
        std::thread::spawn(move || honest(&client, &stop))
    };
    lies(&b);
    stop.store(true, Release);
    assert!(tenant.join().unwrap() > 0);
    drop(client);
    assert_eq!(served.join().unwrap(), None);
    b.assert_clean();
}

#[test]
fn the_layout_is_the_one_assumed_here() {
    let b = bench(1 << 20);
    session(&b, |liar| {
        liar.push(Ping::NUMBER, 5, &[]);
        let mut header = [0; 8];
        liar.bytes.read(RING_AT, &mut header);
        assert_eq!(header, [16, 0, 0, 0, Ping::NUMBER as u8, 0, 5, 0]);
        assert_eq!(liar.tail(), 16);
    });
}

#[test]
fn positions_that_lie_end_the_session() {
    beside_an_honest_tenant(|b| {
        let mut random = Random(0x5eed_0001);
        for _ in 0..150 {
            let pushed = random.below(5);
            let tail = match random.below(4) {
                // Backwards.
                0 if pushed > 0 => pushed * 16 - 8 * (1 + random.below(pushed * 2)),
                // Beyond the ring.
                1 => pushed * 16 + RING_BYTES as u64 + 8 + random.below(1 << 20),
                2 => u64::MAX - random.below(1 << 30),
                _ => 1 << (32 + random.below(32)),
            };
            let reason = caught(b, |liar| {
                for _ in 0..pushed {
                    liar.push(Ping::NUMBER, 1, &[]);
                }
                // Read to here: only then is an earlier position one that runs backwards.
                while head(liar) < pushed * 16 {
                    std::thread::yield_now();
                }
                liar.set_tail(tail);
            });
            assert!(reason.contains("the ring's end"), "{tail}: {reason}");
        }
    });
}

fn head(liar: &Liar) -> u64 {
    let mut bytes = [0; 8];
    liar.bytes.read(WORKER_LINE_AT, &mut bytes);
    u64::from_ne_bytes(bytes)
}

#[test]
fn lengths_slots_and_numbers_that_lie_end_the_session() {
    beside_an_honest_tenant(|b| {
        let mut random = Random(0x5eed_0002);
        for round in 0..300 {
            let announced = 16 + 8 * random.below(64);
            let reason = match random.below(4) {
                0 => caught(b, |liar| {
                    let length = random.pick(&[0, 1, 15, u32::MAX, 1 << 31]);
                    liar.record(0, length, Ping::NUMBER, 0);
                    liar.set_tail(announced);
                }),
                1 => caught(b, |liar| {
                    // Longer than what was announced: a record cut off.
                    let length = announced as u32 + 1 + random.below(1 << 16) as u32;
                    liar.record(0, length, Launch::NUMBER, NO_SLOT);
                    liar.set_tail(announced);
                }),
                2 => caught(b, |liar| {
                    let slot = 64 + random.below(60_000) as u16;
                    liar.push(Ping::NUMBER, slot, &[]);
                }),
                _ => caught(b, |liar| {
                    let unknown = 101 + random.below(60_000) as u16;
                    let body = random.bytes(40);
                    liar.push(unknown, NO_SLOT, &body);
                }),
            };
            let known = ["a record claims", "reply slot", "no call has number"];
            assert!(
                known.iter().any(|part| reason.contains(part)),
                "round {round}: {reason}"
            );
        }
    });
}

#[test]
fn rings_full_of_noise_hurt_nobody() {
    beside_an_honest_tenant(|b| {
        let mut random = Random(0x5eed_0003);
        for round in 0..300 {
            let length = 8 * (1 + random.below(512)) as usize;
            // Small numbers pass more of the checks; pure noise never passes the first.
            let pure = round % 2 == 0;
            let noise = match pure {
                true => random.bytes(length),
                false => (0..length).map(|_| random.below(3) as u8 * 16).collect(),
            };
            let lie = |liar: &mut Liar| {
                liar.bytes.write(RING_AT, &noise);
                liar.set_tail(length as u64);
                // Noise while the worker reads it.
                for _ in 0..20 {
                    let at = random.below(length as u64 / 8) as usize * 8;
                    let word = random.next().to_ne_bytes();
                    liar.bytes.write(RING_AT + at, &word);
                }
                liar.wake();
            };
            match pure {
                true => drop(caught(b, lie)),
                false => drop(session(b, lie)),
            }
        }
    });
}

#[test]
fn calls_with_flipped_bits_and_forged_handles_hurt_nobody() {
    beside_an_honest_tenant(|b| {
        let mut random = Random(0x5eed_0004);
        for _ in 0..150 {
            session(b, |liar| {
                for _ in 0..20 {
                    let call = random.pick(CALLS);
                    // Handles are small numbers and addresses multiples of pages: forge both.
                    let words = random.below(12) as usize;
                    let mut body = Vec::new();
                    for _ in 0..words {
                        let word = match random.below(5) {
                            0 => random.next(),
                            1 => random.below(64),
                            2 => random.below(1 << 20) << 12,
                            3 => u64::MAX - random.below(3),
                            _ => (random.below(16) << 32) | random.below(16),
                        };
                        body.extend(word.to_le_bytes());
                    }
                    body.truncate(body.len() - random.below(body.len() as u64 / 8 + 1) as usize);
                    if let (0, false) = (random.below(3), body.is_empty()) {
                        let at = random.below(body.len() as u64) as usize;
                        body[at] ^= 1 << random.below(8);
                    }
                    let slot = match call.class {
                        Class::Posted => NO_SLOT,
                        _ => random.below(64) as u16,
                    };
                    liar.push(call.number, slot, &body);
                }
            });
        }
    });
}

#[test]
fn huge_counts_and_sizes_are_refused_without_being_tried() {
    beside_an_honest_tenant(|b| {
        let mut random = Random(0x5eed_0005);
        for _ in 0..100 {
            let huge = random.pick(&[u64::MAX, 1 << 63, 1 << 48, u64::MAX / 2 + 1]);
            session(b, |liar| {
                liar.call(0, &ContextCreate { flags: 0 });
                for context in 0..3 {
                    liar.call(
                        1,
                        &MemoryAlloc {
                            context,
                            bytes: huge,
                        },
                    );
                }
                liar.call(
                    2,
                    &AddressReserve {
                        bytes: huge,
                        align: huge,
                    },
                );
                liar.call(3, &FrameCreate { bytes: huge });
                let mut area = CopyBox::linear(CopyPlace::Device(huge), CopyPlace::Device(0), huge);
                area.height = huge;
                area.depth = huge;
                area.dst_pitch = (huge, huge);
                liar.post(&Copy { stream: 1, area });
                // A graph that claims to have as many nodes as fit a word.
                let blob = random.below(5);
                let mut graph = huge.to_le_bytes().to_vec();
                graph.extend(random.bytes(64));
                let body = [BlobPart { blob }.encode().as_slice(), &graph].concat();
                liar.push(BlobPart::NUMBER, NO_SLOT, &body);
                let graph = GraphInstantiate {
                    context: 1,
                    blob,
                    template: 0,
                    node_priorities: false,
                };
                liar.call(4, &graph);
                liar.call(5, &Ping {});
            });
        }
    });
}

#[test]
fn a_program_that_overwrites_the_workers_words_fools_only_itself() {
    beside_an_honest_tenant(|b| {
        let mut random = Random(0x5eed_0006);
        for _ in 0..150 {
            session(b, |liar| {
                liar.call(0, &ContextCreate { flags: 0 });
                for round in 0..30 {
                    let word = random.next().to_ne_bytes();
                    match random.below(4) {
                        // Where the worker says how far it has read, and that it sleeps or has ended.
                        0 => {
                            let at = WORKER_LINE_AT + 4 * random.below(10) as usize;
                            liar.bytes.write(at, &word[..4]);
                        }
                        1 => {
                            let at = SLOTS_AT + 16 * random.below(1 << 14) as usize;
                            liar.bytes.write(at, &word);
                        }
                        2 => {
                            let at = CHUNK_STATES_AT + 64 * random.below(64) as usize;
                            liar.bytes.write(at, &word[..4]);
                        }
                        // Notices and the reason's text.
                        _ => {
                            let at = 128 + 8 * random.below(900) as usize;
                            liar.bytes.write(at, &word);
                        }
                    }
                    // Through the producer's own position: its view of the head is poisoned too.
                    if round % 3 == 0 {
                        let blob = random.below(3);
                        let chunk = random.below(64) as u32;
                        let bytes = random.below(CHUNK_BYTES as u64) as u32;
                        liar.post(&BlobChunk { blob, chunk, bytes });
                    }
                    liar.call(random.below(64) as u16, &Ping {});
                    liar.wake();
                }
            });
        }
    });
}

#[test]
fn noise_from_several_hostile_programs_at_once_hurts_nobody() {
    beside_an_honest_tenant(|b| {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seed in 1..=3_u64 {
                let done = &done;
                scope.spawn(move || {
                    let mut random = Random(0x5eed_0007 * seed);
                    for _ in 0..60 {
                        session(b, |liar| {
                            let noise = random.bytes(2048);
                            liar.bytes.write(RING_AT, &noise);
                            liar.set_tail(random.below(4096) & !7);
                        });
                    }
                    done.store(true, Relaxed);
                });
            }
        });
        assert!(done.load(Relaxed));
    });
}
