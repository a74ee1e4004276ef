//! Uniformities that a wrong rule would make affine.

use super::Uniformity;
use crate::plan::Plan;
use mica_ptx_ops::layout::ModuleLayout;

/// The uniformity of `%d1` after an instruction on `%r1`, the thread's index and a parameter more.
fn uniformity_of_result(instruction: &str) -> Uniformity {
    let text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64
.visible .entry k(.param .u64 out, .param .u32 n)
{{
	.reg .b32 %r<3>;
	.reg .b64 %d<3>;
	mov.u32 %r1, %tid.x;
	ld.param.u32 %r2, [n];
	add.u32 %r1, %r1, %r2;
	{instruction}
	ld.param.u64 %d2, [out];
	st.global.u64 [%d2], %d1;
	ret;
}}
"
    );
    let module = mica_ptx::parse(text.as_bytes()).expect("parses");
    let layout = ModuleLayout::new(&module).expect("a layout");
    let (func, f) = module.function("k").expect("a kernel");
    let plan = Plan::build(&module, &layout, func).expect("a plan");
    let found = f.regs.iter().position(|r| r.name == "%d1");
    plan.uniformity(plan.unit.instances[0].reg_base + found.expect("a register") as u32)
}

#[test]
fn a_narrow_result_in_a_wide_register_is_not_affine() {
    for narrow in ["cvt.u32.u32 %d1, %r1;", "cvt.s32.u32 %d1, %r1;"] {
        assert_eq!(
            uniformity_of_result(narrow),
            Uniformity::Varying,
            "{narrow}"
        );
    }
    let widened = uniformity_of_result("cvt.u64.u32 %d1, %r1;");
    assert_eq!(widened, Uniformity::Affine(1));
}
