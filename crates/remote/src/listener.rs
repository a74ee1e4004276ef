//! Accepts connections: reads 32 bytes of each, limits how many there are, how often they come and how much is said of those
//! that are refused.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::handover::Sessions;
use crate::hello::{self, HELLO_BYTES, Purpose, Refused, Verdict};

/// How long a peer may take for its 32 bytes.
const HELLO_WITHIN: Duration = Duration::from_secs(3);
/// Connections at once.
const MOST_CONNECTIONS: usize = 512;
/// Connections of one address at once: no address keeps all others out.
const MOST_OF_ADDRESS: usize = 256;
/// Connections that have not said hello.
const MOST_GREETING: usize = 64;
/// Connections of one address: a burst, and a rate per second after it.
const BURST: f64 = 40.0;
const PER_SECOND: f64 = 10.0;
/// Addresses that are remembered.
const MOST_ADDRESSES: usize = 4096;
/// Sentences a second about refused connections: a flood of those must not fill the disk.
const MOST_SENTENCES: u32 = 20;

/// How often addresses come.
#[derive(Debug, Default)]
struct Rates(HashMap<IpAddr, (Instant, f64)>);

impl Rates {
    /// Whether one more connection of an address is served now.
    fn admit(&mut self, address: IpAddr, now: Instant) -> bool {
        if self.0.len() >= MOST_ADDRESSES {
            // Addresses with a full burst again are dropped; a flood of addresses drops all.
            self.0.retain(|_, (last, _)| {
                now.duration_since(*last).as_secs_f64() * PER_SECOND < BURST
            });
            if self.0.len() >= MOST_ADDRESSES {
                self.0.clear();
            }
        }
        let (last, left) = self.0.entry(address).or_insert((now, BURST));
        *left = (*left + now.duration_since(*last).as_secs_f64() * PER_SECOND).min(BURST);
        *last = now;
        let admitted = *left >= 1.0;
        if admitted {
            *left -= 1.0;
        }
        admitted
    }
}

/// What stands for a machine: one that has an IPv6 address usually has all of its network's 64 bits.
fn machine_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            Ipv6Addr::from_bits(network).into()
        }
        v4 => v4,
    }
}

/// How many connections each machine has.
#[derive(Debug, Default)]
struct Places(Mutex<HashMap<IpAddr, usize>>);

/// A connection of a machine, while it lives.
struct Place {
    places: Arc<Places>,
    machine: IpAddr,
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more connection of a machine, if there is one for it.
    fn take(self: &Arc<Self>, machine: IpAddr) -> Option<Place> {
        let mut open = self.lock();
        let count = open.get(&machine).copied().unwrap_or(0);
        if count >= MOST_OF_ADDRESS || open.values().sum::<usize>() >= MOST_CONNECTIONS {
            return None;
        }
        open.insert(machine, count + 1);
        let places = Arc::clone(self);
        Some(Place { places, machine })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.places.lock();
        if let Some(count) = open.get_mut(&self.machine) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.machine);
            }
        }
    }
}

/// What is said of refused connections: so much a second, and then how many were left out.
struct Refusals {
    since: Instant,
    said: u32,
    left_out: u32,
}

impl Refusals {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            said: 0,
            left_out: 0,
        }
    }

    /// Says a sentence, or counts it.
    fn say(&mut self, now: Instant, sentence: String, log: &impl Fn(String)) {
        if now.duration_since(self.since) >= Duration::from_secs(1) {
            if self.left_out > 0 {
                log(format!("{} more connections were refused", self.left_out));
            }
            *self = Self::new(now);
        }
        if self.said < MOST_SENTENCES {
            self.said += 1;
            log(sentence);
        } else {
            self.left_out = self.left_out.saturating_add(1);
        }
    }
}

/// Counts while it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let counted = count.fetch_update(Relaxed, Relaxed, |now| (now < most).then_some(now + 1));
        counted.ok().map(|_| Self(Arc::clone(count)))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Serves connections for ever. `serve` gets each that has said hello, on a thread of its own, and returns when the
/// connection has ended; connections of old sessions go to those; `log` gets a sentence for each that is refused.
pub fn run(
    listener: &TcpListener,
    sessions: &Arc<Sessions>,
    serve: impl Fn(TcpStream, Purpose) + Send + Sync + 'static,
    log: impl Fn(String) + Send + Sync + 'static,
) {
    let refusals = Mutex::new(Refusals::new(Instant::now()));
    let log = move |sentence| {
        let mut refusals = refusals.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.say(Instant::now(), sentence, &log);
    };
    let (serve, log) = (Arc::new(serve), Arc::new(log));
    let (all, greeting) = (Arc::<Places>::default(), Arc::<AtomicUsize>::default());
    let rates = Mutex::new(Rates::default());
    loop {
        let Ok((stream, from)) = listener.accept() else {
            // No descriptor is left, or the peer is gone already.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let machine = machine_of(from.ip());
        let admitted = {
            let mut rates = rates.lock().unwrap_or_else(PoisonError::into_inner);
            rates.admit(machine, Instant::now())
        };
        let places = (all.take(machine), Counted::new(&greeting, MOST_GREETING));
        let (Some(place), Some(greets), true) = (places.0, places.1, admitted) else {
            let mut stream = stream;
            let _ = stream.set_nonblocking(true);
            let _ = stream.write_all(&hello::server_hello(Verdict::Busy));
            log(format!("{from} was refused: too many connections"));
            continue;
        };
        let (serve, log, sessions) = (Arc::clone(&serve), Arc::clone(&log), Arc::clone(sessions));
        let _ = std::thread::Builder::new()
            .name("hello".into())
            .spawn(move || {
                let said = greet(&stream);
                drop(greets);
                pass_on(stream, said, &sessions, &*serve, |why| {
                    log(format!("{from} was refused: {why}"));
                });
                drop(place);
            });
    }
}

/// Gives a connection that has said hello to its session, or to a new one.
fn pass_on(
    stream: TcpStream,
    said: Result<Purpose, String>,
    sessions: &Sessions,
    serve: &impl Fn(TcpStream, Purpose),
    refused: impl FnOnce(&str),
) {
    match said {
        Ok(Purpose::Resume(session)) => {
            if let Err(mut stream) = sessions.hand_over(&session, stream) {
                let _ = stream.write_all(&hello::server_hello(Verdict::Gone));
                refused("its session has ended");
            }
        }
        Ok(purpose) => serve(stream, purpose),
        Err(why) => refused(&why),
    }
}

/// Reads a hello and answers it.
fn greet(mut stream: &TcpStream) -> Result<Purpose, String> {
    match hello::read_client(&read_hello(stream)?) {
        // Who gets the connection answers.
        Ok(purpose @ Purpose::Resume(_)) => Ok(purpose),
        Ok(purpose) => {
            let sent = stream.write_all(&hello::server_hello(Verdict::GoOn));
            sent.map(|()| purpose)
                .map_err(|_| "it closed the connection".into())
        }
        Err(Refused::Nonsense) => Err("its first bytes are not the hello of a Mica client".into()),
        Err(Refused::Version(why)) => {
            let _ = stream.write_all(&hello::server_hello(Verdict::Version));
            Err(why)
        }
    }
}

fn read_hello(mut stream: &TcpStream) -> Result<[u8; HELLO_BYTES], &'static str> {
    let began = Instant::now();
    let mut hello = [0; HELLO_BYTES];
    let mut filled = 0;
    while filled < HELLO_BYTES {
        let left = HELLO_WITHIN.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Err("it did not say hello in time");
        }
        let _ = stream.set_read_timeout(Some(left));
        match stream.read(&mut hello[filled..]) {
            Ok(0) => return Err("it closed the connection"),
            Ok(got) => filled += got,
            Err(_) => return Err("it did not say hello in time"),
        }
    }
    Ok(hello)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_burst_and_then_so_many_a_second() {
        let mut rates = Rates::default();
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let start = Instant::now();
        let admitted = (0..100).filter(|_| rates.admit(one, start)).count();
        assert_eq!(admitted, BURST as usize);
        assert!(rates.admit(other, start));
        let later = start + Duration::from_secs(2);
        let admitted = (0..100).filter(|_| rates.admit(one, later)).count();
        assert_eq!(admitted, 2 * PER_SECOND as usize);
        for n in 0..3 * MOST_ADDRESSES as u32 {
            rates.admit(IpAddr::from(n.to_be_bytes()), later);
        }
        assert!(rates.0.len() <= MOST_ADDRESSES);
    }

    #[test]
    fn one_machine_leaves_places_for_others() {
        let places = Arc::<Places>::default();
        let address = |text: &str| machine_of(text.parse().unwrap());
        // Two addresses of one network, which one machine may have both.
        let one = [address("2001:db8::1"), address("2001:db8::ffff:2")];
        assert_eq!(one[0], one[1]);
        let mut taken: Vec<_> = (0..2 * MOST_OF_ADDRESS)
            .filter_map(|n| places.take(one[n % 2]))
            .collect();
        assert_eq!(taken.len(), MOST_OF_ADDRESS);
        let other = address("10.0.0.2");
        assert_eq!(other, address("::ffff:10.0.0.2"));
        taken.extend((0..MOST_CONNECTIONS).filter_map(|_| places.take(other)));
        assert_eq!(taken.len(), MOST_CONNECTIONS);
        assert!(places.take(address("10.0.0.3")).is_none());
        taken.clear();
        assert!(places.lock().is_empty());
        assert!(places.take(other).is_some());
    }

    #[test]
    fn a_flood_of_refusals_is_counted_and_not_told() {
        let start = Instant::now();
        let (mut refusals, said) = (Refusals::new(start), Mutex::new(Vec::new()));
        let log = |sentence| said.lock().unwrap().push(sentence);
        for _ in 0..1000 {
            refusals.say(start, "no".into(), &log);
        }
        assert_eq!(said.lock().unwrap().len(), MOST_SENTENCES as usize);
        refusals.say(start + Duration::from_secs(1), "no".into(), &log);
        let said = said.lock().unwrap();
        let last: Vec<_> = said.iter().rev().take(2).collect();
        assert_eq!(last, ["no", "980 more connections were refused"]);
    }
}
