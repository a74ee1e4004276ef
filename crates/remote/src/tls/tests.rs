//! Both ends of a connection in this process.

use std::io::Write;
use std::net::TcpListener;

use super::*;
use crate::loopback::pair_through;

fn pair(through: impl FnOnce(String) -> String) -> (TlsCarrier, TlsCarrier) {
    pair_through(through).unwrap()
}

fn noise(bytes: usize, mut state: u64) -> Vec<u8> {
    let mut next = || {
        state = (state.wrapping_mul(6_364_136_223_846_793_005)).wrapping_add(1);
        (state >> 33) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn receive_all(carrier: &TlsCarrier, bytes: usize, step: usize) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; step]);
    while all.len() < bytes {
        let got = carrier.receive(&mut buffer).unwrap();
        assert!(got > 0, "closed after {} bytes", all.len());
        all.extend_from_slice(&buffer[..got]);
    }
    all
}

#[test]
fn both_directions_carry_everything_at_once_in_pieces_of_any_size() {
    let (near, far) = pair(|address| address);
    let (there, back) = (noise(3_000_001, 1), noise(2_000_003, 2));
    std::thread::scope(|scope| {
        scope.spawn(|| (there.chunks(400_009)).for_each(|part| near.send(part).unwrap()));
        scope.spawn(|| (back.chunks(777)).for_each(|part| far.send(part).unwrap()));
        let arrived = scope.spawn(|| receive_all(&far, there.len(), 100_003));
        assert!(receive_all(&near, back.len(), 61) == back);
        assert!(arrived.join().unwrap() == there);
    });
}

#[test]
fn keys_are_renewed_before_they_are_worn() {
    let (near, far) = pair(|address| address);
    let data = noise(200, 3);
    for round in 0..40_u64 {
        // Room for one batch of records and the one that announces the next key.
        lock(&near.outgoing).limit(RECORDS_AT_ONCE as u64 + 3);
        near.send(&data).unwrap();
        assert!(receive_all(&far, data.len(), 64) == data, "round {round}");
    }
    assert!(lock(&near.outgoing).sent() < 4, "the key is a fresh one");
    // The other direction has a key of its own; a side that is asked for a new one sends with it.
    far.renew.store(true, Release);
    far.send(&data).unwrap();
    assert!(receive_all(&near, data.len(), 64) == data);
    assert_eq!(lock(&far.outgoing).sent(), 1);
}

#[test]
fn sending_over_a_closed_connection_is_an_error() {
    let (near, _far) = pair(|address| address);
    near.close();
    assert!(near.send(&[1; 100]).is_err());
    assert!(matches!(near.receive(&mut [0; 10]), Ok(0) | Err(_)));
}

/// Carries bytes to a server, the one at `at` of the client's changed; to the client as they are.
fn change_a_byte(to: &str, at: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, to) = (listener.local_addr().unwrap().to_string(), to.to_owned());
    std::thread::spawn(move || {
        let (mut near, _) = listener.accept().unwrap();
        let mut far = TcpStream::connect(to).unwrap();
        let (mut far_too, mut near_too) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        std::thread::spawn(move || io::copy(&mut far_too, &mut near_too));
        let (mut passed, mut buffer) = (0, [0; 4096]);
        while let Ok(got @ 1..) = near.read(&mut buffer) {
            if (passed..passed + got).contains(&at) {
                buffer[at - passed] ^= 1;
            }
            passed += got;
            far.write_all(&buffer[..got]).unwrap();
        }
    });
    address
}

#[test]
fn a_changed_byte_ends_the_connection() {
    // Far behind the handshake, in the middle of a record.
    let (near, far) = pair(|address| change_a_byte(&address, 60_000));
    let sent = noise(100_000, 4);
    near.send(&sent).unwrap();
    let (mut all, mut buffer) = (Vec::new(), [0; 5000]);
    let error = loop {
        match far.receive(&mut buffer) {
            Ok(got) => all.extend_from_slice(&buffer[..got]),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    assert!(all.len() < 60_000 && sent.starts_with(&all));
    assert!(far.receive(&mut buffer).is_err(), "and stays ended");
}

#[test]
fn a_peer_that_is_slow_with_its_handshake_is_not_waited_for() {
    let server = Identity::create(None).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (tcp, _) = listener.accept().unwrap();
    let dripping = std::thread::spawn(move || {
        // The beginning of a long record, byte by byte.
        for byte in [22, 3, 1, 60, 0].into_iter().chain([0; 1000]) {
            std::thread::sleep(Duration::from_millis(20));
            if near.write_all(&[byte]).is_err() {
                return;
            }
        }
    });
    let began = std::time::Instant::now();
    let config = Arc::new(server_config(&server, &Peer::Anybody).unwrap());
    let connection = UnbufferedServerConnection::new(config).unwrap();
    let failure = as_server(&tcp, connection, Duration::from_millis(300));
    assert!(matches!(failure, Err(Failure::Socket(_))));
    assert!(began.elapsed() < Duration::from_secs(10));
    drop(tcp);
    dripping.join().unwrap();
}
