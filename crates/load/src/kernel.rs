//! The kernel every load runs: two chains of fused multiply-adds per thread.

/// Arithmetic that keeps every multiprocessor busy for a time proportional to `iterations`.
pub(crate) const PTX: &str = "\
.version 7.0
.target sm_75
.address_size 64

.visible .entry burn(.param .u64 out, .param .u32 iterations)
{
    .reg .pred %p<3>;
    .reg .f32 %f<6>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd0, [out];
    ld.param.u32 %r0, [iterations];
    mov.u32 %r1, %tid.x;
    cvt.rn.f32.u32 %f0, %r1;
    add.f32 %f1, %f0, 0f3F800000;
    mov.u32 %r2, 0;
    setp.eq.u32 %p0, %r0, 0;
    @%p0 bra done;
again:
    fma.rn.f32 %f0, %f0, 0f3F800347, 0f3F000000;
    fma.rn.f32 %f1, %f1, 0f3F800347, 0f3F000000;
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p1, %r2, %r0;
    @%p1 bra again;
done:
    add.f32 %f2, %f0, %f1;
    setp.eq.f32 %p2, %f2, 0f4640E400;
    @!%p2 bra end;
    st.global.f32 [%rd0], %f2;
end:
    ret;
}
\0";
