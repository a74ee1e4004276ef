//! Every row of the table survives the wire, and its facts agree with each other.

use super::*;
use crate::codec::{Malformed, Reader};
use crate::session::types::*;

fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

#[test]
fn every_call_survives_the_wire() {
    let mut random = random(0x9E37_79B9_7F4A_7C15);
    for _ in 0..200 {
        for call in Call::samples(&mut random) {
            let (number, body) = call.encode();
            let (decoded, tail) = Call::decode(number, body.as_slice()).unwrap();
            assert_eq!(decoded, call);
            assert!(tail.is_empty());
        }
    }
}

#[test]
fn every_call_refuses_each_shorter_body_and_leftovers() {
    let mut random = random(7);
    for call in Call::samples(&mut random) {
        let (number, body) = call.encode();
        let body = body.as_slice();
        for len in 0..body.len() {
            assert!(Call::decode(number, &body[..len]).is_err(), "{call:?}");
        }
        let mut longer = body.to_vec();
        longer.extend([1, 2, 3]);
        let has_tail = CALLS.iter().find(|c| c.number == number).unwrap().has_tail;
        match Call::decode(number, &longer) {
            Ok((_, tail)) => assert!(has_tail && tail == [1, 2, 3]),
            Err(error) => assert!(!has_tail && error == Malformed::Trailing(3)),
        }
    }
}

#[test]
fn numbers_are_unique_and_in_order() {
    let mut numbers: Vec<_> = CALLS.iter().map(|call| call.number).collect();
    numbers.dedup();
    assert_eq!(numbers.len(), CALLS.len());
    assert!(numbers.is_sorted());
    assert_eq!(Call::decode(9999, &[]), Err(Malformed::Call(9999)));
}

#[test]
fn random_bytes_never_panic() {
    let mut random = random(99);
    for _ in 0..50_000 {
        let len = (random() % 160) as usize;
        let body: Vec<u8> = (0..len).map(|_| random() as u8).collect();
        let _ = Call::decode((random() % 120) as u16, &body);
    }
}

#[test]
fn answers_survive_the_wire() {
    fn check<T: Field + PartialEq + std::fmt::Debug>(random: &mut dyn FnMut() -> u64) {
        let value = T::sample(random);
        let mut bytes = Vec::new();
        value.put(&mut bytes);
        let mut reader = Reader::new(&bytes);
        assert_eq!(T::take(&mut reader), Ok(value));
        assert_eq!(reader.finish(), Ok(()));
    }
    let mut random = random(3);
    for _ in 0..100 {
        check::<DeviceSnapshot>(&mut random);
        check::<LoadedModule>(&mut random);
        check::<MemoryState>(&mut random);
        check::<VgpuCounters>(&mut random);
        check::<LateError>(&mut random);
        check::<Vec<GraphNode>>(&mut random);
        check::<ConditionalNode>(&mut random);
        check::<Data>(&mut random);
    }
}

#[test]
fn what_passes_the_gate_keeps_its_stream_from_being_asked_about() {
    let mut random = random(5);
    for call in Call::samples(&mut random) {
        if let Some(stream) = call.gate(usize::MAX) {
            assert_eq!(call.touches().stream, Some(stream), "{call:?}");
            assert_ne!(call.order(), Order::Free, "{call:?}");
        }
        if let Order::Records { event, stream } = call.order() {
            let touches = call.touches();
            assert_eq!((touches.event, touches.stream), (Some(event), Some(stream)));
        }
    }
}

#[test]
fn a_copy_passes_the_gate_from_one_piece_on_and_a_launch_always() {
    let copy = |bytes| {
        let place = CopyPlace::Device(0);
        let area = CopyBox::linear(place, place, bytes);
        Call::Copy(Copy { stream: 7, area }).gate(0)
    };
    assert_eq!(copy(facts::PIECE - 1), None);
    assert_eq!(copy(facts::PIECE), Some(7));
    let write = |tail| {
        Call::Write(Write {
            stream: 8,
            address: 0,
        })
        .gate(tail)
    };
    assert_eq!(write(facts::LARGE as usize - 1), None);
    assert_eq!(write(facts::LARGE as usize), Some(8));
    let launch = GraphLaunch {
        graph: 1,
        stream: 9,
    };
    assert_eq!(Call::GraphLaunch(launch).gate(0), Some(9));
}

#[test]
fn only_streams_that_are_ordered_in_another_way_are_told_of() {
    let create = |non_blocking| StreamCreate {
        context: 1,
        non_blocking,
        priority: 0,
    };
    let answer = Number { value: 5 };
    assert_eq!(create(false).made(&answer), None);
    assert_eq!(create(true).made(&answer), Some((5, StreamOrder::Alone)));
    let context = NewContext {
        context: 1,
        default_stream: 2,
    };
    let made = ContextCreate { flags: 0 }.made(&context);
    assert_eq!(made, Some((2, StreamOrder::Default)));
}
