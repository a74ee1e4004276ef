//! A relay between two ends of a connection: delays each byte, lets no more than so many through in a second, counts what passes.
//!
//! It stands for a network, since not every kernel has a queue that delays.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Pieces under way in one direction; with 256 KiB each, more than any delay here needs.
const MOST_PIECES: usize = 512;

/// A relay to one address; it ends with the process.
pub(super) struct Relay {
    /// Where it listens.
    pub(super) address: String,
    /// Bytes that clients have sent through it.
    sent: Arc<AtomicU64>,
}

impl Relay {
    /// Carries connections to `to`, each byte later by `delay` in each direction, and not more than `most` bytes a second.
    pub(super) fn start(to: String, delay: Duration, most: Option<u32>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let sent = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&sent);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(&to) else {
                    continue;
                };
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                if let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) {
                    let way = Way { delay, most };
                    carry(near, far, way, Arc::clone(&counted));
                    carry(far_too, near_too, way, Arc::default());
                }
            }
        });
        Ok(Self { address, sent })
    }

    /// Bytes that clients have sent since this was last asked.
    pub(super) fn take_sent(&self) -> u64 {
        self.sent.swap(0, Relaxed)
    }
}

/// What a direction of a connection is like.
#[derive(Clone, Copy)]
struct Way {
    delay: Duration,
    /// Bytes a second.
    most: Option<u32>,
}

/// Carries one direction of a connection.
fn carry(mut from: TcpStream, mut to: TcpStream, way: Way, count: Arc<AtomicU64>) {
    let (sender, pieces) = mpsc::sync_channel::<(Instant, Vec<u8>)>(MOST_PIECES);
    std::thread::spawn(move || {
        let mut buffer = vec![0; 256 << 10];
        let mut free = Instant::now();
        while let Ok(got @ 1..) = from.read(&mut buffer) {
            count.fetch_add(got as u64, Relaxed);
            if let Some(most) = way.most {
                // Nothing is read meanwhile, so that the sender notices.
                free = free.max(Instant::now())
                    + Duration::from_secs_f64(got as f64 / f64::from(most));
                std::thread::sleep(free.saturating_duration_since(Instant::now()));
            }
            let due = Instant::now() + way.delay;
            if sender.send((due, buffer[..got].to_vec())).is_err() {
                break;
            }
        }
    });
    std::thread::spawn(move || {
        // By default the kernel adds up to 50 µs to each sleep, which would count as delay.
        // SAFETY: sets a number of the calling thread.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_u64) };
        for (due, piece) in pieces {
            if let Some(left) = due.checked_duration_since(Instant::now()) {
                std::thread::sleep(left);
            }
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_later_and_is_counted() {
        let there = TcpListener::bind("127.0.0.1:0").unwrap();
        let delay = Duration::from_millis(20);
        let relay = Relay::start(there.local_addr().unwrap().to_string(), delay, None).unwrap();
        let mut near = TcpStream::connect(&relay.address).unwrap();
        let (mut far, _) = there.accept().unwrap();
        let began = Instant::now();
        near.write_all(b"to and").unwrap();
        let mut got = [0; 6];
        far.read_exact(&mut got).unwrap();
        far.write_all(b" fro").unwrap();
        let mut back = [0; 4];
        near.read_exact(&mut back).unwrap();
        assert!(began.elapsed() >= 2 * delay);
        assert_eq!((&got, &back), (b"to and", b" fro"));
        assert_eq!((relay.take_sent(), relay.take_sent()), (6, 0));
    }

    #[test]
    fn no_more_than_so_many_bytes_come_in_a_second() {
        let there = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = there.local_addr().unwrap().to_string();
        let relay = Relay::start(to, Duration::ZERO, Some(20_000_000)).unwrap();
        let mut near = TcpStream::connect(&relay.address).unwrap();
        let (mut far, _) = there.accept().unwrap();
        let began = Instant::now();
        std::thread::spawn(move || near.write_all(&vec![7; 5_000_000]));
        far.read_exact(&mut vec![0; 5_000_000]).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(240));
    }
}
