//! Arrays, textures and surfaces.

use mica_cuda_abi::CuResult;

use super::session::{Args, span};
use super::{Check, Session, case_list, ensure, refused};
use crate::{
    ArrayDescriptor, ArrayId, Copy3d, DevicePtr, HostSpan, Place, TextureDescriptor,
    TextureResource,
};

case_list![
    arrays_keep_what_is_copied_into_them,
    a_part_of_an_array_can_be_copied,
    copies_beyond_an_array_are_refused,
    textures_read_points,
    textures_interpolate,
    textures_clamp_and_wrap,
    textures_read_linear_memory,
    surfaces_write_arrays,
    bad_arrays_and_textures_are_refused,
];

const FLOAT: u32 = 32;
const UNSIGNED: u32 = 3;

fn array(
    s: &Session<'_>,
    width: u64,
    height: u64,
    format: u32,
    flags: u32,
) -> crate::Result<ArrayId> {
    let descriptor = ArrayDescriptor {
        width,
        height,
        depth: 0,
        format,
        channels: 1,
        flags,
    };
    s.gpu.array_create(s.context, &descriptor)
}

/// A copy of `rows` rows of `words` words between an array, from its offset, and host memory.
fn boxed(
    to_array: bool,
    array: ArrayId,
    at: (u64, u64),
    host: HostSpan,
    words: u64,
    rows: u64,
) -> Copy3d {
    let pitch = (words * 4, words * 4 * rows);
    let (array, host, offset) = (Place::Array(array), Place::Host(host), (at.0, at.1, 0));
    let (dst, src) = if to_array {
        (array, host)
    } else {
        (host, array)
    };
    Copy3d {
        src_pitch: pitch,
        dst_pitch: pitch,
        src_offset: if to_array { (0, 0, 0) } else { offset },
        dst_offset: if to_array { offset } else { (0, 0, 0) },
        width_bytes: words * 4,
        height: rows,
        ..Copy3d::linear(dst, src, 0)
    }
}

fn fill(s: &Session<'_>, array: ArrayId, words: u64, rows: u64, data: &[u32]) -> crate::Result<()> {
    s.gpu.copy(
        s.stream,
        &boxed(true, array, (0, 0), span(data), words, rows),
    )?;
    s.gpu.stream_synchronize(s.stream)
}

fn read(
    s: &Session<'_>,
    array: ArrayId,
    at: (u64, u64),
    words: u64,
    rows: u64,
) -> crate::Result<Vec<u32>> {
    let mut out = vec![0_u32; (words * rows) as usize];
    // SAFETY: the buffer outlives the synchronization below.
    let host = unsafe { HostSpan::new(out.as_mut_ptr().cast(), words * rows * 4) };
    s.gpu
        .copy(s.stream, &boxed(false, array, at, host, words, rows))?;
    s.gpu.stream_synchronize(s.stream)?;
    Ok(out)
}

fn arrays_keep_what_is_copied_into_them(s: &Session<'_>) -> Check {
    for (width, height) in [(64, 0), (17, 9), (128, 33)] {
        let rows = height.max(1);
        let data: Vec<u32> = (0..(width * rows) as u32).map(|i| i * 3).collect();
        let array = array(s, width, height, UNSIGNED, 0)?;
        fill(s, array, width, rows, &data)?;
        let seen = read(s, array, (0, 0), width, rows)?;
        ensure!(seen == data, "{width}×{height} came back changed");
        s.gpu.array_destroy(array)?;
    }
    Ok(())
}

fn a_part_of_an_array_can_be_copied(s: &Session<'_>) -> Check {
    let array = array(s, 10, 10, UNSIGNED, 0)?;
    fill(s, array, 10, 10, &(0..100).collect::<Vec<_>>())?;
    let seen = read(s, array, (12, 4), 2, 3)?;
    ensure!(seen == [43, 44, 53, 54, 63, 64], "{seen:?}");
    let at = s.zeros(6)?;
    let mut copy = boxed(false, array, (12, 4), span(&[0; 6]), 2, 3);
    copy.dst = Place::Device(at);
    s.gpu.copy(s.stream, &copy)?;
    let seen = s.read(at, 6)?;
    ensure!(
        seen == [43, 44, 53, 54, 63, 64],
        "to device memory: {seen:?}"
    );
    Ok(())
}

fn copies_beyond_an_array_are_refused(s: &Session<'_>) -> Check {
    let array = array(s, 10, 10, UNSIGNED, 0)?;
    let data = [0; 200];
    let invalid = [CuResult::InvalidValue];
    for (at, words, rows) in [((0, 0), 11, 1), ((4, 0), 10, 1), ((0, 8), 10, 3)] {
        let copy = boxed(true, array, at, span(&data), words, rows);
        refused(s.gpu.copy(s.stream, &copy), &invalid, &format!("{at:?}"))?;
    }
    Ok(())
}

fn texture_of(resource: TextureResource, format: u32) -> TextureDescriptor {
    TextureDescriptor {
        resource,
        format,
        channels: 1,
        address_mode: [1; 3],
        filter: 0,
        normalized_coords: false,
        read_as_integer: false,
        border: [0.0; 4],
    }
}

/// An 8 × 8 array of floats `10 y + x`.
fn ramp(s: &Session<'_>) -> crate::Result<ArrayId> {
    let array = array(s, 8, 8, FLOAT, 0)?;
    let data: Vec<u32> = (0..64)
        .map(|i| ((i / 8 * 10 + i % 8) as f32).to_bits())
        .collect();
    fill(s, array, 8, 8, &data)?;
    Ok(array)
}

/// Reads 8 × 8 texels at the threads' places plus an offset.
fn sample(s: &Session<'_>, texture: u64, offset: (f32, f32)) -> Result<Vec<f32>, super::Problem> {
    let out = s.zeros(64)?;
    let args = Args::default()
        .u64(texture)
        .ptr(out)
        .u32(8)
        .f32(offset.0)
        .f32(offset.1);
    s.try_launch(s.stream, "read_texture", [1; 3], [8, 8, 1], |_| {}, &args)??;
    let bits = s.read(out, 64)?;
    Ok(bits.into_iter().map(f32::from_bits).collect())
}

fn textures_read_points(s: &Session<'_>) -> Check {
    let array = ramp(s)?;
    let descriptor = texture_of(TextureResource::Array(array), FLOAT);
    let texture = s.gpu.texture_create(s.context, &descriptor)?;
    let seen = sample(s, texture, (0.5, 0.5))?;
    for (i, value) in seen.iter().enumerate() {
        let expected = (i / 8 * 10 + i % 8) as f32;
        ensure!(*value == expected, "texel {i}: {value}, not {expected}");
    }
    s.gpu.texture_destroy(s.context, texture)?;
    refused(
        s.gpu.texture_destroy(s.context, texture),
        &[CuResult::InvalidHandle, CuResult::InvalidValue],
        "destroyed twice",
    )
}

fn textures_interpolate(s: &Session<'_>) -> Check {
    let array = ramp(s)?;
    let mut descriptor = texture_of(TextureResource::Array(array), FLOAT);
    descriptor.filter = 1;
    let texture = s.gpu.texture_create(s.context, &descriptor)?;
    // Half way between texels in x, a quarter in y.
    let seen = sample(s, texture, (1.0, 0.75))?;
    for y in 0..7 {
        for x in 0..7 {
            let expected = (y * 10 + x) as f32 + 0.5 + 2.5;
            let value = seen[y * 8 + x];
            ensure!(
                (value - expected).abs() < 0.05,
                "({x},{y}): {value}, not {expected}"
            );
        }
    }
    Ok(())
}

fn textures_clamp_and_wrap(s: &Session<'_>) -> Check {
    let array = ramp(s)?;
    let descriptor = texture_of(TextureResource::Array(array), FLOAT);
    let texture = s.gpu.texture_create(s.context, &descriptor)?;
    let seen = sample(s, texture, (-20.0, 100.0))?;
    ensure!(seen[0] == 70.0, "clamped to the corner: {}", seen[0]);
    let mut border = descriptor;
    border.address_mode = [3; 3];
    let texture = s.gpu.texture_create(s.context, &border)?;
    let seen = sample(s, texture, (4.5, 0.5))?;
    ensure!(
        seen[0] == 4.0 && seen[4] == 0.0,
        "outside is the border: {:?}",
        &seen[..8]
    );
    let mut wrap = descriptor;
    (wrap.address_mode, wrap.normalized_coords) = ([0; 3], true);
    let texture = s.gpu.texture_create(s.context, &wrap)?;
    // Threads step by whole turns, so each reads the same texel.
    let seen = sample(s, texture, (0.3, 0.3))?;
    ensure!(
        seen.iter().all(|value| *value == 22.0),
        "wrapped: {:?}",
        &seen[..8]
    );
    Ok(())
}

fn textures_read_linear_memory(s: &Session<'_>) -> Check {
    let at = s.zeros(128)?;
    s.write(at, &(1000..1128).collect::<Vec<_>>())?;
    let mut descriptor = texture_of(TextureResource::Linear(at, 128 * 4), UNSIGNED);
    descriptor.read_as_integer = true;
    let texture = s.gpu.texture_create(s.context, &descriptor)?;
    let out = s.zeros(128)?;
    s.launch_on(
        s.stream,
        "read_linear",
        1,
        128,
        &Args::default().u64(texture).ptr(out),
    )?;
    let seen = s.read(out, 128)?;
    ensure!(seen == (1000..1128).collect::<Vec<_>>(), "{seen:?}");
    Ok(())
}

fn surfaces_write_arrays(s: &Session<'_>) -> Check {
    let array = array(s, 16, 8, UNSIGNED, 2)?;
    let surface = s.gpu.surface_create(s.context, array)?;
    let args = Args::default().u64(surface);
    s.try_launch(s.stream, "write_surface", [1; 3], [16, 8, 1], |_| {}, &args)??;
    let seen = read(s, array, (0, 0), 16, 8)?;
    for (i, word) in seen.iter().enumerate() {
        let expected = (i / 16 * 100 + i % 16) as u32;
        ensure!(*word == expected, "{i}: {word}, not {expected}");
    }
    Ok(())
}

fn bad_arrays_and_textures_are_refused(s: &Session<'_>) -> Check {
    let invalid = [
        CuResult::InvalidValue,
        CuResult::InvalidHandle,
        CuResult::NotSupported,
    ];
    refused(array(s, 0, 4, FLOAT, 0), &invalid, "no width")?;
    refused(array(s, 8, 8, 77, 0), &invalid, "an unknown format")?;
    refused(array(s, 1 << 30, 0, FLOAT, 0), &invalid, "too wide")?;
    let gone = array(s, 8, 8, FLOAT, 0)?;
    s.gpu.array_destroy(gone)?;
    refused(s.gpu.array_destroy(gone), &invalid, "destroyed twice")?;
    let descriptor = texture_of(TextureResource::Array(gone), FLOAT);
    refused(
        s.gpu.texture_create(s.context, &descriptor),
        &invalid,
        "of nothing",
    )?;
    refused(
        s.gpu.surface_create(s.context, gone),
        &invalid,
        "of nothing",
    )?;
    let copy = boxed(true, gone, (0, 0), span(&[0; 8]), 8, 1);
    refused(s.gpu.copy(s.stream, &copy), &invalid, "into nothing")?;
    let nowhere = texture_of(TextureResource::Linear(DevicePtr(0x100), 64), UNSIGNED);
    refused(
        s.gpu.texture_create(s.context, &nowhere),
        &invalid,
        "of no memory",
    )
}
