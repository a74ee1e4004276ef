//! Who has the connections of a listener, so that nobody keeps others out.
//!
//! A connection belongs to nobody until a request proves a user, then to that user.
//!
//! | who opens many | what happens |
//! |---|---|
//! | a user | requests on more connections than one may have are refused |
//! | another host, without proof | its next connection is refused |
//! | a program of this host, without proof | when all places are taken, the oldest connection without proof makes room |
//! | many users together | when all places are taken, the oldest connection of the user with the most makes room |

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Whose a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    Nobody(IpAddr),
    User(u32),
}

#[derive(Debug)]
struct Connection {
    holder: Holder,
    /// Told when the connection must make room.
    leave: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Connections {
    /// By number: the oldest first.
    open: BTreeMap<u64, Connection>,
    last: u64,
}

/// The places of one listener.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    most_each: usize,
    connections: Mutex<Connections>,
}

/// The place of one connection, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    leave: Arc<Notify>,
}

impl Places {
    /// A bound on all places, and a bound on the places of one user or one other host.
    pub(super) fn new(most: usize, most_each: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            most_each,
            connections: Mutex::default(),
        })
    }

    /// A place for a new connection; another connection may lose its own. `None` if the address has too many.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Arc<Place>> {
        let mut connections = self.connections();
        let holder = Holder::Nobody(address);
        // Users of this host have one address together.
        if !address.is_loopback() && connections.of(holder) >= self.most_each {
            return None;
        }
        if connections.open.len() >= self.most {
            let number = connections.least_needed()?;
            let gone = connections.open.remove(&number)?;
            gone.leave.notify_one();
        }
        connections.last += 1;
        let (number, leave) = (connections.last, Arc::new(Notify::new()));
        let connection = Connection {
            holder,
            leave: leave.clone(),
        };
        connections.open.insert(number, connection);
        Some(Arc::new(Place {
            places: self.clone(),
            number,
            leave,
        }))
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connections {
    fn of(&self, holder: Holder) -> usize {
        self.open
            .values()
            .filter(|one| one.holder == holder)
            .count()
    }

    /// The oldest connection without proof, else the oldest of the user who has the most.
    fn least_needed(&self) -> Option<u64> {
        let is_nobodys = |one: &Connection| matches!(one.holder, Holder::Nobody(_));
        let mut nobodys = self.open.iter().filter(|(_, one)| is_nobodys(one));
        if let Some((number, _)) = nobodys.next() {
            return Some(*number);
        }
        let mut counts: BTreeMap<Holder, usize> = BTreeMap::new();
        for one in self.open.values() {
            *counts.entry(one.holder).or_default() += 1;
        }
        let (greedy, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        let mut own = self.open.iter().filter(|(_, one)| one.holder == greedy);
        own.next().map(|(number, _)| *number)
    }
}

impl Place {
    /// A request has proved its user; `Err` with the most that a user may have if this user has as many already.
    pub(super) fn prove(&self, uid: u32) -> Result<(), usize> {
        let mut connections = self.places.connections();
        let holder = Holder::User(uid);
        let others = connections.of(holder);
        let most_each = self.places.most_each;
        // A connection that must make room is closed in any case.
        let Some(own) = connections.open.get_mut(&self.number) else {
            return Ok(());
        };
        if own.holder != holder && others >= most_each {
            return Err(most_each);
        }
        own.holder = holder;
        Ok(())
    }

    /// Waits until this connection must make room.
    pub(super) async fn lost(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.connections().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

    fn is_lost(place: &Place) -> bool {
        let connections = place.places.connections();
        !connections.open.contains_key(&place.number)
    }

    #[test]
    fn a_user_has_a_part_of_the_places_and_no_more() {
        let places = Places::new(8, 2);
        let held: Vec<_> = (0..3).filter_map(|_| places.enter(HERE)).collect();
        let proved: Vec<_> = held.iter().map(|place| place.prove(7)).collect();
        assert_eq!(proved, [Ok(()), Ok(()), Err(2)]);
        assert_eq!(held[0].prove(7), Ok(()), "the same again");
        assert_eq!(held[2].prove(8), Ok(()), "another user");
    }

    #[test]
    fn the_oldest_connection_without_proof_makes_room() {
        let places = Places::new(3, 3);
        let held: Vec<_> = (0..3).filter_map(|_| places.enter(HERE)).collect();
        assert_eq!(held[0].prove(7), Ok(()));
        let late = places.enter(HERE).expect("a place");
        let lost: Vec<_> = held.iter().map(|place| is_lost(place)).collect();
        assert_eq!((lost, is_lost(&late)), (vec![false, true, false], false));
    }

    #[test]
    fn the_user_with_the_most_makes_room_when_all_are_proved() {
        let places = Places::new(3, 3);
        let held: Vec<_> = (0..3).filter_map(|_| places.enter(HERE)).collect();
        for (place, uid) in held.iter().zip([7, 8, 8]) {
            assert_eq!(place.prove(uid), Ok(()));
        }
        let _late = places.enter(HERE).expect("a place");
        let lost: Vec<_> = held.iter().map(|place| is_lost(place)).collect();
        assert_eq!(lost, [false, true, false]);
    }

    #[test]
    fn another_host_without_proof_has_a_part_of_the_places() {
        let places = Places::new(8, 2);
        let held: Vec<_> = (0..2).filter_map(|_| places.enter(ELSEWHERE)).collect();
        assert!(places.enter(ELSEWHERE).is_none());
        assert!(places.enter(HERE).is_some());
        assert_eq!(held[0].prove(7), Ok(()));
        assert!(places.enter(ELSEWHERE).is_some(), "one of them is a user's");
    }

    #[test]
    fn a_place_is_given_back() {
        let places = Places::new(1, 1);
        drop(places.enter(ELSEWHERE));
        assert!(places.enter(ELSEWHERE).is_some());
    }
}
