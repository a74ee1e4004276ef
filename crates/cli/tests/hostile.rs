//! A hostile program beside an honest one, through a real daemon and its workers: each lie ends the
//! hostile program's session, `mica events` says why, and the honest one's sums stay right.

mod home;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use home::Home;
use mica_limits::{Environment, open_session};
use mica_wire::host::socket::HostSocket;
use mica_wire::session::client::SessionClient;
use mica_wire::session::*;

const ADD: &[u8] = b".version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 p, .param .u32 v)
{
    .reg .b64 %rd<4>;
    .reg .b32 %r<4>;
    ld.param.u64 %rd0, [p];
    ld.param.u32 %r0, [v];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd1, %r1, 4;
    add.u64 %rd2, %rd0, %rd1;
    ld.global.u32 %r2, [%rd2];
    add.u32 %r3, %r2, %r0;
    st.global.u32 [%rd2], %r3;
    ret;
}
\0";

/// Adds on the device until told to stop; answers how many sums were right.
fn honest(environment: &Environment, stop: &AtomicBool) -> u32 {
    let (_, socket) = open_session(environment).unwrap();
    let client = SessionClient::connect(socket, "honest").unwrap();
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream) = (new.context, new.default_stream);
    let module = client.module_load(context, ADD, false).unwrap().module;
    let address = client
        .call(&MemoryAlloc {
            context,
            bytes: 1024,
        })
        .unwrap()
        .value;
    client.write(stream, address, &[0; 1024]).unwrap();
    let mut sum = 0_u32;
    while !stop.load(Acquire) || sum == 0 {
        for value in 1..=5_u32 {
            let launch = Launch {
                stream,
                module,
                kernel: 0,
                grid: [1; 3],
                block: [256, 1, 1],
                dynamic_shared: 0,
                cooperative: false,
            };
            let mut block = address.to_le_bytes().to_vec();
            block.extend(value.to_le_bytes());
            client.launch(&launch, &block).unwrap();
        }
        sum += 15;
        let mut back = [0; 1024];
        client.read(stream, address, &mut back).unwrap();
        for word in back.chunks_exact(4) {
            assert_eq!(u32::from_le_bytes(word.try_into().unwrap()), sum);
        }
    }
    sum / 15
}

/// Shakes hands, then lets `lie` have the ring.
fn hostile(environment: &Environment, lie: impl FnOnce(&SessionArea, &mut Producer)) {
    let (_, socket) = open_session(environment).unwrap();
    let socket = HostSocket::from_fd(socket);
    let version = SESSION_VERSION.into();
    socket.send(&Handshake::Hello { version }, &[]).unwrap();
    let (_, fds) = socket.receive().unwrap();
    let area = SessionArea::adopt(fds.into_iter().next().unwrap()).unwrap();
    lie(&area, &mut Producer::default());
    // The worker closes the socket when it has ended the session.
    assert!(socket.receive().is_err());
}

#[test]
fn a_hostile_program_is_ended_with_a_reason_and_an_honest_one_computes_on() {
    let home = Home::new();
    let (good, bad) = (home.create("good", ""), home.create("bad", ""));
    let stop = Arc::new(AtomicBool::new(false));
    let tenant = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || honest(&good, &stop))
    };
    hostile(&bad, |area, ring| {
        ring.try_push(area, 9999, u16::MAX, &[], &[]);
    });
    hostile(&bad, |area, ring| {
        ring.try_push(area, Launch::NUMBER, u16::MAX, &[1, 2, 3], &[]);
    });
    hostile(&bad, |area, ring| {
        ring.try_push(area, Ping::NUMBER, 4711, &[], &[]);
    });
    hostile(&bad, |area, ring| {
        let chunk = BlobChunk {
            blob: 1,
            chunk: u32::MAX,
            bytes: u32::MAX,
        };
        let body = chunk.encode();
        ring.try_push(area, BlobChunk::NUMBER, u16::MAX, body.as_slice(), &[]);
    });
    let reasons = [
        "no call has number 9999",
        "is malformed",
        "reply slot 4711 does not exist",
        "staging chunk 4294967295",
    ];
    let began = Instant::now();
    loop {
        let events = home.mica("events --json");
        let of_bad = |line: &&str| line.contains("was ended") && line.contains("\"bad\"");
        let told: Vec<&str> = events.lines().filter(of_bad).collect();
        if reasons
            .iter()
            .all(|reason| told.iter().any(|line| line.contains(reason)))
        {
            assert!(
                !events
                    .lines()
                    .any(|line| line.contains("was ended") && line.contains("\"good\""))
            );
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(180), "{events}");
        std::thread::sleep(Duration::from_millis(50));
    }
    stop.store(true, Release);
    assert!(tenant.join().unwrap() > 0);
    // The virtual GPU of the hostile one is as good as before for somebody honest.
    assert!(honest(&bad, &AtomicBool::new(true)) > 0);
}
