//! Textures and surfaces from Rust, embedded and behind a worker's session.

mod common;

use common::on_both;
use mica::{AddressMode, ArrayShape, Filter, Grid, Texture, TextureOptions, Vgpu};

const PTX: &str = include_str!("textures.ptx");

/// Eight values along x, from (x, y) on.
fn sample(vgpu: &Vgpu, texture: &Texture, x: f32, y: f32) -> Vec<f32> {
    let kernel = vgpu.load_ptx(PTX).unwrap().kernel("sample").unwrap();
    let mut out = vgpu.alloc::<f32>(8).unwrap();
    let stream = vgpu.default_stream();
    stream
        .launch(&kernel, Grid::new(1, 8), (texture, &mut out, x, y))
        .unwrap();
    out.to_vec().unwrap()
}

/// 8 × 4 values `10 y + x`.
fn ramp() -> Vec<f32> {
    (0..32).map(|i| (i / 8 * 10 + i % 8) as f32).collect()
}

#[test]
fn textures_over_arrays_and_pitched_memory_read_the_same() {
    on_both(64 << 20, |vgpu| {
        let stream = vgpu.stream().unwrap();
        let mut array = vgpu.array::<f32>(ArrayShape::plane(8, 4)).unwrap();
        array.copy_from(&stream, &ramp()).unwrap();
        let mut rows = vgpu.alloc_pitched::<f32>(8, 4).unwrap();
        rows.copy_from(&stream, &ramp()).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(array.to_vec().unwrap(), ramp());
        let options = |address, filter| TextureOptions {
            address: [address; 3],
            filter,
            border: [-5.0; 4],
            ..TextureOptions::default()
        };
        let cases = [
            (
                AddressMode::Clamp,
                Filter::Nearest,
                (0.5, 2.5),
                [20.0, 21.0, 27.0],
            ),
            (
                AddressMode::Clamp,
                Filter::Nearest,
                (1.5, 99.0),
                [31.0, 32.0, 37.0],
            ),
            (
                AddressMode::Border,
                Filter::Nearest,
                (1.5, 0.5),
                [1.0, 2.0, -5.0],
            ),
            (
                AddressMode::Clamp,
                Filter::Linear,
                (1.0, 1.0),
                [5.5, 6.5, 12.0],
            ),
        ];
        for (address, filter, (x, y), wanted) in cases {
            let options = options(address, filter);
            for texture in [
                array.texture(&options).unwrap(),
                rows.texture(&options).unwrap(),
            ] {
                let seen = sample(vgpu, &texture, x, y);
                assert_eq!(
                    [seen[0], seen[1], seen[7]],
                    wanted,
                    "{options:?} at {x} {y}"
                );
            }
        }
        let wrapped = TextureOptions {
            address: [AddressMode::Wrap; 3],
            normalized: true,
            ..TextureOptions::default()
        };
        // Threads step by whole turns.
        let seen = sample(vgpu, &array.texture(&wrapped).unwrap(), 3.3, 0.6);
        assert_eq!(seen, [22.0; 8]);
    });
}

#[test]
fn small_integers_are_read_as_parts_of_one() {
    on_both(64 << 20, |vgpu| {
        let mut array = vgpu.array::<[u8; 4]>(ArrayShape::plane(8, 1)).unwrap();
        let texels: Vec<[u8; 4]> = (0..8).map(|i| [i * 36, 1, 2, 3]).collect();
        array.copy_from(&vgpu.default_stream(), &texels).unwrap();
        let texture = array.texture(&TextureOptions::default()).unwrap();
        let seen = sample(vgpu, &texture, 0.5, 0.5);
        for (texel, seen) in texels.iter().zip(seen) {
            assert!(
                (seen - f32::from(texel[0]) / 255.0).abs() < 1e-6,
                "{texel:?}: {seen}"
            );
        }
    });
}

#[test]
fn a_texture_over_a_buffer_is_read_by_number() {
    on_both(64 << 20, |vgpu| {
        let values: Vec<u32> = (1000..1100).collect();
        let buffer = vgpu.upload(&values).unwrap();
        let texture = buffer.texture().unwrap();
        let fetch = vgpu.load_ptx(PTX).unwrap().kernel("fetch").unwrap();
        let mut out = vgpu.alloc::<u32>(100).unwrap();
        vgpu.default_stream()
            .launch(&fetch, Grid::new(1, 100), (&texture, &mut out))
            .unwrap();
        assert_eq!(out.to_vec().unwrap(), values);
    });
}

#[test]
fn kernels_write_arrays_through_surfaces() {
    on_both(64 << 20, |vgpu| {
        let array = vgpu.array::<u32>(ArrayShape::plane(16, 8)).unwrap();
        let surface = array.surface().unwrap();
        let store = vgpu.load_ptx(PTX).unwrap().kernel("store").unwrap();
        let grid = Grid::of([1; 3], [16, 8, 1]);
        vgpu.default_stream()
            .launch(&store, grid, (&surface,))
            .unwrap();
        let wanted: Vec<u32> = (0..128).map(|i| i / 16 * 100 + i % 16).collect();
        assert_eq!(array.to_vec().unwrap(), wanted);
    });
}

#[test]
fn arrays_of_all_shapes_keep_their_texels_and_count() {
    on_both(64 << 20, |vgpu| {
        let before = vgpu.memory().unwrap().used_bytes;
        let stream = vgpu.stream().unwrap();
        for (shape, count) in [
            (ArrayShape::line(100), 100),
            (ArrayShape::plane(17, 9), 153),
            (ArrayShape::volume(5, 6, 7), 210),
            (ArrayShape::layers(33, 4, 3), 396),
        ] {
            let mut array = vgpu.array::<[i16; 2]>(shape).unwrap();
            assert_eq!(array.len(), count);
            assert!(vgpu.memory().unwrap().used_bytes > before);
            let texels: Vec<[i16; 2]> = (0..count as i16).map(|i| [i, -i]).collect();
            array.copy_from(&stream, &texels).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(array.to_vec().unwrap(), texels, "{shape:?}");
            let short = array
                .copy_from(&stream, &texels[1..])
                .unwrap_err()
                .to_string();
            assert!(
                short.contains(&format!("the destination {count}")),
                "{short}"
            );
        }
        assert_eq!(vgpu.memory().unwrap().used_bytes, before);
    });
}

#[test]
fn a_texture_keeps_its_array() {
    on_both(64 << 20, |vgpu| {
        let mut array = vgpu.array::<f32>(ArrayShape::plane(8, 4)).unwrap();
        array.copy_from(&vgpu.default_stream(), &ramp()).unwrap();
        let texture = array.texture(&TextureOptions::default()).unwrap();
        drop(array);
        assert_eq!(sample(vgpu, &texture, 0.5, 0.5)[7], 7.0);
    });
}

#[test]
fn impossible_arrays_and_textures_are_refused() {
    on_both(8 << 20, |vgpu| {
        assert!(vgpu.array::<f32>(ArrayShape::line(0)).is_err());
        assert!(vgpu.array::<f32>(ArrayShape::plane(usize::MAX, 2)).is_err());
        assert!(vgpu.array::<f32>(ArrayShape::line(1 << 28)).is_err());
        let large = vgpu
            .array::<f32>(ArrayShape::plane(4096, 4096))
            .unwrap_err();
        assert!(large.is_out_of_memory(), "{large}");
        let integers = vgpu.array::<u32>(ArrayShape::plane(8, 8)).unwrap();
        let options = TextureOptions {
            filter: Filter::Linear,
            ..TextureOptions::default()
        };
        let refused = integers.texture(&options).unwrap_err().to_string();
        assert!(refused.contains("cannot be interpolated"), "{refused}");
    });
}
