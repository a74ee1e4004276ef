//! The mechanism: one worker's memory out, in, and two workers' at once; allocations; kernels.

use std::time::Instant;

use anyhow::{Context as _, Result};
use mica_gpu::Gpu;

use super::device::{HostBuffer, Pieces, Subject};
use super::{MIB, Measured, Scale};
use crate::report::Report;
use crate::software::median;

type Part = fn(&Scale, &mut Report) -> Result<()>;

/// What is measured, with the names that `--only` knows.
pub(super) const PARTS: [(&str, Part); 3] = [
    ("moves", moves),
    ("allocations", allocations),
    ("kernels", kernels),
];

/// Bare copies go through a buffer of this size.
const BUFFER_BYTES: u64 = 256 * MIB;
/// Pairs of allocation and free between two looks at the clock.
const PAIRS: usize = 1000;
/// Allocations that live while pairs are measured.
const OTHERS: u64 = 1000;
/// Launches between two looks at the clock.
const LAUNCHES: usize = 8;

fn milliseconds(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

/// A worker: its device, memory that can leave, and memory that stays to copy from barely.
struct Side {
    subject: Subject,
    held: Pieces,
    buffer: HostBuffer,
    /// Memory that stays, as large as the buffer.
    stays: Pieces,
}

impl Side {
    fn open(scale: &Scale) -> Result<Self> {
        let bytes = scale.data_bytes;
        let buffer_bytes = BUFFER_BYTES.min(bytes);
        let subject = Subject::open(scale.gpu, bytes + buffer_bytes + 64 * MIB)?;
        let held = subject.take(&*subject.swappable, bytes)?;
        // As a worker does in the background.
        subject.swapper.prepare(0)?;
        Ok(Self {
            held,
            buffer: HostBuffer::new(&subject, buffer_bytes)?,
            stays: subject.take(&*subject.plain, buffer_bytes)?,
            subject,
        })
    }

    /// Copies as much as the memory that can leave, from memory that stays.
    fn bare_copies(&mut self, bytes: u64, to_device: bool) -> Result<()> {
        let (at, part) = *self.stays.first().context("nothing to copy")?;
        for _ in 0..bytes / part {
            self.subject.copy(at, self.buffer.bytes(), to_device)?;
        }
        Ok(())
    }
}

/// Runs both at once; milliseconds until both are done.
fn both(
    one: impl FnOnce() -> Result<()> + Send,
    other: impl FnOnce() -> Result<()> + Send,
) -> Result<f64> {
    let began = Instant::now();
    std::thread::scope(|scope| {
        let thread = scope.spawn(one);
        let done = other();
        let joined = thread
            .join()
            .map_err(|_| anyhow::anyhow!("a thread panicked"));
        joined?.and(done)
    })?;
    Ok(milliseconds(began))
}

/// Milliseconds of copies of the driver alone and of moves: out, in and both.
fn round_of_moves(a: &mut Side, b: &mut Side, bytes: u64) -> Result<[f64; 6]> {
    // While memory is away, its device does nothing else.
    let began = Instant::now();
    a.bare_copies(bytes, false)?;
    let bare_out = milliseconds(began);
    let began = Instant::now();
    a.bare_copies(bytes, true)?;
    let bare_in = milliseconds(began);
    let bare = both(
        || a.bare_copies(bytes, false),
        || b.bare_copies(bytes, true),
    )?;
    let began = Instant::now();
    a.subject.leave()?;
    let out = milliseconds(began);
    let began = Instant::now();
    a.subject.come_back();
    let back = milliseconds(began);
    b.subject.leave()?;
    let exchanged = exchange(a, b, bytes)?;
    a.subject.come_back();
    Ok([bare_out, out, bare_in, back, bare, exchanged])
}

fn moves(scale: &Scale, report: &mut Report) -> Result<()> {
    let (mut a, mut b) = (Side::open(scale)?, Side::open(scale)?);
    let bytes = scale.data_bytes;
    let mut times: [Vec<f64>; 6] = Default::default();
    // The first round touches everything once on all sides.
    for round in 0..=scale.rounds {
        let round_times = round_of_moves(&mut a, &mut b, bytes)?;
        if round > 0 {
            for (all, one) in times.iter_mut().zip(round_times) {
                all.push(one);
            }
        }
    }
    for side in [&a, &b] {
        side.subject
            .check(&*side.subject.swappable, &side.held, 0)?;
    }
    let [bare_out, out, bare_in, back, bare, exchanged] = times.map(median);
    let size = scale.size();
    for (what, native, mica, most) in [
        (format!("{size} out"), bare_out, out, 180.0),
        (format!("{size} in"), bare_in, back, 180.0),
        (
            format!("exchange, {size} out and {size} in"),
            bare,
            exchanged,
            220.0,
        ),
    ] {
        let most = scale.most(most);
        let measured = Measured {
            what,
            unit: "ms",
            native,
            native_words: "to copy",
            mica,
            most,
        };
        measured.add_to(report);
    }
    Ok(())
}

/// One leaves while the other returns; never more than one of them is on the device.
fn exchange(leaves: &Side, returns: &Side, bytes: u64) -> Result<f64> {
    let (out, back) = (&leaves.subject, &returns.subject);
    both(
        || {
            back.returns();
            Ok(())
        },
        || {
            let report = |status: mica_swap::Status| {
                back.swapper.allow(bytes.saturating_sub(status.out_bytes));
            };
            Ok(out.swapper.leave(report)?)
        },
    )
}

fn allocations(scale: &Scale, report: &mut Report) -> Result<()> {
    let subject = Subject::open(scale.gpu, 512 * MIB)?;
    let sides: [&dyn Gpu; 2] = [&*subject.plain, &*subject.swappable];
    for (what, bytes) in [("4 KiB", 4096), ("512 KiB", 512 << 10)] {
        measure_pairs(scale, &subject, what, bytes, report)?;
    }
    let mut others = Vec::new();
    for side in sides {
        for index in 0..OTHERS {
            let at = side.memory_alloc(subject.context, (66 << 10) + index % 64 * 1024)?;
            others.push((side, at));
        }
    }
    let what = format!("512 KiB beside {OTHERS} others");
    measure_pairs(scale, &subject, &what, 512 << 10, report)?;
    for (side, at) in others {
        side.memory_free(subject.context, at)?;
    }
    Ok(())
}

/// One allocation and its free, again and again: of a device, and of the pool before it. Neither clears the memory.
fn measure_pairs(
    scale: &Scale,
    subject: &Subject,
    what: &str,
    bytes: u64,
    report: &mut Report,
) -> Result<()> {
    let pairs = |side: &dyn Gpu| -> Result<f64> {
        let began = Instant::now();
        for _ in 0..PAIRS {
            let at = side.memory_alloc(subject.context, bytes)?;
            side.memory_free(subject.context, at)?;
        }
        Ok(began.elapsed().as_secs_f64() * 1e6 / PAIRS as f64)
    };
    let (mut plain, mut swappable) = (Vec::new(), Vec::new());
    for round in 0..=scale.rounds {
        let (one, other) = (pairs(&*subject.plain)?, pairs(&*subject.swappable)?);
        if round > 0 {
            plain.push(one);
            swappable.push(other);
        }
    }
    let measured = Measured {
        what: format!("alloc + free of {what}, from the pool of a worker"),
        unit: "µs",
        native: median(plain),
        native_words: "by the device",
        mica: median(swappable),
        most: Some(0.5),
    };
    measured.add_to(report);
    Ok(())
}

fn kernels(scale: &Scale, report: &mut Report) -> Result<()> {
    let bytes = scale.kernel_bytes;
    let subject = Subject::open(scale.gpu, 2 * bytes + 64 * MIB)?;
    let sides: [&dyn Gpu; 2] = [&*subject.plain, &*subject.swappable];
    let pieces = [
        subject.take(sides[0], bytes)?,
        subject.take(sides[1], bytes)?,
    ];
    let (mut plain, mut ratios) = (Vec::new(), Vec::new());
    let rounds = 4 * scale.rounds + 1;
    for round in 0..=rounds {
        let mut times = [0.0; 2];
        // Neither side is always the first.
        for place in 0..2 {
            let which = (round + place) % 2;
            let began = Instant::now();
            for _ in 0..LAUNCHES {
                subject.add(sides[which], &pieces[which], 1)?;
            }
            subject.wait()?;
            times[which] = milliseconds(began) / LAUNCHES as f64;
        }
        if round > 0 {
            plain.push(times[0]);
            ratios.push(times[1] / times[0]);
        }
    }
    let added = ((rounds + 1) * LAUNCHES) as u32;
    for (side, pieces) in sides.into_iter().zip(pieces) {
        subject.check(side, &pieces, added)?;
        subject.give(side, pieces)?;
    }
    let (native, ratio) = (median(plain), median(ratios));
    let most = scale.most(1.005);
    report.add_with(
        crate::report::Line {
            what: format!("kernel over {}", mica_command::size::show_bytes(bytes)),
            native: format!("{native:.3} ms on memory that stays"),
            mica: format!("{:.3} ms on swappable memory (×{ratio:.4})", native * ratio),
            goal: most.map_or("-".into(), |most| format!("≤ ×{most}")),
            reached: most.map(|most| ratio <= most),
        },
        crate::report::Numbers {
            unit: "ms",
            native: Some(native),
            isolated: native * ratio,
            direct: None,
            ratio: Some(ratio),
        },
    );
    Ok(())
}
