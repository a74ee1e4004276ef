use super::*;
use crate::surface::{SurfaceAddress, surface_address};
use mica_kernel::Dim3;
use mica_ptx::ast::Clamp;

fn view(width: u32, height: u32) -> TextureView {
    TextureView {
        border: [9.0; 4],
        ..TextureView::of_floats(
            0,
            Dim3 {
                x: width,
                y: height,
                z: 1,
            },
        )
    }
}

/// Texel `i` of the memory holds `i` as a float.
fn ramp(address: u64, _bytes: u32) -> Result<u64, ()> {
    Ok(u64::from(((address / 4) as f32).to_bits()))
}

fn at(view: &TextureView, geom: Geometry, coords: [f32; 3]) -> f32 {
    let texel =
        sample(view, geom, Coordinates::Float(coords), 0, [0; 3], &mut ramp).expect("readable");
    f32::from_bits(texel[0])
}

#[test]
fn point_sampling_takes_the_cell() {
    let v = view(4, 4);
    assert_eq!(at(&v, Geometry::D1, [2.9, 0.0, 0.0]), 2.0);
    assert_eq!(at(&v, Geometry::D2, [2.9, 1.5, 0.0]), 6.0);
    assert_eq!(at(&v, Geometry::D2, [-5.0, 99.0, 0.0]), 12.0);
    assert_eq!(at(&v, Geometry::D2, [f32::NAN, 0.0, 0.0]), 0.0);
}

#[test]
fn linear_sampling_blends_centres() {
    let v = TextureView {
        filter: 1,
        ..view(4, 4)
    };
    assert_eq!(at(&v, Geometry::D1, [1.5, 0.0, 0.0]), 1.0);
    assert_eq!(at(&v, Geometry::D1, [2.0, 0.0, 0.0]), 1.5);
    assert_eq!(at(&v, Geometry::D2, [2.0, 2.0, 0.0]), 7.5);
    assert_eq!(
        at(&v, Geometry::D1, [0.0, 0.0, 0.0]),
        0.0,
        "clamped at the edge"
    );
}

#[test]
fn address_modes() {
    let mut v = TextureView {
        normalized_coords: true,
        ..view(4, 1)
    };
    v.address_mode = [0; 3];
    assert_eq!(at(&v, Geometry::D1, [1.3, 0.0, 0.0]), 1.0);
    assert_eq!(at(&v, Geometry::D1, [-0.1, 0.0, 0.0]), 3.0);
    v.address_mode = [2; 3];
    assert_eq!(at(&v, Geometry::D1, [1.1, 0.0, 0.0]), 3.0);
    v.address_mode = [3; 3];
    assert_eq!(at(&v, Geometry::D1, [1.1, 0.0, 0.0]), 9.0);
    v.filter = 1;
    v.address_mode = [0; 3];
    assert_eq!(
        at(&v, Geometry::D1, [0.0, 0.0, 0.0]),
        1.5,
        "wraps between the last and first"
    );
}

#[test]
fn integer_coordinates_give_zero_outside() {
    let v = view(4, 1);
    let fetch = |x| {
        let c = Coordinates::Integer([x, 0, 0]);
        f32::from_bits(sample(&v, Geometry::D1, c, 0, [0; 3], &mut ramp).expect("readable")[0])
    };
    assert_eq!(fetch(3), 3.0);
    assert_eq!(fetch(4), 0.0);
    assert_eq!(fetch(-1), 0.0);
}

#[test]
fn layers_and_slices() {
    let mut v = view(2, 2);
    v.extent.z = 3;
    let c = Coordinates::Float([0.5, 0.5, 0.0]);
    let texel = sample(&v, Geometry::A2, c, 2, [0; 3], &mut ramp).expect("readable");
    assert_eq!(f32::from_bits(texel[0]), 8.0);
    assert_eq!(at(&v, Geometry::D3, [1.5, 0.5, 1.5]), 5.0);
    v.extent.z = 6;
    assert_eq!(at(&v, Geometry::Cube, [0.0, 0.0, -1.0]), 5.0 * 4.0 + 3.0);
    assert_eq!(at(&v, Geometry::Cube, [1.0, 0.9, 0.9]), 0.0);
}

#[test]
fn formats_are_normalized_or_kept() {
    let mut v = TextureView {
        format: 1,
        channels: 4,
        ..view(1, 1)
    };
    let mut bytes = |address: u64, _: u32| Ok::<_, ()>([255, 0, 51, 128][address as usize]);
    let c = Coordinates::Float([0.0; 3]);
    let texel = sample(&v, Geometry::D2, c, 0, [0; 3], &mut bytes).expect("readable");
    assert_eq!(texel.map(f32::from_bits), [1.0, 0.0, 0.2, 128.0 / 255.0]);
    v.read_as_integer = true;
    let texel = sample(&v, Geometry::D2, c, 0, [0; 3], &mut bytes).expect("readable");
    assert_eq!(texel, [255, 0, 51, 128]);
    v.format = 8;
    let texel = sample(&v, Geometry::D2, c, 0, [0; 3], &mut bytes).expect("readable");
    assert_eq!(texel[0], u32::MAX);
}

#[test]
fn gathering_orders_the_corners() {
    let v = view(4, 4);
    let texel = gather(&v, Geometry::D2, [2.0, 2.0, 0.0], 0, [0; 3], 0, &mut ramp).expect("ok");
    assert_eq!(texel.map(f32::from_bits), [9.0, 10.0, 6.0, 5.0]);
}

#[test]
fn surfaces_clamp_zero_or_trap() {
    let v = view(4, 4);
    let go = |clamp, x, y| surface_address(&v, Geometry::D2, clamp, [x, y, 0], 0, 4);
    assert_eq!(go(Clamp::Trap, 8, 1), SurfaceAddress::At(24));
    assert_eq!(go(Clamp::Trap, 16, 1), SurfaceAddress::Trap);
    assert_eq!(go(Clamp::Zero, 14, 1), SurfaceAddress::Nothing);
    assert_eq!(go(Clamp::Clamp, 100, -3), SurfaceAddress::At(12));
}

/// Samples as a group of threads does.
fn sampled_together(
    simple: &Simple,
    [x, y]: &[Row<f32>; 2],
    read: impl Fn(u64) -> u32,
) -> Row<u32> {
    if !simple.is_linear {
        return simple.points(x, y).map(read);
    }
    let corners = simple.corners(x, y);
    let mut texels = [[0; SAMPLES]; 4];
    for (texels, places) in texels.iter_mut().zip(corners.places).take(corners.count) {
        *texels = places.map(&read);
    }
    corners.blend(&texels)
}

#[test]
fn a_plane_gives_what_sample_gives() {
    let mut seed = 1u32;
    let mut random = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        seed >> 8
    };
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e-30];
    // Every address has other bits, those of infinities and NaN among them.
    let noise = |address: u64, bytes: u32| {
        let word = (address as u32).wrapping_mul(2_654_435_761) ^ 0x3f80_0000;
        u64::from(word) & crate::typed::mask(8 * bytes)
    };
    let (mut compared, mut together) = (0, 0);
    for _ in 0..40_000 {
        let format = [1, 2, 3, 8, 9, 10, 16, 32][random() as usize % 8];
        let channels = [1, 2, 4][random() as usize % 3];
        let v = TextureView {
            format,
            channels,
            row_pitch: 256,
            address_mode: [random() % 4, random() % 4, 1],
            filter: random() % 2,
            normalized_coords: random() % 2 == 0,
            read_as_integer: random() % 2 == 0,
            border: [0.25, 1.0, -3.0, 0.5],
            ..view(random() % 9 + 1, random() % 9 + 1)
        };
        let geom = [Geometry::D1, Geometry::D2][random() as usize % 2];
        let Some(plane) = Plane::new(&v, geom) else {
            continue;
        };
        let (_, limit) = plane.bytes().expect("small");
        let read = |at: u64, bytes: u32| {
            assert!(at + u64::from(bytes) <= limit, "outside");
            noise(at, bytes)
        };
        let mut read_any = |at: u64, bytes: u32| Ok::<_, ()>(noise(at, bytes));
        let coords: [f32; 2] = std::array::from_fn(|_| match random() % 16 {
            0 => special[random() as usize % special.len()],
            1 => f32::from_bits(random() << 8 | random() & 255),
            _ if v.normalized_coords => random() as f32 / 4_000_000.0 - 2.0,
            _ => random() as f32 / 1_000_000.0 - 4.0,
        });
        let [x, y] = coords;
        let float = Coordinates::Float([x, y, 0.0]);
        let want = sample(&v, geom, float, 0, [0; 3], &mut read_any).expect("readable");
        assert_eq!(
            plane.sample(coords, read),
            want,
            "{v:?} {geom:?} {coords:?}"
        );
        if let Some(simple) = plane.simple() {
            let rows = coords.map(|x| {
                std::array::from_fn(|i| if i == compared % SAMPLES { x } else { i as f32 })
            });
            let got = sampled_together(simple, &rows, |at| read(at, 4) as u32);
            assert_eq!(
                got[compared % SAMPLES],
                want[0],
                "{v:?} {geom:?} {coords:?}"
            );
            together += 1;
        }
        let index: [i32; 2] = std::array::from_fn(|_| (random() % 16) as i32 - 4);
        let whole = Coordinates::Integer([index[0], index[1], 0]);
        let want = sample(&v, geom, whole, 0, [0; 3], &mut read_any).expect("readable");
        assert_eq!(plane.texel(index, read), want, "{v:?} {geom:?} {index:?}");
        compared += 1;
    }
    assert!(compared > 20_000, "only {compared} compared");
    assert!(together > 300, "only {together} sampled together");
}
