//! Copies and fills of all shapes.

use mica_cuda_abi::CuResult;

use super::session::{Args, span, to_device, to_host};
use super::{Check, Session, case_list, ensure, refused};
use crate::{Copy3d, DevicePtr, Fill2d, HostSpan, Place, Result};

case_list![
    bytes_survive_the_round_trip,
    device_memory_copies_to_device_memory,
    rows_are_copied_with_their_pitches,
    boxes_are_copied_with_their_pitches,
    empty_copies_do_nothing,
    copies_beyond_an_allocation_are_refused,
    copies_of_freed_memory_are_refused,
    overlapping_rows_are_refused,
    fills_write_their_pattern,
    filled_rows_leave_the_gaps_alone,
    bad_fills_are_refused,
    large_copies_keep_their_place_in_the_stream,
];

const INVALID: &[CuResult] = &[CuResult::InvalidValue];

fn bytes_survive_the_round_trip(s: &Session<'_>) -> Check {
    for words in [1_usize, 3, 1024, 20_000, 300_001] {
        let data: Vec<u32> = (0..words as u32)
            .map(|i| i.wrapping_mul(2_654_435_761))
            .collect();
        let at = s.alloc(words as u64 * 4)?;
        s.gpu.copy(s.stream, &to_device(at, &data))?;
        ensure!(
            s.read(at, words)? == data,
            "{words} words came back changed"
        );
    }
    // An odd number of bytes at an odd address.
    let data: Vec<u8> = (0..77).collect();
    let at = s.zeros(64)?;
    let mut back = vec![0_u8; 77];
    // SAFETY: both buffers outlive the synchronization below.
    let (from, to) = unsafe {
        (
            HostSpan::new(data.as_ptr().cast_mut(), 77),
            HostSpan::new(back.as_mut_ptr(), 77),
        )
    };
    let odd = Place::Device(at.offset(3));
    s.gpu
        .copy(s.stream, &Copy3d::linear(odd, Place::Host(from), 77))?;
    s.gpu
        .copy(s.stream, &Copy3d::linear(Place::Host(to), odd, 77))?;
    s.gpu.stream_synchronize(s.stream)?;
    ensure!(back == data, "odd bytes came back changed");
    ensure!(
        s.read(at, 1)?[0] & 0x00ff_ffff == 0,
        "bytes before were touched"
    );
    Ok(())
}

fn device_memory_copies_to_device_memory(s: &Session<'_>) -> Check {
    let data: Vec<u32> = (0..50_000).collect();
    let (a, b) = (s.alloc(200_000)?, s.alloc(200_000)?);
    s.gpu.copy(s.stream, &to_device(a, &data))?;
    let copy = Copy3d::linear(Place::Device(b), Place::Device(a), 200_000);
    s.gpu.copy(s.stream, &copy)?;
    ensure!(s.read(b, 50_000)? == data, "the copy differs");
    Ok(())
}

fn shaped(
    dst: Place,
    dst_pitch: (u64, u64),
    src: Place,
    src_pitch: (u64, u64),
    extent: (u64, u64, u64),
) -> Copy3d {
    Copy3d {
        src_pitch,
        dst_pitch,
        width_bytes: extent.0,
        height: extent.1,
        depth: extent.2,
        ..Copy3d::linear(dst, src, 0)
    }
}

fn rows_are_copied_with_their_pitches(s: &Session<'_>) -> Check {
    let data: Vec<u32> = (0..10 * 7).collect();
    let at = s.zeros(16 * 7)?;
    // Four words of each of seven rows, host pitch 40 bytes, device pitch 64.
    let to = shaped(
        Place::Device(at),
        (64, 0),
        Place::Host(span(&data)),
        (40, 0),
        (16, 7, 1),
    );
    s.gpu.copy(s.stream, &to)?;
    let seen = s.read(at, 16 * 7)?;
    for row in 0..7 {
        for x in 0..16 {
            let expected = if x < 4 { (row * 10 + x) as u32 } else { 0 };
            let found = seen[row * 16 + x];
            ensure!(
                found == expected,
                "row {row} word {x}: {found}, not {expected}"
            );
        }
    }
    let mut back = vec![9_u32; 10 * 7];
    let mut copy = to_host(&mut back, at);
    (copy.src_pitch, copy.dst_pitch) = ((64, 0), (40, 0));
    (copy.width_bytes, copy.height) = (16, 7);
    s.gpu.copy(s.stream, &copy)?;
    s.gpu.stream_synchronize(s.stream)?;
    for (i, word) in back.iter().enumerate() {
        let expected = if i % 10 < 4 { i as u32 } else { 9 };
        ensure!(*word == expected, "word {i}: {word}, not {expected}");
    }
    Ok(())
}

fn boxes_are_copied_with_their_pitches(s: &Session<'_>) -> Check {
    let data: Vec<u32> = (0..4 * 5 * 3).collect();
    let at = s.zeros(8 * 6 * 3)?;
    let extent = (16, 5, 3);
    let to = shaped(
        Place::Device(at),
        (32, 32 * 6),
        Place::Host(span(&data)),
        (16, 80),
        extent,
    );
    s.gpu.copy(s.stream, &to)?;
    let seen = s.read(at, 8 * 6 * 3)?;
    let mut expected = vec![0; 8 * 6 * 3];
    for (i, word) in data.iter().enumerate() {
        expected[i / 20 * 48 + i / 4 % 5 * 8 + i % 4] = *word;
    }
    ensure!(seen == expected, "{seen:?}");
    let packed = s.zeros(60)?;
    let back = shaped(
        Place::Device(packed),
        (16, 80),
        Place::Device(at),
        (32, 192),
        extent,
    );
    s.gpu.copy(s.stream, &back)?;
    ensure!(s.read(packed, 60)? == data, "repacking changed the box");
    Ok(())
}

fn empty_copies_do_nothing(s: &Session<'_>) -> Check {
    let at = s.zeros(4)?;
    let copy = Copy3d::linear(Place::Device(at), Place::Host(span(&[1])), 0);
    s.gpu.copy(s.stream, &copy)?;
    ensure!(s.read(at, 1)? == [0], "it wrote");
    Ok(())
}

fn copies_beyond_an_allocation_are_refused(s: &Session<'_>) -> Check {
    // Two frames long, so that rounding up does not make room on any device.
    let bytes = s.gpu.properties().frame_bytes.max(1 << 20) * 2;
    let at = s.alloc(bytes)?;
    let data = vec![0_u32; bytes as usize / 4 + 4096];
    let result = s.gpu.copy(s.stream, &to_device(at, &data));
    refused(result, INVALID, "too long")?;
    let result = s.gpu.copy(s.stream, &to_device(DevicePtr(64), &data));
    refused(result, INVALID, "nowhere")?;
    let result = s
        .gpu
        .copy(s.stream, &to_device(at.offset(bytes - 4), &data[..2]));
    refused(result, INVALID, "over the end")?;
    s.gpu.stream_synchronize(s.stream)?;
    Ok(())
}

fn copies_of_freed_memory_are_refused(s: &Session<'_>) -> Check {
    let at = s.alloc(4 << 20)?;
    s.gpu.memory_free(s.context, at)?;
    let mut out = [0; 16];
    refused(
        s.gpu.copy(s.stream, &to_host(&mut out, at)),
        INVALID,
        "a read",
    )?;
    refused(
        s.gpu.copy(s.stream, &to_device(at, &out)),
        INVALID,
        "a write",
    )
}

fn overlapping_rows_are_refused(s: &Session<'_>) -> Check {
    let at = s.zeros(64)?;
    let data = [0; 64];
    let copy = shaped(
        Place::Device(at),
        (8, 0),
        Place::Host(span(&data)),
        (16, 0),
        (16, 4, 1),
    );
    refused(
        s.gpu.copy(s.stream, &copy),
        INVALID,
        "a pitch shorter than a row",
    )
}

fn fill(
    s: &Session<'_>,
    dst: DevicePtr,
    value: u32,
    element_bytes: u32,
    width: u64,
    rows: (u64, u64),
) -> Result<()> {
    let fill = Fill2d {
        dst,
        pitch: rows.1,
        value,
        element_bytes,
        width,
        height: rows.0,
    };
    s.gpu.fill(s.stream, &fill)
}

fn fills_write_their_pattern(s: &Session<'_>) -> Check {
    let at = s.zeros(12)?;
    fill(s, at.offset(1), 0xab, 1, 6, (1, 6))?;
    fill(s, at.offset(10), 0x1234, 2, 3, (1, 6))?;
    fill(s, at.offset(20), 0xdead_beef, 4, 5, (1, 20))?;
    let expected = [
        0xabab_ab00,
        0x00ab_abab,
        0x1234_0000,
        0x1234_1234,
        0,
        0xdead_beef,
        0xdead_beef,
        0xdead_beef,
        0xdead_beef,
        0xdead_beef,
        0,
        0,
    ];
    let seen = s.read(at, 12)?;
    ensure!(seen == expected, "{seen:x?}");
    Ok(())
}

fn filled_rows_leave_the_gaps_alone(s: &Session<'_>) -> Check {
    let at = s.zeros(8 * 4)?;
    fill(s, at, 7, 4, 3, (4, 32))?;
    let seen = s.read(at, 32)?;
    for (i, word) in seen.iter().enumerate() {
        let expected = if i % 8 < 3 { 7 } else { 0 };
        ensure!(*word == expected, "word {i} is {word}");
    }
    Ok(())
}

fn bad_fills_are_refused(s: &Session<'_>) -> Check {
    let bytes = s.gpu.properties().frame_bytes.max(1 << 20);
    let at = s.alloc(bytes)?;
    refused(
        fill(s, at.offset(2), 1, 4, 1, (1, 4)),
        INVALID,
        "a misaligned fill",
    )?;
    refused(
        fill(s, at, 1, 4, bytes, (1, 4)),
        INVALID,
        "four times too long",
    )?;
    refused(
        fill(s, DevicePtr(4096), 1, 1, 1, (1, 1)),
        INVALID,
        "nowhere",
    )?;
    refused(fill(s, at, 1, 3, 1, (1, 3)), INVALID, "three-byte elements")
}

fn large_copies_keep_their_place_in_the_stream(s: &Session<'_>) -> Check {
    let words = 4 << 20;
    let stream = s.own_stream()?;
    let at = s.alloc(words * 4)?;
    let ones = vec![1_u32; words as usize];
    s.gpu.copy(stream, &to_device(at, &ones))?;
    s.launch_on(
        stream,
        "count",
        1,
        64,
        &Args::default().ptr(at.offset(words * 4 - 4)),
    )?;
    let mut back = vec![0; words as usize];
    s.gpu.copy(stream, &to_host(&mut back, at))?;
    s.gpu.stream_synchronize(stream)?;
    let last = back.pop();
    ensure!(last == Some(65), "the last word is {last:?}");
    ensure!(back.iter().all(|w| *w == 1), "the rest changed");
    Ok(())
}
