//! Streams that outlive their connections: whatever breaks and whenever, each byte comes once and in order.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use mica_tunnel::{Carrier, Reconnect, Resuming, SocketCarrier};

/// Where the two sides of a stream meet again: each brings what it has received, and takes a new connection.
#[derive(Default)]
struct Meeting {
    state: Mutex<State>,
    came: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Option<(usize, u64, UnixStream)>,
    /// For the side that came first: the other one has so many bytes.
    answers: [Option<u64>; 2],
    over: bool,
}

struct Side(usize, Arc<Meeting>);

impl Reconnect for Side {
    fn again(&self, received: u64, _: &io::Error) -> io::Result<(Arc<dyn Carrier>, u64)> {
        let mut state = self.1.state.lock().unwrap();
        if let Some((other, has, stream)) = state.waiting.take() {
            assert_ne!(other, self.0);
            state.answers[other] = Some(received);
            self.1.came.notify_all();
            return Ok((Arc::new(SocketCarrier::new(stream)), has));
        }
        let (ours, theirs) = UnixStream::pair()?;
        state.waiting = Some((self.0, received, theirs));
        loop {
            if let Some(has) = state.answers[self.0].take() {
                return Ok((Arc::new(SocketCarrier::new(ours)), has));
            }
            if state.over {
                return Err(io::ErrorKind::TimedOut.into());
            }
            state = self.1.came.wait(state).unwrap();
        }
    }

    fn give_up(&self) {
        self.1.state.lock().unwrap().over = true;
        self.1.came.notify_all();
    }
}

fn stream() -> [Arc<Resuming>; 2] {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let meeting = Arc::new(Meeting::default());
    let mut sides = [ours, theirs].into_iter().enumerate();
    [(); 2].map(|()| {
        let (side, socket) = sides.next().unwrap();
        let first = Arc::new(SocketCarrier::new(socket));
        Resuming::new(first, Box::new(Side(side, meeting.clone())))
    })
}

/// The byte at a position of every stream here.
fn byte_at(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

const BYTES: u64 = 12 << 20;

#[test]
fn each_byte_comes_once_and_in_order_whenever_the_connection_breaks() {
    let sides = stream();
    let is_done = AtomicBool::new(false);
    let (tell, complete) = channel();
    std::thread::scope(|scope| {
        for side in [0, 1] {
            let sending = sides[side].clone();
            scope.spawn(move || send_all(&sending));
            let (receiving, peer) = (sides[side].clone(), sides[1 - side].clone());
            let tell = tell.clone();
            scope.spawn(move || receive_all(&receiving, &peer, &tell));
        }
        let breaking = scope.spawn(|| {
            let mut pause = 1;
            while !is_done.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(pause));
                sides[(pause % 2) as usize].interrupt();
                pause = pause * 5 % 23;
            }
        });
        for _ in &sides {
            complete.recv_timeout(Duration::from_secs(120)).unwrap();
        }
        is_done.store(true, Relaxed);
        breaking.join().unwrap();
        for side in &sides {
            side.close();
        }
    });
    assert!(sides[0].breaks() > 3, "{} breaks", sides[0].breaks());
}

fn send_all(stream: &Resuming) {
    let mut at = 0;
    while at < BYTES {
        let len = (1 + at % 50_021).min(BYTES - at);
        let piece: Vec<u8> = (at..at + len).map(byte_at).collect();
        stream.send(&piece).unwrap();
        at += len;
    }
}

/// Receives until the stream ends: only who receives mends a broken connection.
fn receive_all(stream: &Resuming, peer: &Resuming, tell: &Sender<()>) {
    let (mut at, mut buffer) = (0, vec![0; 70_000]);
    while let Ok(got) = stream.receive(&mut buffer) {
        let mut bytes = (at..).zip(&buffer[..got]);
        assert!(bytes.all(|(at, byte)| byte_at(at) == *byte), "after {at}");
        at += got as u64;
        if let Some(received) = stream.owed() {
            peer.acknowledge(received);
        }
        if at == BYTES {
            tell.send(()).unwrap();
        }
    }
    assert_eq!(at, BYTES);
}

#[test]
fn a_stream_that_is_given_up_ends_for_senders_and_receivers() {
    let sides = stream();
    let waiting = sides[0].clone();
    let receiver = std::thread::spawn(move || waiting.receive(&mut [0; 16]));
    let filling = sides[0].clone();
    let sender = std::thread::spawn(move || {
        // More than is kept without an acknowledgement.
        (0..100).try_for_each(|_| filling.send(&vec![0; 1 << 20]))
    });
    std::thread::sleep(Duration::from_millis(50));
    sides[0].close();
    assert!(receiver.join().unwrap().is_err());
    assert!(sender.join().unwrap().is_err());
}

#[test]
fn a_send_larger_than_all_that_is_kept_goes_out_although_few_bytes_before_it_are_not_acknowledged()
{
    const LARGE: usize = 65 << 20;
    let sides = stream();
    let sending = sides[0].clone();
    let sender = std::thread::spawn(move || {
        // Acknowledgements come for each 1 MiB: these bytes get none.
        sending.send(&[1; 100]).unwrap();
        sending.send_whole(&mut vec![2; LARGE]).unwrap();
        sending.send_aside(&[3]).unwrap();
    });
    let (mut left, mut buffer) = (100 + LARGE + 1, vec![0; 1 << 20]);
    while left > 0 {
        left -= sides[1].receive(&mut buffer).unwrap();
        if let Some(received) = sides[1].owed() {
            sides[0].acknowledge(received);
        }
    }
    sender.join().unwrap();
}

#[test]
fn acknowledgements_go_out_while_a_sender_waits_for_room() {
    let sides = stream();
    let sending = sides[0].clone();
    let reader = sides[1].clone();
    let receiver = std::thread::spawn(move || {
        let (mut got, mut buffer) = (0, vec![0; 1 << 20]);
        while got < (64 << 20) + 1 {
            got += reader.receive(&mut buffer).unwrap();
        }
        buffer
    });
    for _ in 0..64 {
        sending.send(&vec![0; 1 << 20]).unwrap();
    }
    // Nothing was acknowledged, so whoever sends more waits.
    let waiting = std::thread::spawn(move || sending.send(&[0; 16]));
    sides[0].send_aside(&[1]).unwrap();
    assert!(receiver.join().is_ok());
    assert!(!waiting.is_finished());
    sides[0].close();
    assert!(waiting.join().unwrap().is_err());
}

/// A side that says it has other bytes than were sent.
struct Liar;

impl Reconnect for Liar {
    fn again(&self, _: u64, _: &io::Error) -> io::Result<(Arc<dyn Carrier>, u64)> {
        let (ours, _) = UnixStream::pair()?;
        Ok((Arc::new(SocketCarrier::new(ours)), 1 << 30))
    }

    fn give_up(&self) {}
}

#[test]
fn a_peer_that_has_more_than_was_sent_ends_the_stream() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let stream = Resuming::new(Arc::new(SocketCarrier::new(ours)), Box::new(Liar));
    drop(theirs);
    let error = stream.receive(&mut [0; 16]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
}
