//! `mbarrier` instructions of a group whose lanes all name the same object and state: done once for all of them.

use mica_kernel::Fault;
use mica_ptx::ast::{Address, MbarrierOp, Space};

use super::env::Env;
use super::memory_ops::{arrive_in_turn, mbar};
use super::row::Rows;

/// Most lanes of a group.
const LANES: usize = 32;
/// Most registers that such an instruction reads.
const USES: usize = 4;

/// Arrives for each lane in turn, or asks once for all. `None`, and nothing is done, where lanes differ, where somebody is
/// told of each access, or for other instructions.
pub(super) fn execute(
    env: &mut Env<'_>,
    (space, addr): (Space, &Address),
    op: &MbarrierOp,
    rows: &Rows<'_>,
) -> Option<Result<(), Fault>> {
    let is_told = env.kernel.monitor || env.kernel.memcheck;
    if is_told || rows.uses() > USES || rows.lanes > LANES {
        return None;
    }
    match op {
        MbarrierOp::Wait { dst, .. } => {
            are_alike(env, rows).then_some(())?;
            let mut answer = 0;
            let done = mbar(env, space, addr, op, &mut |_, value| answer = value);
            if done.is_ok() {
                (0..rows.lanes).for_each(|lane| rows.write(lane, *dst, answer));
            }
            Some(done)
        }
        MbarrierOp::Arrive {
            drop: false,
            expect_tx: None,
            count: None,
            dst,
            ..
        } => {
            are_alike(env, rows).then_some(())?;
            let mut found = [0; LANES];
            let found = &mut found[..rows.lanes];
            let done = arrive_in_turn(env, space, addr, found);
            if let (Ok(()), Some(dst)) = (&done, dst) {
                for (lane, state) in found.iter().enumerate() {
                    rows.write(lane, *dst, u128::from(*state));
                }
            }
            Some(done)
        }
        _ => None,
    }
}

/// Whether all lanes have the same values, which are the environment's then.
fn are_alike(env: &mut Env<'_>, rows: &Rows<'_>) -> bool {
    rows.read(0, &mut env.values);
    let first = &env.values[..rows.uses()];
    (1..rows.lanes).all(|lane| {
        let mut values = [0; USES];
        rows.read(lane, &mut values);
        values[..rows.uses()] == *first
    })
}
