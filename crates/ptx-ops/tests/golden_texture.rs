//! Compares texture sampling with what an H200 sampled (`tests/golden/h200_texture.txt`, printed by
//! `tests/gpu/golden_texture.cu`): points exactly, filtered values within the 8 bits of weights.

use mica_kernel::{Dim3, TextureView};
use mica_ptx::ast::Geometry;
use mica_ptx_ops::texture::{Coordinates, component_bytes, gather, sample};

/// Component `c` of the texel at `x, y, z`: the same as in the CUDA program.
fn content(format: u32, x: i32, y: i32, z: i32, c: i32) -> u64 {
    let p = (x * 7 + y * 13 + z * 29 + c * 5) % 251;
    match format {
        1 => p as u64,
        8 => (p - 125) as u8 as u64,
        2 => (p * 200) as u64,
        9 => ((p - 125) * 200) as u16 as u64,
        3 => (p * 1000) as u64,
        10 => ((p - 125) * 1000) as u32 as u64,
        16 => (0x3000 + p) as u64,
        _ => u64::from((p as f32 * 0.25).to_bits()),
    }
}

#[test]
fn samples_match_the_gpu() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/h200_texture.txt"
    );
    let Ok(text) = std::fs::read_to_string(path) else {
        return;
    };
    let mut wrong = Vec::new();
    let mut checked = 0;
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let (left, right) = line.split_once(" = ").expect("a result");
        let words: Vec<&str> = left.split(' ').collect();
        let n: Vec<u32> = words[2..12]
            .iter()
            .map(|w| w.parse().expect("a number"))
            .collect();
        let hex = |w: &&str| u32::from_str_radix(w, 16).expect("hexadecimal");
        let coords: Vec<f32> = words[12..15]
            .iter()
            .map(|w| f32::from_bits(hex(w)))
            .collect();
        let expected: Vec<u32> = right.split(' ').map(|w| hex(&w)).collect();
        let [
            format,
            channels,
            filter,
            mode,
            normalized,
            integer,
            w,
            h,
            d,
            layer,
        ] = n[..]
        else {
            panic!("ten numbers");
        };
        let texel = component_bytes(format) * channels;
        let view = TextureView {
            base: 0,
            extent: Dim3 { x: w, y: h, z: d },
            row_pitch: u64::from(w * texel),
            slice_pitch: u64::from(w * h * texel),
            channels,
            format,
            address_mode: [mode; 3],
            filter,
            normalized_coords: normalized == 1,
            read_as_integer: integer == 1 || component_bytes(format) == 4,
            layered: words[1].starts_with('a'),
            cubemap: words[1] == "cube",
            border: [0.5, 0.25, 0.75, 1.0],
        };
        let mut read = |address: u64, bytes: u32| {
            let element = (address / u64::from(bytes)) as i32;
            let (c, rest) = (element % channels as i32, element / channels as i32);
            let (x, rest) = (rest % w as i32, rest / w as i32);
            Ok::<_, ()>(content(format, x, rest % h as i32, rest / h as i32, c))
        };
        let xyz = [coords[0], coords[1], coords[2]];
        let geometry = match words[1] {
            "1d" | "fetch" => Geometry::D1,
            "2d" => Geometry::D2,
            "3d" => Geometry::D3,
            "a1d" => Geometry::A1,
            "a2d" => Geometry::A2,
            _ => Geometry::Cube,
        };
        let got = match (words[0], words[1]) {
            ("tex", "fetch") => {
                let at = Coordinates::Integer([coords[0] as i32, 0, 0]);
                sample(&view, geometry, at, layer, [0; 3], &mut read)
            }
            ("tex", _) => {
                let at = Coordinates::Float(xyz);
                sample(&view, geometry, at, layer, [0; 3], &mut read)
            }
            (name, _) => {
                let component = name[5..].parse().expect("a component");
                gather(&view, geometry, xyz, layer, [0; 3], component, &mut read)
            }
        }
        .expect("readable");
        checked += 1;
        let close = |a: u32, b: u32| {
            let (x, y) = (f32::from_bits(a), f32::from_bits(b));
            // Neighbouring texels differ by up to 64; each weight may be off by one in 256.
            let step = if format == 32 { 63.0 } else { 2.0 };
            let dims = geometry.coords() as f32;
            a == b
                || (filter == 1 && (x - y).abs() <= step * dims / 256.0)
                || (!(1..=3).contains(&format) || integer == 0) && (x - y).abs() <= 1e-6
        };
        if !got.iter().zip(&expected).all(|(a, b)| close(*a, *b)) {
            let show = |t: &[u32]| -> Vec<f32> { t.iter().map(|b| f32::from_bits(*b)).collect() };
            wrong.push(format!(
                "{line}\n   at {xyz:?} ours {got:x?} {:?}, theirs {:?}",
                show(&got),
                show(&expected)
            ));
        }
    }
    assert!(checked > 1000, "the golden file is nearly empty");
    let total = wrong.len();
    wrong.truncate(60);
    assert!(
        wrong.is_empty(),
        "{total} of {checked} wrong:\n{}",
        wrong.join("\n")
    );
}
