//! Programs that lie, flood, vanish or are silent: their sessions end, others do not notice.

mod common;

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use common::{Bench, MODULE, bench, shake_hands};
use mica_wire::host::socket::HostSocket;
use mica_wire::session::*;

/// A program that speaks the handshake and then does as it likes with the area.
struct Liar {
    _socket: HostSocket,
    area: SessionArea,
    producer: Producer,
}

fn liar(socket: OwnedFd) -> Liar {
    let (socket, area, _) = shake_hands(socket);
    Liar {
        _socket: socket,
        area,
        producer: Producer::default(),
    }
}

impl Liar {
    fn push(&mut self, call: u16, slot: u16, body: &[u8]) {
        self.producer.try_push(&self.area, call, slot, body, &[]);
    }
}

fn ends_with(b: &Bench, reason: &str, lie: impl FnOnce(&mut Liar)) {
    let (socket, served) = b.socket();
    let mut liar = liar(socket);
    lie(&mut liar);
    let said = served.join().unwrap().expect("a reason");
    assert!(said.contains(reason), "{said}");
    b.assert_clean();
}

#[test]
fn each_lie_ends_its_session_with_a_reason() {
    let b = bench(64 << 20);
    ends_with(&b, "no call has number", |l| l.push(999, u16::MAX, &[]));
    ends_with(&b, "ends", |l| l.push(Launch::NUMBER, u16::MAX, &[1, 2, 3]));
    ends_with(&b, "left over", |l| l.push(Ping::NUMBER, 3, &[1]));
    ends_with(&b, "reply slot 64", |l| l.push(Ping::NUMBER, 64, &[]));
    ends_with(&b, "wrong kind of reply slot", |l| {
        l.push(Ping::NUMBER, u16::MAX, &[]);
    });
    ends_with(&b, "wrong kind of reply slot", |l| {
        let body = StreamDestroy { stream: 1 };
        l.push(StreamDestroy::NUMBER, 5, body.encode().as_slice());
    });
    ends_with(&b, "staging chunk 64", |l| {
        let chunk = BlobChunk {
            blob: 1,
            chunk: 64,
            bytes: 1,
        };
        l.push(BlobChunk::NUMBER, u16::MAX, chunk.encode().as_slice());
    });
    for (offset, bytes) in [
        (0, CHUNK_BYTES as u64 + 1),
        (CHUNK_BYTES as u32, 1),
        (u32::MAX, 9),
    ] {
        ends_with(&b, "does not exist", |l| {
            let src = CopyPlace::Staging { chunk: 1, offset };
            let area = CopyBox::linear(CopyPlace::Device(4096), src, bytes);
            let copy = Copy { stream: 1, area };
            l.push(Copy::NUMBER, u16::MAX, copy.encode().as_slice());
        });
    }
    ends_with(&b, "does not exist", |l| {
        let dst = CopyPlace::Staging {
            chunk: 0,
            offset: 0,
        };
        let mut area = CopyBox::linear(dst, CopyPlace::Device(4096), 1);
        area.height = u64::MAX;
        area.dst_pitch = (u64::MAX, 1);
        let copy = Copy { stream: 1, area };
        l.push(Copy::NUMBER, u16::MAX, copy.encode().as_slice());
    });
}

#[test]
fn random_records_hurt_nobody_else() {
    let b = bench(64 << 20);
    let (honest, served) = b.client();
    let new = honest.call(&ContextCreate { flags: 0 }).unwrap();
    let context = new.context;
    let address = honest
        .call(&MemoryAlloc {
            context,
            bytes: 4096,
        })
        .unwrap()
        .value;
    honest
        .write(new.default_stream, address, &[0x5A; 4096])
        .unwrap();
    let mut state = 4242_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..40 {
        let (socket, served) = b.socket();
        let mut liar = liar(socket);
        for _ in 0..100 {
            // Valid numbers and lengths reach deeper than pure noise.
            let call = &CALLS[(random() % CALLS.len() as u64) as usize];
            let wanted = if call.class == Class::Posted {
                u16::MAX
            } else {
                (random() % 64) as u16
            };
            let len = (random() % 200) as usize;
            let body: Vec<u8> = (0..len)
                .map(|_| if random() % 3 == 0 { random() as u8 } else { 0 })
                .collect();
            liar.push(call.number, wanted, &body);
        }
        drop(liar);
        let _ = served
            .join()
            .unwrap_or_else(|_| panic!("round {round} panicked"));
    }
    let mut back = [0; 4096];
    honest.read(new.default_stream, address, &mut back).unwrap();
    assert_eq!(back, [0x5A; 4096]);
    drop(honest);
    assert_eq!(served.join().unwrap(), None);
    b.assert_clean();
}

#[test]
fn well_formed_nonsense_leaves_nothing_behind() {
    // Calls that decode, with handles and sizes drawn from a small pool so that some are right.
    let b = bench(64 << 20);
    let mut state = 777_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..10 {
        let (client, served) = b.client();
        let mut pool = vec![0, 1, 4096, 2 << 20, u64::MAX];
        for _ in 0..300 {
            let mut pick = || pool[(random() % pool.len() as u64) as usize];
            let (x, y, z) = (pick(), pick(), pick());
            let made = match random() % 16 {
                0 => client.call(&ContextCreate { flags: 0 }).map(|c| {
                    pool.push(c.default_stream);
                    c.context
                }),
                1 => client
                    .call(&MemoryAlloc {
                        context: x,
                        bytes: y,
                    })
                    .map(|n| n.value),
                2 => client.module_load(x, MODULE, false).map(|m| m.module),
                3 => client.call(&FrameCreate { bytes: x }).map(|n| n.value),
                4 => client
                    .call(&AddressReserve { bytes: x, align: y })
                    .map(|n| n.value),
                5 => client
                    .call(&FrameMap {
                        address: x,
                        frame: y,
                    })
                    .map(|_| 0),
                6 => client
                    .call(&MemoryFree {
                        context: x,
                        address: y,
                    })
                    .map(|_| 0),
                7 => client
                    .post(
                        &MemoryFreeAsync {
                            stream: x,
                            address: y,
                        },
                        &[],
                    )
                    .map(|()| 0),
                8 => client.write(x, y, &[1; 100]).map(|()| 0),
                9 => client.read(x, y, &mut [0; 50]).map(|()| 0),
                10 => {
                    let area = CopyBox::linear(CopyPlace::Device(x), CopyPlace::Device(y), z);
                    client.post(&Copy { stream: z, area }, &[]).map(|()| 0)
                }
                11 => client
                    .call(&FrameUnmap {
                        address: x,
                        bytes: y,
                    })
                    .map(|_| 0),
                12 => client.call(&ContextDestroy { context: x }).map(|_| 0),
                13 => client
                    .call(&EventCreate {
                        context: x,
                        disable_timing: false,
                    })
                    .map(|n| n.value),
                14 => client
                    .post(
                        &EventRecord {
                            event: x,
                            stream: y,
                        },
                        &[],
                    )
                    .map(|()| 0),
                _ => client.call(&ContextSynchronize { context: x }).map(|_| 0),
            };
            match made {
                Ok(0) => {}
                Ok(value) => pool.push(value),
                Err(SessionError::Refused { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
        drop(client);
        assert_eq!(served.join().unwrap(), None);
        b.assert_clean();
    }
}

#[test]
fn a_program_that_dies_in_the_middle_of_everything_leaves_nothing() {
    let b = bench(64 << 20);
    for round in 0..20 {
        let (socket, served) = b.socket();
        let watch = socket.try_clone().unwrap();
        let client = client::SessionClient::connect(socket, "dying").unwrap();
        let new = client.call(&ContextCreate { flags: 0 }).unwrap();
        let (context, stream) = (new.context, new.default_stream);
        let module = client.module_load(context, MODULE, false).unwrap().module;
        let address = client
            .call(&MemoryAlloc {
                context,
                bytes: 8 << 20,
            })
            .unwrap()
            .value;
        let block = Launch {
            stream,
            module,
            kernel: 3,
            grid: [1; 3],
            block: [1; 3],
            dynamic_shared: 0,
            cooperative: false,
        };
        let sleeper = std::thread::scope(|scope| {
            client.launch(&block, &[]).unwrap();
            // Copies, a callback and a free that wait behind a kernel that does not end.
            client.write(stream, address, &vec![1; 4 << 20]).unwrap();
            client
                .post(
                    &StreamCallback {
                        stream,
                        callback: 1,
                    },
                    &[],
                )
                .unwrap();
            client
                .post(&MemoryFreeAsync { stream, address }, &[])
                .unwrap();
            let waiter = scope.spawn(|| client.call(&StreamSynchronize { stream }));
            if round % 2 == 0 {
                let _ = client.call(&Ping {});
            }
            let began = Instant::now();
            rustix::net::shutdown(&watch, rustix::net::Shutdown::Both).unwrap();
            let reason = served.join().unwrap();
            assert_eq!(reason, None);
            b.assert_clean();
            assert!(began.elapsed() < Duration::from_secs(120));
            waiter.join().unwrap()
        });
        assert!(sleeper.is_err());
    }
}

#[test]
fn a_flood_of_streams_is_refused_and_hurts_nobody() {
    let b = bench(64 << 20);
    let (client, served) = b.client();
    let context = client.call(&ContextCreate { flags: 0 }).unwrap().context;
    let create = StreamCreate {
        context,
        non_blocking: true,
        priority: 0,
    };
    let mut made = Vec::new();
    let refused = loop {
        match client.call(&create) {
            Ok(stream) => made.push(stream.value),
            Err(refused) => break refused,
        }
        assert!(made.len() < 100_000, "nobody counts them");
    };
    assert!(made.len() >= 10_000, "a program may need {}", made.len());
    let text = refused.to_string();
    assert!(
        matches!(refused, SessionError::Refused { code: 2, .. }),
        "{text}"
    );
    // The session goes on, and so does another one of the virtual GPU.
    let stream = made[0];
    client.post(&StreamDestroy { stream }, &[]).unwrap();
    client.call(&create).unwrap();
    let (other, other_served) = b.client();
    let context = other.call(&ContextCreate { flags: 0 }).unwrap().context;
    let create = StreamCreate { context, ..create };
    other.call(&create).unwrap();
    drop((client, other));
    assert_eq!(served.join().unwrap(), None);
    assert_eq!(other_served.join().unwrap(), None);
    b.assert_clean();
}

#[test]
fn silence_and_wrong_versions_are_turned_away() {
    let b = bench(64 << 20);
    let (socket, served) = b.socket();
    let socket = HostSocket::from_fd(socket);
    socket
        .send(&Handshake::Hello { version: 999 }, &[])
        .unwrap();
    let (answer, fds) = socket.receive().unwrap();
    let Ok(Handshake::Refused { text, .. }) = answer.read() else {
        panic!("{answer:?}");
    };
    assert!(fds.is_empty() && text.contains("999"));
    served.join().unwrap();
    // A connection that never speaks is dropped.
    let (silent, served) = b.socket();
    served.join().unwrap();
    drop(silent);
    b.assert_clean();
}

#[test]
fn the_program_learns_why_its_session_ended() {
    let b = bench(64 << 20);
    let (client, served) = b.client();
    let area = CopyBox::linear(
        CopyPlace::Device(4096),
        CopyPlace::Staging {
            chunk: 99,
            offset: 0,
        },
        16,
    );
    client.post(&Copy { stream: 0, area }, &[]).unwrap();
    let error = client.call(&Ping {}).unwrap_err();
    assert!(error.to_string().contains("staging chunk 99"), "{error}");
    assert_eq!(error.cuda_code(), 46);
    assert!(client.post(&StreamDestroy { stream: 0 }, &[]).is_err());
    assert!(served.join().unwrap().is_some());
}

#[test]
fn a_flood_of_blobs_ends_the_session() {
    let b = bench(64 << 20);
    let (client, served) = b.client();
    let mut result = Ok(());
    for blob in 0..10_000 {
        result = client.post(&BlobPart { blob }, &[1]);
        if result.is_err() {
            break;
        }
    }
    let _ = client.call(&Ping {});
    drop(result);
    assert!(served.join().unwrap().unwrap().contains("more than 4096"));
}

#[test]
fn an_announced_descriptor_that_never_comes_is_an_error_not_a_hang() {
    let b = bench(64 << 20);
    let (client, _served) = b.client();
    let context = client.call(&ContextCreate { flags: 0 }).unwrap().context;
    let register = HostRegister {
        context,
        tag: 77,
        bytes: 4096,
        offset: 0,
        charge: false,
        wanted: 0,
        offered: false,
    };
    assert!(client.call(&register).is_err());
    client.call(&Ping {}).unwrap();
}
