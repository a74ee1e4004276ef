//! Two tenants of one device with different memory, share, precision and tensor cores, and their status side by side.
//!
//! `cargo run --release --example two_tenants`

use mica::{CuResult, Device, Error, Grid, NumberFormats, Vgpu};

/// A kernel with a matrix instruction, which only a tenant with tensor cores may load.
const MATRICES: &str = ".version 8.0 .target sm_80 .address_size 64
.visible .entry turn(.param .u64 data)
{
    .reg .b32 %r<3>; .reg .b64 %d<3>;
    ld.param.u64 %d1, [data];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d2, %r1, 4;
    add.u64 %d1, %d1, %d2;
    ld.global.b32 %r2, [%d1];
    movmatrix.sync.aligned.m8n8.trans.b16 %r2, %r2;
    st.global.b32 [%d1], %r2;
    ret;
}";

/// A kernel that computes in 64 bits.
const DOUBLES: &str = ".version 7.0 .target sm_75 .address_size 64
.visible .entry half(.param .u64 data)
{
    .reg .f64 %f; .reg .b64 %d;
    ld.param.u64 %d, [data];
    ld.global.f64 %f, [%d];
    mul.f64 %f, %f, 0d3FE0000000000000;
    st.global.f64 [%d], %f;
    ret;
}";

struct Tenant {
    name: &'static str,
    share: f64,
    vgpu: Vgpu,
}

/// What a tenant may do, tried out.
fn status(tenant: &Tenant) -> Result<[String; 7], Error> {
    let vgpu = &tenant.vgpu;
    let memory = vgpu.memory()?;
    let allowed = |result: Result<(), Error>| match result {
        Ok(()) => "allowed".to_owned(),
        Err(error) => match error.code() {
            Some(CuResult::NotPermitted | CuResult::OutOfMemory) => "refused".to_owned(),
            _ => error.to_string(),
        },
    };
    Ok([
        tenant.name.into(),
        format!(
            "{} of {} MiB",
            memory.used_bytes >> 20,
            memory.limit_bytes >> 20
        ),
        format!("{} %", tenant.share),
        allowed(vgpu.load_ptx(MATRICES).map(drop)),
        allowed(vgpu.load_ptx(DOUBLES).map(drop)),
        allowed(vgpu.alloc_unset::<u8>(48 << 20).map(drop)),
        vgpu.statistics()?.launches.to_string(),
    ])
}

fn main() -> Result<(), Error> {
    let device = Device::software()?;
    let research = Vgpu::builder()
        .name("research")
        .memory(128 << 20)
        .share(70.0)
        .build(&device)?;
    let service = Vgpu::builder()
        .name("service")
        .memory(32 << 20)
        .share(30.0)
        .tensor_cores(false)
        .precision(NumberFormats {
            f64: false,
            ..NumberFormats::default()
        })
        .build(&device)?;
    let tenants = [
        Tenant {
            name: "research",
            share: 70.0,
            vgpu: research,
        },
        Tenant {
            name: "service",
            share: 30.0,
            vgpu: service,
        },
    ];
    for (tenant, launches) in tenants.iter().zip([3, 5]) {
        let vgpu = &tenant.vgpu;
        let kernel = vgpu
            .load_ptx(include_str!("../tests/kernels.ptx"))?
            .kernel("vadd")?;
        let (x, y) = (vgpu.upload(&[1.0_f32; 1000])?, vgpu.alloc::<f32>(1000)?);
        for _ in 0..launches {
            let grid = Grid::covering(1000, 256);
            vgpu.default_stream()
                .launch(&kernel, grid, (&x, &y, &y, 1000_u32))?;
        }
        assert_eq!(y.to_vec()?, [launches as f32; 1000]);
    }
    let titles = [
        "TENANT",
        "MEMORY",
        "SHARE",
        "TENSOR CORES",
        "64-BIT FLOATS",
        "48 MIB MORE",
        "LAUNCHES",
    ];
    println!("{}", line(&titles.map(String::from)));
    for tenant in &tenants {
        println!("{}", line(&status(tenant)?));
    }
    Ok(())
}

fn line(cells: &[String; 7]) -> String {
    let cells = cells.iter().map(|cell| format!("{cell:15}"));
    cells.collect::<String>().trim_end().to_owned()
}
