//! PTX from a file or built in: lists its kernels; with none given, runs one with shared memory.

use mica::{Device, Error, Grid, Vgpu};

/// Sums 256 numbers per block in shared memory.
const SUM: &str = "
.version 7.0
.target sm_75
.address_size 64
.extern .shared .align 4 .b8 cells[];
.visible .entry block_sum(.param .u64 in, .param .u64 out)
{
    .reg .pred %p;
    .reg .b32 %r<10>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [in];
    ld.param.u64 %d2, [out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r4, %r2, %r3, %r1;
    mul.wide.u32 %d3, %r4, 4;
    add.u64 %d4, %d1, %d3;
    ld.global.u32 %r5, [%d4];
    mov.u32 %r6, cells;
    shl.b32 %r7, %r1, 2;
    add.u32 %r6, %r6, %r7;
    st.shared.u32 [%r6], %r5;
    shr.u32 %r3, %r3, 1;
HALVE:
    bar.sync 0;
    setp.ge.u32 %p, %r1, %r3;
    @%p bra SKIP;
    shl.b32 %r8, %r3, 2;
    add.u32 %r8, %r6, %r8;
    ld.shared.u32 %r9, [%r8];
    ld.shared.u32 %r5, [%r6];
    add.u32 %r5, %r5, %r9;
    st.shared.u32 [%r6], %r5;
SKIP:
    shr.u32 %r3, %r3, 1;
    setp.ne.u32 %p, %r3, 0;
    @%p bra HALVE;
    setp.ne.u32 %p, %r1, 0;
    @%p bra DONE;
    mul.wide.u32 %d5, %r2, 4;
    add.u64 %d6, %d2, %d5;
    ld.shared.u32 %r5, [%r6];
    st.global.u32 [%d6], %r5;
DONE:
    ret;
}";

fn main() -> Result<(), Error> {
    let vgpu = Vgpu::builder()
        .memory(64 << 20)
        .build(&Device::software()?)?;
    if let Some(path) = std::env::args().nth(1) {
        let image = std::fs::read(&path)
            .map_err(|error| Error::Argument(format!("{path} cannot be read: {error}")))?;
        for kernel in vgpu.load(&image)?.kernels() {
            println!("{kernel}");
        }
        return Ok(());
    }
    let kernel = vgpu.load_ptx(SUM)?.kernel("block_sum")?;
    let numbers: Vec<u32> = (0..1024).collect();
    let input = vgpu.upload(&numbers)?;
    let mut sums = vgpu.alloc::<u32>(4)?;
    let grid = Grid::new(4, 256).shared(256 * 4);
    vgpu.default_stream()
        .launch(&kernel, grid, (&input, &mut sums))?;
    let sums = sums.to_vec()?;
    let expected: Vec<u32> = numbers
        .chunks(256)
        .map(|block| block.iter().sum())
        .collect();
    println!(
        "{sums:?}, expected {expected:?}; {} blocks fit a multiprocessor",
        kernel.occupancy(256, 1024)?
    );
    assert_eq!(sums, expected);
    Ok(())
}
