//! Threads of a warp that pass values through volatile memory without a barrier.

mod common;

use common::{Device, Params};

/// Each warp adds up its lanes' numbers, halving the distance; the address is overwritten by what is
/// loaded from it. Then every thread writes the sum of its warp.
const TEXT: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry sums(.param .u64 out) {
  .reg .b32 %r<8>;
  .reg .b64 %d<3>;
  .shared .align 4 .b8 tile[1024];
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, tile;
  shl.b32 %r2, %r0, 2;
  and.b32 %r6, %r2, 124;
  add.u32 %r2, %r1, %r2;
  sub.u32 %r6, %r2, %r6;
  add.u32 %r3, %r0, 1;
  st.volatile.shared.u32 [%r2], %r3;
  mov.u32 %r4, 64;
LOOP:
  .reg .pred %p;
  add.u32 %r5, %r2, %r4;
  ld.volatile.shared.u32 %r5, [%r5];
  ld.volatile.shared.u32 %r3, [%r2];
  add.u32 %r3, %r3, %r5;
  st.volatile.shared.u32 [%r2], %r3;
  shr.u32 %r4, %r4, 1;
  setp.ge.u32 %p, %r4, 4;
  @%p bra LOOP;
  ld.volatile.shared.u32 %r7, [%r6];
  ld.param.u64 %d0, [out];
  mul.wide.u32 %d1, %r0, 4;
  add.u64 %d2, %d0, %d1;
  st.global.u32 [%d2], %r7;
  ret;
}";

#[test]
fn warps_move_together_over_volatile_shared_memory() {
    let devices = [1, 4, 8, 16, 32].map(|lanes| (lanes, common::compiled(TEXT, lanes)));
    for (lanes, mut d) in devices.into_iter().chain([(0, Device::interpreter(TEXT))]) {
        let out = d.upload(&[0; 64]);
        d.run("sums", 1, 64, Params::default().u64(out));
        let found = d.read(out, 64);
        // 1 + … + 32. The second warp's last lanes read beyond it, but lane 0 does not.
        assert_eq!(found[..32], [528; 32], "{lanes} lanes");
        assert_eq!(found[32..], [1552; 32], "{lanes} lanes");
    }
}

/// The same in global memory, without a loop: each of the first 32 threads adds up what lies 16, 8, … 1 after its own number.
fn unrolled(space: &str) -> String {
    let steps: String = [64, 32, 16, 8, 4]
        .map(|bytes| {
            format!(
                "  ld.volatile{space}.u32 %r1, [%d1+{bytes}];\n  ld.volatile{space}.u32 %r2, [%d1];\n  \
                 add.u32 %r1, %r1, %r2;\n  st.volatile{space}.u32 [%d1], %r1;\n"
            )
        })
        .concat();
    let address = match space {
        "" => "",
        _ => "cvta.to.global.u64 %d0, %d0;",
    };
    format!(
        ".version 8.0
.target sm_80
.address_size 64
.visible .entry sums(.param .u64 out) {{
  .reg .b32 %r<4>;
  .reg .b64 %d<3>;
  .reg .pred %p;
  ld.param.u64 %d0, [out];
  {address}
  mov.u32 %r0, %tid.x;
  setp.gt.u32 %p, %r0, 31;
  @%p bra END;
  mul.wide.u32 %d1, %r0, 4;
  add.u64 %d1, %d0, %d1;
{steps}
END:
  ret;
}}"
    )
}

#[test]
fn warps_move_together_over_volatile_global_memory() {
    for space in ["", ".global"] {
        let text = unrolled(space);
        for lanes in [1, 4, 8, 16, 32] {
            let mut d = common::compiled(&text, lanes);
            // What lies after the warp's own numbers is nothing.
            let numbers: Vec<u32> = (1..=32).chain([0; 32]).collect();
            let out = d.upload(&numbers);
            d.run("sums", 1, 64, Params::default().u64(out));
            assert_eq!(d.read(out, 1), [528], "{lanes} lanes, space {space:?}");
        }
        let mut d = Device::interpreter(&text);
        let out = d.upload(&(1..=32).chain([0; 32]).collect::<Vec<u32>>());
        d.run("sums", 1, 64, Params::default().u64(out));
        assert_eq!(d.read(out, 1), [528], "interpreter, space {space:?}");
    }
}

/// A block that sets a flag in a loop of turns that wait for another block's: threads that met there could wait for ever.
const TURNS: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry turns(.param .u64 out) {
  .reg .b32 %r<4>;
  .reg .b64 %d<2>;
  .reg .pred %p;
  ld.param.u64 %d0, [out];
  mov.u32 %r0, %tid.x;
WAIT:
  ld.volatile.global.u32 %r1, [%d0];
  setp.ne.u32 %p, %r1, %r0;
  @%p bra WAIT;
  add.u32 %r1, %r1, 1;
  st.volatile.global.u32 [%d0], %r1;
  ret;
}";

#[test]
fn threads_that_wait_for_their_turn_in_global_memory_get_it() {
    for lanes in [1, 4, 8, 16, 32] {
        let mut d = common::compiled(TURNS, lanes);
        let out = d.upload(&[0]);
        d.run("turns", 1, 64, Params::default().u64(out));
        assert_eq!(d.read(out, 1), [64], "{lanes} lanes");
    }
}
