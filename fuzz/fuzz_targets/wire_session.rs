//! Any bytes as a session's ring and as calls: refused with a reason or decoded, never a panic; what
//! decodes encodes to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mica_wire::session::{
    CALLS, Call, ConditionalNode, DeviceSnapshot, Field, GraphNode, LateError, LoadedModule, Producer, Reader, RingReader,
    SessionArea,
};

fuzz_target!(|bytes: &[u8]| {
    let (Some(number), Some(body)) = (bytes.get(..2), bytes.get(2..)) else {
        return;
    };
    // Every call of the table, and a number that none has.
    let number = u16::from_le_bytes([number[0], number[1]]) as usize % (CALLS.len() + 1);
    let number = CALLS.get(number).map_or(u16::MAX - 1, |call| call.number);
    if let Ok((call, tail)) = Call::decode(number, body) {
        let (again, fields) = call.encode();
        assert_eq!(again, number);
        assert_eq!(fields.as_slice(), &body[..body.len() - tail.len()]);
    }
    let _ = Vec::<GraphNode>::take(&mut Reader::new(body));
    let _ = ConditionalNode::take(&mut Reader::new(body));
    // The answers with lists in them, as a program reads them.
    let _ = DeviceSnapshot::take(&mut Reader::new(body));
    let _ = LoadedModule::take(&mut Reader::new(body));
    let _ = LateError::take(&mut Reader::new(body));

    // The same bytes as the body of a record, through a real ring.
    let Ok(area) = SessionArea::create() else { return };
    let (mut producer, mut reader) = (Producer::default(), RingReader::default());
    let slot = u16::from(bytes[0]);
    if producer.try_push(&area, number, slot, body, &[]) {
        let mut out = Vec::new();
        match reader.try_next(&area, &mut out) {
            Ok(Some(header)) => assert!(header.call == number && out == body),
            Ok(None) => panic!("the record is lost"),
            Err(_) => {}
        }
    }
});
