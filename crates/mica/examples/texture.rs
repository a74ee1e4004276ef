//! A texture: a small picture enlarged by the device, which reads between its pixels.
//!
//! `cargo run --release --example texture`

use mica::{ArrayShape, Device, Error, Filter, Grid, TextureOptions, Vgpu};

const WIDTH: usize = 8;
const LARGE: usize = 64;

/// Columns of a row of the large picture: one thread each.
const ENLARGE: &str = ".version 7.0 .target sm_75 .address_size 64
.visible .entry enlarge(.param .u64 texture, .param .u64 out, .param .f32 step)
{
    .reg .b32 %r<4>; .reg .f32 %f<9>; .reg .b64 %d<4>;
    ld.param.u64 %d1, [texture];
    ld.param.u64 %d2, [out];
    ld.param.f32 %f1, [step];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    cvt.rn.f32.u32 %f2, %r1;
    cvt.rn.f32.u32 %f3, %r2;
    add.f32 %f2, %f2, 0f3F000000;
    add.f32 %f3, %f3, 0f3F000000;
    mul.f32 %f2, %f2, %f1;
    mul.f32 %f3, %f3, %f1;
    tex.2d.v4.f32.f32 {%f4, %f5, %f6, %f7}, [%d1, {%f2, %f3}];
    mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r1, %r2, %r3, %r1;
    mul.wide.u32 %d3, %r1, 4;
    add.u64 %d2, %d2, %d3;
    st.global.f32 [%d2], %f4;
    ret;
}";

fn main() -> Result<(), Error> {
    let vgpu = Vgpu::builder()
        .memory(16 << 20)
        .build(&Device::software()?)?;
    // A ring, in shades from 0 to 255.
    let shade = |at: usize| {
        let (x, y) = ((at % WIDTH) as f32 - 3.5, (at / WIDTH) as f32 - 3.5);
        (255.0 - 90.0 * (x.hypot(y) - 2.5).abs()).clamp(0.0, 255.0) as u8
    };
    let picture: Vec<u8> = (0..WIDTH * WIDTH).map(shade).collect();
    let mut array = vgpu.array::<u8>(ArrayShape::plane(WIDTH, WIDTH))?;
    let stream = vgpu.default_stream();
    array.copy_from(&stream, &picture)?;
    let options = TextureOptions {
        filter: Filter::Linear,
        ..TextureOptions::default()
    };
    let texture = array.texture(&options)?;
    let enlarge = vgpu.load_ptx(ENLARGE)?.kernel("enlarge")?;
    let mut large = vgpu.alloc::<f32>(LARGE * LARGE)?;
    let grid = Grid::new(LARGE as u32, LARGE as u32);
    let step = WIDTH as f32 / LARGE as f32;
    stream.launch(&enlarge, grid, (&texture, &mut large, step))?;
    let large = large.to_vec()?;
    // Two rows a line, as letters are twice as high as wide.
    for row in large.chunks(LARGE).step_by(2) {
        let letter = |value: &f32| char::from(b" .:-=+*#%@"[(value * 9.99) as usize]);
        println!("{}", row.iter().map(letter).collect::<String>().trim_end());
    }
    let steps = large.windows(2).filter(|pair| pair[0] != pair[1]).count();
    println!("{WIDTH} x {WIDTH} pixels became {LARGE} x {LARGE}; {steps} neighbours differ");
    assert!(steps > LARGE * WIDTH, "values between pixels are read too");
    Ok(())
}
