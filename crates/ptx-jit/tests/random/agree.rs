//! One program, interpreted and compiled: both give the same, and touch nothing but what the program may touch.
//!
//! The oracle is [`Device::confine`]: painted gaps after each piece of memory tell of stores outside, and modes that are told
//! of accesses compare each with the pieces.

use std::sync::Arc;

use mica_kernel::{BlockOutcome, Dim3, TextureView};
use mica_ptx_jit::{JitModule, Options};

use crate::common::{Device, Params, Rng, dim};
use crate::maps::{Draft, Piece};

/// The handle of the texture.
const TEXTURE: u64 = 5;

/// What code is made to do besides running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Plain,
    /// Asks the device about every access.
    Memcheck,
    /// Tells a monitor of every access, one thread after the other.
    Told,
    /// Compares addresses with live memory in vector code.
    Live,
    Covered,
}

impl Mode {
    pub(crate) const ALL: [Mode; 5] = [
        Mode::Plain,
        Mode::Memcheck,
        Mode::Told,
        Mode::Live,
        Mode::Covered,
    ];
    /// Those that are told of every access, and know which memory the program may touch.
    pub(crate) const EXACT: [Mode; 3] = [Mode::Memcheck, Mode::Told, Mode::Live];
}

/// What a program is run with.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// What its input depends on.
    pub(crate) seed: u64,
    /// Whether all warps are whole.
    pub(crate) whole: bool,
    /// Blocks of the cluster that it is run by.
    pub(crate) cluster: u32,
    /// The tensor maps of each block.
    pub(crate) maps: Vec<Draft>,
}

/// Bytes that a block copies boxes to.
const BOXES: u64 = 4096;

/// What a run gave.
#[derive(Debug, PartialEq)]
pub(crate) struct Ran {
    pub(crate) outcome: BlockOutcome,
    pub(crate) fault: u32,
    pub(crate) printed: usize,
    pub(crate) words: Vec<u32>,
    pub(crate) boxes: Vec<u32>,
}

/// A whole and a half warp, so that the last groups are partial, or two whole ones.
pub(crate) fn threads(whole: bool) -> u32 {
    if whole { 64 } else { 48 }
}

pub(crate) fn compiled(text: &str, lanes: u32, mode: Mode) -> Result<Device, String> {
    let parsed = mica_ptx::parse(text.as_bytes()).map_err(|e| e.to_string())?;
    let options = Options {
        lanes,
        memcheck: mode == Mode::Memcheck,
        monitor: matches!(mode, Mode::Told | Mode::Live),
        monitor_own: mode == Mode::Told,
        coverage: mode == Mode::Covered,
        ..Options::default()
    };
    let module = JitModule::compile(Arc::new(parsed), options).map_err(|e| e.to_string())?;
    Ok(Device::new(Box::new(module)))
}

fn view(rng: &mut Rng) -> TextureView {
    let extent = Dim3 {
        x: rng.next(8) as u32 + 1,
        y: rng.next(8) as u32 + 1,
        z: 1,
    };
    TextureView {
        row_pitch: 128,
        format: rng.pick(&[1, 2, 8, 9, 16, 32, 32, 32]),
        channels: rng.pick(&[1, 1, 2, 4]),
        address_mode: [0; 3].map(|_: u32| rng.next(4) as u32),
        filter: rng.next(2) as u32,
        normalized_coords: rng.one_in(2),
        read_as_integer: rng.one_in(2),
        border: [0.5, -2.0, 1.0, 3.0],
        ..TextureView::of_floats(0, extent)
    }
}

/// The tensor maps of all blocks: the second writes to the block's own boxes.
fn place_maps(d: &mut Device, case: &Case, texels: u64, boxes: u64) -> u64 {
    let blocks = u64::from(case.cluster);
    let bytes: Vec<u8> = (0..blocks)
        .flat_map(|block| case.maps.iter().map(move |map| (block, map)))
        .flat_map(|(block, map)| match map.piece {
            Piece::Texels => map.encode(texels),
            Piece::Boxes => map.encode(boxes + block * BOXES),
        })
        .collect();
    let at = d.alloc(bytes.len() as u64);
    d.write_bytes(at, &bytes);
    d.allow(at, bytes.len() as u64);
    at
}

/// Runs the program with the input of a case.
///
/// # Errors
/// Memory that the kernel may not touch has changed.
pub(crate) fn run(mut d: Device, case: &Case) -> Result<Ran, String> {
    let mut rng = Rng(case.seed | 1);
    let own_threads = threads(case.whole);
    let threads = own_threads * case.cluster;
    d.cluster = case.cluster;
    let input: Vec<u32> = (0..1024)
        .map(|i| match i % 4 {
            0 => rng.next(100) as u32,
            1 => (rng.next(2000) as f32 / 8.0 - 100.0).to_bits(),
            2 => (rng.next(1 << 30) as u32).wrapping_mul(5),
            _ => (rng.next(9) as u32).wrapping_sub(4),
        })
        .collect();
    let own: Vec<u32> = (0..64 * (threads + 2))
        .map(|i| {
            if i % 2 == 0 {
                rng.next(50) as u32
            } else {
                (rng.next(1 << 30) as u32).wrapping_mul(7)
            }
        })
        .collect();
    let texels: Vec<u32> = (0..256).map(|_| rng.next(1 << 32) as u32).collect();
    let view = view(&mut rng);
    d.confine();
    let kernel = d.kernel("k");
    d.local_stride = d.module.local_bytes(kernel).next_multiple_of(16);
    let place = |d: &mut Device, words: &[u32]| {
        let at = d.upload(words);
        d.allow(at, 4 * words.len() as u64);
        at
    };
    let pin = place(&mut d, &input);
    let work = place(&mut d, &own);
    let base = place(&mut d, &texels);
    let out = place(&mut d, &vec![0; 64 * threads as usize]);
    let scr = place(&mut d, &vec![0; 2 * threads as usize]);
    let boxes = place(
        &mut d,
        &vec![0; (BOXES / 4) as usize * case.cluster as usize],
    );
    let maps = place_maps(&mut d, case, base, boxes);
    let view = TextureView { base, ..view };
    d.host.textures.lock().expect("lock").insert(TEXTURE, view);
    let p = (Params::default().u64(pin).u64(work))
        .u64(out)
        .u64(scr)
        .u64(TEXTURE)
        .u64(maps)
        .u64(boxes);
    let (outcome, fault) = d.launch("k", dim(case.cluster), dim(own_threads), 0, p);
    if let Some(at) = d.torn {
        return Err(format!("{at:#x} has changed, which is nobody's"));
    }
    for (what, at, was) in [
        ("input", pin, &input),
        ("work", work, &own),
        ("texels", base, &texels),
    ] {
        if d.read(at, was.len()) != *was {
            return Err(format!("the {what} has changed"));
        }
    }
    let printed = d.host.printed.lock().expect("lock").len();
    Ok(Ran {
        outcome,
        fault: fault.kind,
        printed,
        words: d.read(out, 64 * threads as usize),
        boxes: d.read(boxes, (BOXES / 4) as usize * case.cluster as usize),
    })
}

/// How compiled code differs from what is wanted: where one has faulted, results do not count.
pub(crate) fn difference(want: &Ran, got: &Ran) -> Option<String> {
    if (got.outcome, got.fault) != (want.outcome, want.fault) {
        let pair = |ran: &Ran| (ran.outcome, ran.fault);
        return Some(format!("{:?}, not {:?}", pair(got), pair(want)));
    }
    if want.outcome != BlockOutcome::Done {
        return None;
    }
    if got.printed != want.printed {
        let (got, want) = (got.printed, want.printed);
        return Some(format!("{got} lines are printed, not {want}"));
    }
    let boxes = got.boxes.iter().zip(&want.boxes);
    if let Some(i) = boxes.clone().position(|(got, want)| got != want) {
        let (got, want) = (got.boxes[i], want.boxes[i]);
        return Some(format!("word {i} of the boxes is {got:#x}, not {want:#x}"));
    }
    let mut bad = (0..want.words.len()).filter(|&i| got.words[i] != want.words[i]);
    let i = bad.next()?;
    let slots: std::collections::BTreeSet<usize> = bad.chain([i]).map(|i| i % 64 / 2).collect();
    Some(format!(
        "thread {} slot {} is {:#x}, not {:#x}; slots {slots:?} differ",
        i / 64,
        i % 64 / 2,
        got.words[i],
        want.words[i]
    ))
}
