use super::super::wmma::wmma_regs;
use super::*;
use crate::ast::WmmaMatrix;

#[test]
fn fragments_have_the_sizes_ptx_gives() {
    assert_eq!(regs(16, 16, F16), 4);
    assert_eq!(regs(16, 8, F32), 4);
    assert_eq!(regs(8, 4, F64), 1);
    assert_eq!(regs(16, 64, S4), 4);
    assert_eq!(regs(16, 256, B1), 4);
    let wide = Shape { m: 32, n: 8, k: 16 };
    assert_eq!(wmma_regs(WmmaMatrix::A, wide, U8), 4);
    assert_eq!(wmma_regs(WmmaMatrix::B, wide, U8), 1);
    assert_eq!(wmma_regs(WmmaMatrix::B, wide, F16), 8);
    assert_eq!(wmma_regs(WmmaMatrix::C, wide, F16), 4);
}

#[test]
fn shapes_parse_whole() {
    assert_eq!(shape("m16n8k16"), Some(Shape { m: 16, n: 8, k: 16 }));
    for bad in ["m16", "m16n8", "n8k16", "m1xn8k4", "mn8k4", "m99999n8k4"] {
        assert_eq!(shape(bad), None, "{bad}");
    }
}
