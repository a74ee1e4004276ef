//! Code of which the analysis and the emitter disagree is not used.

use crate::code::{Code, target};
use crate::emit::Source;
use crate::plan::Plan;
use crate::uniformity::Uniformity;
use mica_ptx_ops::layout::ModuleLayout;

const TEXT: &str = ".version 8.0\n.target sm_80\n.address_size 64
.visible .entry k(.param .u64 out)
{
	.reg .b32 %uniform, %affine, %varying;
	.reg .b64 %d<3>;
	ld.param.u64 %d1, [out];
	mov.u32 %affine, %tid.x;
	ld.global.u32 %uniform, [%d1];
	mul.lo.u32 %varying, %affine, %affine;
	mad.lo.u32 %varying, %affine, %uniform, %varying;
	st.global.u32 [%d1], %varying;
	ret;
}
";

/// Compiles the kernel with a register's uniformity changed; why it is refused, if it is.
fn refused(register: &str, uniformity: Uniformity) -> Option<String> {
    let module = mica_ptx::parse(TEXT.as_bytes()).expect("parses");
    let layout = ModuleLayout::new(&module).expect("a layout");
    let (func, f) = module.function("k").expect("a kernel");
    let mut plan = Plan::build(&module, &layout, func).expect("a plan");
    let at = f.regs.iter().position(|r| r.name == register);
    let reg = plan.unit.instances[0].reg_base as usize + at.expect("a register");
    plan.uniformities.of[reg] = uniformity;
    let src = Source::plain(&module, &layout, &plan);
    let isa = target(false, false).expect("a target");
    Code::compile(&isa, &src, 4).err().map(|e| e.to_string())
}

#[test]
fn a_value_that_is_not_of_its_register_s_shape_spoils_the_code() {
    for (register, right, wrong) in [
        ("%uniform", Uniformity::Uniform, Uniformity::Affine(4)),
        ("%affine", Uniformity::Affine(1), Uniformity::Affine(2)),
        ("%affine", Uniformity::Affine(1), Uniformity::Uniform),
        ("%varying", Uniformity::Varying, Uniformity::Affine(1)),
        ("%varying", Uniformity::Varying, Uniformity::Uniform),
    ] {
        assert_eq!(refused(register, right), None, "{register} {right:?}");
        let said = refused(register, wrong).unwrap_or_default();
        assert!(
            said.contains("another uniformity"),
            "{register} {wrong:?}: {said}"
        );
    }
}
