//! Products that the software GPU provides to kernels: computed on a real device, and a fault of the program's own context
//! where memory is not there.

use mica::{CuResult, Device, Grid, Vgpu};

const PTX: &str = "
.version 8.3
.target sm_75
.address_size 64
.extern .func __mica_multiply_f32 (.param .b64 a, .param .b64 b, .param .b64 c, .param .b64 d, .param .b64 e, .param .b64 f, .param .b64 g, .param .b64 h);
.visible .entry product(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 sizes, .param .u64 step)
{
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [pa];
    ld.param.u64 %d2, [pb];
    ld.param.u64 %d3, [pc];
    ld.param.u64 %d4, [sizes];
    ld.param.u64 %d5, [step];
    mov.u64 %d6, 1;
    {
        .param .b64 a; .param .b64 b; .param .b64 c; .param .b64 d; .param .b64 e; .param .b64 f; .param .b64 g; .param .b64 h;
        st.param.b64 [a], %d1;
        st.param.b64 [b], %d2;
        st.param.b64 [c], %d3;
        st.param.b64 [d], %d4;
        st.param.b64 [e], %d5;
        st.param.b64 [f], %d6;
        st.param.b64 [g], %d5;
        st.param.b64 [h], %d5;
        call __mica_multiply_f32, (a, b, c, d, e, f, g, h);
    }
    ret;
}
";

/// As many rows as columns as terms.
fn sizes(count: u64) -> u64 {
    count | count << 16 | count << 32
}

#[test]
fn memory_that_is_not_there_is_a_fault_of_the_program() {
    let device = Device::software().unwrap();
    let vgpu = Vgpu::builder().memory(16 << 20).build(&device).unwrap();
    let twos = vec![2.0_f32; 32 * 32];
    let run = |far: u64| -> mica::Result<Vec<f32>> {
        let kernel = vgpu.load_ptx(PTX)?.kernel("product")?;
        let (a, b) = (vgpu.upload(&twos)?, vgpu.upload(&twos)?);
        let mut c = vgpu.alloc::<f32>(twos.len())?;
        let stream = vgpu.default_stream();
        let params = (a.address() + far, &b, &mut c, sizes(32), 32_u64);
        stream.launch(&kernel, Grid::new(1, 1), params)?;
        c.to_vec()
    };
    assert_eq!(run(0).unwrap(), vec![128.0; 32 * 32]);
    // A hole inside the arena, and an address that no memory can have.
    for far in [4 << 30, 1 << 62] {
        let error = run(far).unwrap_err();
        assert_eq!(error.code(), Some(CuResult::IllegalAddress), "{error}");
        vgpu.reset().unwrap();
    }
    assert_eq!(run(0).unwrap(), vec![128.0; 32 * 32]);
}
