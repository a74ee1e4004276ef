//! A load that checks every result: data goes to the device, is scrambled there and comes back.
//!
//! For tests that end processes at random: whoever survives must go on, and go on right. It prints
//! `ready BYTES` (in use on its device, as the driver tells) once its memory is held, and `step N` after every step that came back right.

use std::ffi::{c_uint, c_void};
use std::io::Write;
use std::time::{Duration, Instant};

use crate::driver::{Driver, DriverError, Handle};
use crate::pattern::{Load, LoadReport};

/// Numbers scrambled in a step.
const COUNT: usize = 16 << 10;
const THREADS: c_uint = 128;

/// Multiplies and adds, again and again; every bit of the result depends on every round.
const PTX: &str = "\
.version 7.0
.target sm_75
.address_size 64

.visible .entry scramble(.param .u64 data, .param .u32 count, .param .u32 rounds)
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd0, [data];
    ld.param.u32 %r0, [count];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    setp.ge.u32 %p0, %r2, %r0;
    @%p0 bra end;
    mul.wide.u32 %rd1, %r2, 4;
    add.u64 %rd2, %rd0, %rd1;
    ld.global.u32 %r5, [%rd2];
    mov.u32 %r6, 0;
again:
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra done;
    mad.lo.u32 %r5, %r5, 1664525, 1013904223;
    add.u32 %r6, %r6, 1;
    bra again;
done:
    st.global.u32 [%rd2], %r5;
end:
    ret;
}
\0";

/// The same on this processor.
fn scrambled(value: u32, rounds: u32) -> u32 {
    (0..rounds).fold(value, |value, _| {
        value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)
    })
}

/// Runs one step at least, until the window ends, or for ever if it has no length. `depth` is the memory held in MiB,
/// `iterations` the rounds a step computes.
pub(crate) fn run(driver: &Driver, load: &Load) -> Result<LoadReport, DriverError> {
    let function = driver.function(PTX, c"scramble")?;
    let held = driver.alloc((load.depth as usize) << 20)?;
    let data = driver.alloc(COUNT * 4)?;
    say(format_args!("ready {}", driver.used_bytes()?))?;
    let began = Instant::now();
    let end = (load.seconds > 0.0).then(|| Duration::from_secs_f64(load.seconds));
    let mut steps = 0_u32;
    while steps == 0 || end.is_none_or(|end| began.elapsed() < end) {
        let before: Vec<u32> = (0..COUNT as u32)
            .map(|i| i ^ steps.rotate_left(16))
            .collect();
        let mut after = vec![0; COUNT];
        driver.upload(data, &before)?;
        scramble(driver, function, data, load.iterations)?;
        driver.download(&mut after, data)?;
        for (index, (before, after)) in before.iter().zip(&after).enumerate().step_by(61) {
            if *after != scrambled(*before, load.iterations) {
                return Err(DriverError::Wrong { index, step: steps });
            }
        }
        steps += 1;
        say(format_args!("step {steps}"))?;
    }
    driver.free(data)?;
    driver.free(held)?;
    Ok(LoadReport {
        kernels: f64::from(steps),
        seconds: began.elapsed().as_secs_f64(),
        ..LoadReport::default()
    })
}

/// One line at once; whoever reads them wants to know now.
fn say(line: std::fmt::Arguments<'_>) -> Result<(), DriverError> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(DriverError::Output)
}

fn scramble(driver: &Driver, function: Handle, data: u64, rounds: u32) -> Result<(), DriverError> {
    let (mut data, mut count, mut rounds) = (data, COUNT as u32, rounds);
    let params: [*mut c_void; 3] = [
        (&raw mut data).cast(),
        (&raw mut count).cast(),
        (&raw mut rounds).cast(),
    ];
    let blocks = (COUNT as c_uint).div_ceil(THREADS);
    driver.launch(function, blocks, THREADS, params)?;
    driver.synchronize()
}
