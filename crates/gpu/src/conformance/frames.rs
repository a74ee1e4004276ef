//! Memory built from frames: reserve, map, move, protect.

use mica_cuda_abi::CuResult;

use super::session::{Args, to_device, to_host};
use super::{Check, Session, case_list, ensure, refused};
use crate::Access;

case_list![
    mapped_frames_are_memory,
    frames_can_be_swapped_under_a_live_pointer,
    one_frame_can_have_two_addresses,
    copies_span_neighbouring_frames,
    released_frames_live_while_mapped,
    frame_requests_are_checked,
    frames_count_as_used_memory,
    addresses_are_had_again_where_they_were,
    ; faulting:
    frames_without_access_fault,
    unmapped_frames_fault,
];

const INVALID: &[CuResult] = &[CuResult::InvalidValue];

fn mapped_frames_are_memory(s: &Session<'_>) -> Check {
    let size = s.gpu.properties().frame_bytes;
    let at = s.gpu.address_reserve(4 * size, 0)?;
    ensure!(at.0.is_multiple_of(size), "{at:?} is not aligned");
    let frame = s.gpu.frame_create(2 * size)?;
    s.gpu.frame_map(at.offset(size), frame)?;
    s.gpu
        .frame_access(at.offset(size), 2 * size, Access::ReadWrite)?;
    let words = size * 2 / 4;
    let args = Args::default()
        .ptr(at.offset(size))
        .u32(words as u32)
        .u32(1);
    s.launch_on(
        s.stream,
        "fill_index",
        (words as u32).div_ceil(1024),
        1024,
        &args,
    )?;
    let seen = s.read(at.offset(size), words as usize)?;
    ensure!(
        seen.iter().enumerate().all(|(i, w)| *w == i as u32 + 1),
        "wrong contents"
    );
    s.gpu.frame_unmap(at.offset(size), 2 * size)?;
    s.gpu.frame_release(frame)?;
    s.gpu.address_free(at, 4 * size)?;
    Ok(())
}

fn frames_can_be_swapped_under_a_live_pointer(s: &Session<'_>) -> Check {
    let size = s.gpu.properties().frame_bytes;
    let at = s.gpu.address_reserve(size, 0)?;
    let frames = [s.gpu.frame_create(size)?, s.gpu.frame_create(size)?];
    for round in 0..3_u32 {
        for (index, frame) in frames.into_iter().enumerate() {
            s.gpu.frame_map(at, frame)?;
            s.gpu.frame_access(at, size, Access::ReadWrite)?;
            if round == 0 {
                s.write(at, &[100 * index as u32])?;
            }
            // The same address, each time other memory behind it.
            s.launch_on(s.stream, "count", 1, 1, &Args::default().ptr(at))?;
            let seen = s.read(at, 1)?;
            let expected = 100 * index as u32 + round + 1;
            ensure!(
                seen == [expected],
                "frame {index}: {seen:?}, not {expected}"
            );
            s.gpu.frame_unmap(at, size)?;
        }
    }
    for frame in frames {
        s.gpu.frame_release(frame)?;
    }
    s.gpu.address_free(at, size)?;
    Ok(())
}

fn one_frame_can_have_two_addresses(s: &Session<'_>) -> Check {
    let size = s.gpu.properties().frame_bytes;
    let at = s.gpu.address_reserve(2 * size, 0)?;
    let frame = s.gpu.frame_create(size)?;
    for place in [at, at.offset(size)] {
        s.gpu.frame_map(place, frame)?;
        s.gpu.frame_access(place, size, Access::ReadWrite)?;
    }
    s.write(at.offset(64), &[1234])?;
    let seen = s.read(at.offset(size + 64), 1)?;
    ensure!(seen == [1234], "{seen:?}");
    s.gpu.frame_unmap(at, 2 * size)?;
    s.gpu.frame_release(frame)?;
    s.gpu.address_free(at, 2 * size)?;
    Ok(())
}

fn copies_span_neighbouring_frames(s: &Session<'_>) -> Check {
    let size = s.gpu.properties().frame_bytes;
    let at = s.gpu.address_reserve(2 * size, 0)?;
    let frames = [s.gpu.frame_create(size)?, s.gpu.frame_create(size)?];
    s.gpu.frame_map(at, frames[0])?;
    s.gpu.frame_map(at.offset(size), frames[1])?;
    s.gpu.frame_access(at, 2 * size, Access::ReadWrite)?;
    let data: Vec<u32> = (0..1024).collect();
    let middle = at.offset(size - 2048);
    s.gpu.copy(s.stream, &to_device(middle, &data))?;
    let mut back = vec![0; 1024];
    s.gpu.copy(s.stream, &to_host(&mut back, middle))?;
    s.gpu.stream_synchronize(s.stream)?;
    ensure!(back == data, "the copy over the seam differs");
    s.gpu.frame_unmap(at, 2 * size)?;
    for frame in frames {
        s.gpu.frame_release(frame)?;
    }
    s.gpu.address_free(at, 2 * size)?;
    Ok(())
}

/// Writes through the address and gives the code of the fault.
fn fault_at(s: &Session<'_>, at: crate::DevicePtr) -> Result<Option<CuResult>, super::Problem> {
    s.launch_on(s.stream, "store_at", 1, 1, &Args::default().ptr(at).u32(1))?;
    let told = s.gpu.context_synchronize(s.context);
    Ok(told.err().map(|error| error.code))
}

fn frames_without_access_fault(s: &Session<'_>) -> Check {
    let size = s.gpu.properties().frame_bytes;
    let at = s.gpu.address_reserve(size, 0)?;
    let frame = s.gpu.frame_create(size)?;
    s.gpu.frame_map(at, frame)?;
    let code = fault_at(s, at)?;
    ensure!(code == Some(CuResult::IllegalAddress), "{code:?}");
    Ok(())
}

fn unmapped_frames_fault(s: &Session<'_>) -> Check {
    let size = s.gpu.properties().frame_bytes;
    let at = s.gpu.address_reserve(size, 0)?;
    let frame = s.gpu.frame_create(size)?;
    s.gpu.frame_map(at, frame)?;
    s.gpu.frame_access(at, size, Access::ReadWrite)?;
    s.launch_on(s.stream, "store_at", 1, 1, &Args::default().ptr(at).u32(1))?;
    s.gpu.context_synchronize(s.context)?;
    s.gpu.frame_unmap(at, size)?;
    let code = fault_at(s, at)?;
    ensure!(code == Some(CuResult::IllegalAddress), "{code:?}");
    Ok(())
}

fn released_frames_live_while_mapped(s: &Session<'_>) -> Check {
    let size = s.gpu.properties().frame_bytes;
    let at = s.gpu.address_reserve(size, 0)?;
    let frame = s.gpu.frame_create(size)?;
    s.gpu.frame_map(at, frame)?;
    s.gpu.frame_access(at, size, Access::ReadWrite)?;
    s.gpu.frame_release(frame)?;
    s.write(at, &[5])?;
    ensure!(s.read(at, 1)? == [5], "the memory went with the handle");
    s.gpu.frame_unmap(at, size)?;
    s.gpu.address_free(at, size)?;
    Ok(())
}

fn frame_requests_are_checked(s: &Session<'_>) -> Check {
    let size = s.gpu.properties().frame_bytes;
    refused(s.gpu.frame_create(size / 2), INVALID, "half a frame")?;
    refused(s.gpu.frame_create(0), INVALID, "no frame")?;
    refused(s.gpu.address_reserve(0, 0), INVALID, "nothing reserved")?;
    let at = s.gpu.address_reserve(2 * size, 0)?;
    let frame = s.gpu.frame_create(size)?;
    s.gpu.frame_map(at, frame)?;
    let mapped = s.gpu.frame_map(at, frame);
    refused(
        mapped,
        &[CuResult::InvalidValue, CuResult::AlreadyMapped],
        "mapped twice",
    )?;
    let far = s.gpu.frame_map(at.offset(64 * size), frame);
    refused(far, INVALID, "not reserved")?;
    s.gpu.frame_unmap(at, size)?;
    s.gpu.frame_release(frame)?;
    let gone = [CuResult::InvalidHandle, CuResult::InvalidValue];
    refused(s.gpu.frame_release(frame), &gone, "released twice")?;
    refused(s.gpu.frame_map(at, frame), &gone, "released")?;
    s.gpu.address_free(at, 2 * size)?;
    refused(s.gpu.address_free(at, 2 * size), INVALID, "freed twice")
}

fn addresses_are_had_again_where_they_were(s: &Session<'_>) -> Check {
    let size = s.gpu.properties().frame_bytes;
    let taken = [CuResult::OutOfMemory, CuResult::InvalidValue];
    let at = s.gpu.address_reserve(4 * size, 0)?;
    refused(s.gpu.address_reserve_at(at, size), &taken, "reserved twice")?;
    let inside = s.gpu.address_reserve_at(at.offset(3 * size), 2 * size);
    refused(inside, &taken, "reserved in part")?;
    s.gpu.address_free(at, 4 * size)?;
    s.gpu.address_reserve_at(at, 4 * size)?;
    // It is a reservation as any other.
    let frame = s.gpu.frame_create(size)?;
    s.gpu.frame_map(at.offset(size), frame)?;
    s.gpu
        .frame_access(at.offset(size), size, Access::ReadWrite)?;
    s.write(at.offset(size), &[11])?;
    ensure!(s.read(at.offset(size), 1)? == [11], "wrong contents");
    s.gpu.frame_unmap(at.offset(size), size)?;
    s.gpu.frame_release(frame)?;
    s.gpu.address_free(at, 4 * size)?;
    refused(s.gpu.address_reserve_at(at, 0), INVALID, "nothing reserved")
}

fn frames_count_as_used_memory(s: &Session<'_>) -> Check {
    let bytes = 32 << 20;
    let (before, total) = s.gpu.memory_info()?;
    let frame = s.gpu.frame_create(bytes)?;
    let (during, _) = s.gpu.memory_info()?;
    ensure!(
        during + bytes <= before + (4 << 20),
        "{before} then {during}"
    );
    s.gpu.frame_release(frame)?;
    let (after, _) = s.gpu.memory_info()?;
    ensure!(after >= during + bytes - (4 << 20), "{during} then {after}");
    let size = s.gpu.properties().frame_bytes;
    let huge = (total * 2).next_multiple_of(size);
    refused(
        s.gpu.frame_create(huge),
        &[CuResult::OutOfMemory],
        "twice the memory",
    )
}
