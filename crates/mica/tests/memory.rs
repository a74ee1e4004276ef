//! Parts of buffers, aligned, pitched and managed memory, and memory of two virtual GPUs.

mod common;

use common::{PTX, device, embedded, on_both};
use mica::{DeviceBuffer, Graph, Grid, Vgpu};

#[test]
fn a_part_of_a_buffer_is_a_buffer_to_kernels_and_copies() {
    on_both(64 << 20, |vgpu| {
        let vadd = vgpu.load_ptx(PTX).unwrap().kernel("vadd").unwrap();
        let x: Vec<f32> = (0..100).map(|i| i as f32).collect();
        let x = vgpu.upload(&x).unwrap();
        let mut y = vgpu.alloc::<f32>(100).unwrap();
        let stream = vgpu.stream().unwrap();
        let (from, mut to) = (x.slice(10..20).unwrap(), y.slice_mut(50..60).unwrap());
        stream
            .launch(&vadd, Grid::new(1, 32), (&from, &from, &mut to, 10_u32))
            .unwrap();
        to.slice_mut(..1)
            .unwrap()
            .copy_from(&stream, &[-1.0])
            .unwrap();
        let (_, mut last) = to.split_at(8).unwrap();
        last.copy_from_slice(&stream, x.slice(98..).unwrap())
            .unwrap();
        stream.synchronize().unwrap();
        let seen = y.slice(48..61).unwrap().to_vec().unwrap();
        assert_eq!(
            seen,
            [
                0.0, 0.0, -1.0, 22.0, 24.0, 26.0, 28.0, 30.0, 32.0, 34.0, 98.0, 99.0, 0.0
            ]
        );
        let part = y.slice(57..60).unwrap().download(&stream).unwrap();
        assert_eq!(part.wait().unwrap(), [34.0, 98.0, 99.0]);
        for range in [(0, 101), (100, 100), (7, 3)] {
            let refused = y.slice(range.0..range.1).unwrap_err().to_string();
            assert!(refused.contains("no part of 100 values"), "{refused}");
        }
        assert!(y.slice(..=usize::MAX).is_err());
    });
}

#[test]
fn sizes_that_differ_are_refused_with_both() {
    let vgpu = embedded(1 << 20);
    let (a, mut b) = (vgpu.alloc::<u8>(10).unwrap(), vgpu.alloc::<u8>(20).unwrap());
    let stream = vgpu.default_stream();
    let refused = b.copy_from_buffer(&stream, &a).unwrap_err().to_string();
    assert!(
        refused.contains("the source has 10 values, the buffer 20"),
        "{refused}"
    );
    b.slice_mut(5..15)
        .unwrap()
        .copy_from_slice(&stream, &a)
        .unwrap();
}

#[test]
fn nothing_of_one_virtual_gpu_is_taken_for_another() {
    let device = device();
    let make = || Vgpu::builder().memory(32 << 20).build(&device).unwrap();
    let (one, two) = (make(), make());
    let (mut mine, mut yours) = (one.alloc::<f32>(8).unwrap(), two.alloc::<f32>(8).unwrap());
    let vadd = one.load_ptx(PTX).unwrap().kernel("vadd").unwrap();
    let (stream, foreign) = (one.stream().unwrap(), two.stream().unwrap());
    let event = two.event().unwrap();
    let grid = Grid::new(1, 8);
    let results = [
        mine.copy_from_buffer(&stream, &yours),
        mine.copy_from_in(&foreign, &[0.0; 8]),
        mine.download(&foreign).map(drop),
        stream.fill(&mut yours, 1.0),
        stream.fill_bytes(&yours, 1),
        stream.launch(&vadd, grid, (&mine, &yours, &mine, 8_u32)),
        foreign.launch(&vadd, grid, (&mine, &mine, &mine, 8_u32)),
        stream.wait_for(&event),
        event.record(&stream),
        Graph::new(&one).copy(&[], &mut mine, &yours).map(drop),
        Graph::new(&two)
            .launch(&[], &vadd, grid, (&mine, &mine, &mine, 8_u32))
            .map(drop),
        Graph::new(&one).instantiate().unwrap().launch(&foreign),
    ];
    for (index, result) in results.into_iter().enumerate() {
        let refused = result.unwrap_err().to_string();
        assert!(
            refused.contains("belongs to another virtual GPU"),
            "{index}: {refused}"
        );
    }
    // A clone is the same virtual GPU.
    let clone = one.clone().stream().unwrap();
    mine.copy_from_in(&clone, &[2.0; 8]).unwrap();
    assert_eq!(mine.to_vec().unwrap(), [2.0; 8]);
}

#[test]
fn aligned_memory_begins_where_it_should_and_counts() {
    on_both(64 << 20, |vgpu| {
        let before = vgpu.memory().unwrap().used_bytes;
        let buffers: Vec<DeviceBuffer<u32>> = [1, 256, 512, 4096, 1 << 21]
            .into_iter()
            .map(|align| {
                let buffer = vgpu.alloc_aligned::<u32>(100, align).unwrap();
                assert_eq!(buffer.address() % align, 0, "{align}");
                assert_eq!(buffer.to_vec().unwrap(), [0; 100]);
                buffer
            })
            .collect();
        assert!(vgpu.memory().unwrap().used_bytes - before >= 1 << 21);
        drop(buffers);
        assert_eq!(vgpu.memory().unwrap().used_bytes, before);
        for wrong in [0, 3, 300] {
            let refused = vgpu.alloc_aligned::<u8>(1, wrong).unwrap_err().to_string();
            assert!(refused.contains("is no alignment"), "{refused}");
        }
        assert!(vgpu.alloc_aligned::<u8>(1, 1 << 63).is_err());
    });
}

#[test]
fn pitched_memory_keeps_its_rows_apart() {
    on_both(64 << 20, |vgpu| {
        let stream = vgpu.stream().unwrap();
        for (width, height) in [(1, 1), (7, 5), (128, 3), (130, 129), (100_000, 2)] {
            let mut image = vgpu.alloc_pitched::<u32>(width, height).unwrap();
            assert_eq!(image.pitch_bytes() % 512, 0);
            assert!(image.pitch_bytes() >= width as u64 * 4);
            let values: Vec<u32> = (0..(width * height) as u32).collect();
            image.copy_from(&stream, &values).unwrap();
            stream.synchronize().unwrap();
            assert!(image.to_vec().unwrap() == values, "{width} × {height}");
            let mut second = [0; 4];
            let address = image.address() + image.pitch_bytes() * (height as u64 - 1);
            vgpu.read_bytes(&stream, address, &mut second).unwrap();
            assert_eq!(u32::from_le_bytes(second), (width * (height - 1)) as u32);
            assert!(image.copy_from(&stream, &values[1..]).is_err());
        }
        assert!(vgpu.alloc_pitched::<u32>(0, 4).is_err());
        assert!(vgpu.alloc_pitched::<u32>(4, 0).is_err());
        assert!(vgpu.alloc_pitched::<u32>(usize::MAX / 2, 4).is_err());
    });
}

#[test]
fn managed_memory_is_seen_by_both_and_counts() {
    on_both(8 << 20, |vgpu| {
        let vadd = vgpu.load_ptx(PTX).unwrap().kernel("vadd").unwrap();
        let before = vgpu.memory().unwrap().used_bytes;
        let mut data = vgpu.managed::<f32>(1000).unwrap();
        assert!(vgpu.memory().unwrap().used_bytes >= before + 4000);
        let values: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        data.write(0, &values).unwrap();
        let stream = vgpu.stream().unwrap();
        data.prefetch_to_device(&stream).unwrap();
        let grid = Grid::covering(1000, 128);
        stream
            .launch(&vadd, grid, (&data, &data, &data, 1000_u32))
            .unwrap();
        data.prefetch_to_host(&stream).unwrap();
        let mut seen = [0.0; 3];
        data.read(997, &mut seen).unwrap();
        assert_eq!(seen, [1994.0, 1996.0, 1998.0]);
        assert!(data.read(998, &mut seen).is_err());
        assert!(data.write(usize::MAX, &[1.0]).is_err());
        drop(data);
        assert_eq!(vgpu.memory().unwrap().used_bytes, before);
        let refused = vgpu.managed::<u8>(9 << 20).unwrap_err();
        assert!(refused.is_out_of_memory(), "{refused}");
        assert!(vgpu.managed::<u8>(0).is_err());
    });
}

#[test]
fn managed_memory_outlives_a_reset() {
    let vgpu = embedded(8 << 20);
    let mut data = vgpu.managed::<u32>(16).unwrap();
    data.write(0, &[7; 16]).unwrap();
    vgpu.reset().unwrap();
    let mut seen = [0; 16];
    data.read(0, &mut seen).unwrap();
    assert_eq!(seen, [7; 16]);
}
