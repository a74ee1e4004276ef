//! Lanes that a block does not have: a matrix is stored for all 32 lanes of a warp, whoever is there.

use super::{HEAD, changes, locals};
use crate::common::{Device, Params, compiled};
use mica_kernel::BlockOutcome;

/// A kernel that stores or loads a matrix, with the address of a local variable in `%d1`.
fn kernel(instruction: &str) -> String {
    format!(
        "{HEAD}.visible .entry k(.param .u64 out)
{{
	.local .align 16 .b8 own[128];
	.reg .b32 %r<5>;
	.reg .b64 %d<2>;
	mov.u32 %r1, 0x41414141;
	mov.u64 %d1, own;
	cvta.local.u64 %d1, %d1;
	{instruction}
	ret;
}}
"
    )
    .replace(".target sm_80", ".target sm_90")
}

#[test]
fn a_matrix_has_no_rows_of_absent_lanes() {
    for instruction in [
        "stmatrix.sync.aligned.m8n8.x4.b16 [%d1], {%r1, %r1, %r1, %r1};",
        "stmatrix.sync.aligned.m8n8.x1.trans.b16 [%d1], {%r1};",
        "ldmatrix.sync.aligned.m8n8.x4.b16 {%r1, %r2, %r3, %r4}, [%d1];",
    ] {
        // By name it would be the address of a lane's own variable, present or not: that is refused.
        let by_name = kernel(&instruction.replace("%d1", "own"));
        assert!(mica_ptx::parse(by_name.as_bytes()).is_err(), "{by_name}");
        let text = kernel(instruction);
        for (mut d, by) in [
            (Device::interpreter(&text), "interpreter"),
            (compiled(&text, 1), "1 lane"),
            (compiled(&text, 4), "4 lanes"),
        ] {
            for threads in [1, 7, 33] {
                let local = locals(&mut d, threads);
                let (result, changed) = changes(&mut d, threads, Params::default().u64(0));
                for r in changed {
                    let inside = local.start <= r.start && r.end <= local.end;
                    assert!(inside, "{by}, {threads} threads: {r:x?} changed");
                }
                assert_eq!(result.0, BlockOutcome::Done, "{by}: {:?}", result.1);
            }
        }
    }
}
