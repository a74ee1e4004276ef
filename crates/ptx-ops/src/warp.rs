//! Warp collectives over 32 lanes: `shfl`, `vote`, `match`, `redux`.
//!
//! Arrays are indexed by lane; only lanes in the mask take part.

use crate::float::{F32, MinMax};
use mica_ptx::ast::{ReduxOp, ShflMode, VoteMode};

/// The lane that `lane` reads in a shuffle, and whether it is within the segment.
pub fn shfl_source(mode: ShflMode, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (amount, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
    let max = lane & segment | clamp & !segment;
    let min = lane & segment;
    let (from, inside) = match mode {
        ShflMode::Up => {
            let from = lane as i32 - amount as i32;
            (from as u32, from >= max as i32)
        }
        ShflMode::Down => (lane + amount, lane + amount <= max),
        ShflMode::Bfly => (lane ^ amount, lane ^ amount <= max),
        ShflMode::Idx => {
            let from = min | amount & !segment;
            (from, from <= max)
        }
    };
    if inside { (from, true) } else { (lane, false) }
}

/// `vote`: over the lanes of `members`, given who said true. Ballots give the mask, others 0 or 1.
pub fn vote(mode: VoteMode, members: u32, truth: u32) -> u32 {
    let truth = truth & members;
    match mode {
        VoteMode::All => u32::from(truth == members),
        VoteMode::Any => u32::from(truth != 0),
        VoteMode::Uni => u32::from(truth == 0 || truth == members),
        VoteMode::Ballot => truth,
    }
}

/// `match.any`: the members whose value equals `lane`'s.
pub fn match_any(members: u32, values: &[u64; 32], lane: u32) -> u32 {
    let mine = values[lane as usize & 31];
    lanes(members)
        .filter(|&l| values[l as usize] == mine)
        .fold(0, |mask, l| mask | 1 << l)
}

/// `match.any` for every lane at once; 0 for lanes that are not members.
pub fn match_any_of_all(members: u32, values: &[u64; 32]) -> [u32; 32] {
    let mut found = [0; 32];
    let mut open = members;
    while open != 0 {
        let leader = open.trailing_zeros() as usize;
        let equal = equal_lanes(values, values[leader]) & members;
        for (lane, mask) in found.iter_mut().enumerate() {
            // All ones where the lane is one of them.
            *mask |= equal & (equal >> lane & 1).wrapping_neg();
        }
        open &= !equal;
    }
    found
}

/// The lanes that have this value. Eight bits at a time, which compilers turn into vectors.
fn equal_lanes(values: &[u64; 32], value: u64) -> u32 {
    let mut mask = 0;
    for (i, eight) in values.chunks_exact(8).enumerate() {
        let bits = (eight.iter().enumerate()).map(|(l, v)| u32::from(*v == value) << l);
        mask |= bits.fold(0, |a, b| a | b) << (8 * i);
    }
    mask
}

/// `match.all`: the members and true when all values are equal, else 0 and false.
pub fn match_all(members: u32, values: &[u64; 32]) -> (u32, bool) {
    let mut all = lanes(members).map(|l| values[l as usize]);
    let first = all.next();
    let equal = all.all(|v| Some(v) == first);
    if equal { (members, true) } else { (0, false) }
}

/// `redux` on integers.
pub fn redux(op: ReduxOp, signed: bool, members: u32, values: &[u32; 32]) -> u32 {
    let key = |x: u32| {
        if signed {
            i64::from(x as i32)
        } else {
            i64::from(x)
        }
    };
    let pick =
        |smaller: bool| move |a: u32, b: u32| if (key(a) <= key(b)) == smaller { a } else { b };
    let values = lanes(members).map(|l| values[l as usize]);
    let result = match op {
        ReduxOp::Add => values.reduce(u32::wrapping_add),
        ReduxOp::Min => values.reduce(pick(true)),
        ReduxOp::Max => values.reduce(pick(false)),
        ReduxOp::And => values.reduce(|a, b| a & b),
        ReduxOp::Or => values.reduce(|a, b| a | b),
        ReduxOp::Xor => values.reduce(|a, b| a ^ b),
    };
    result.unwrap_or(0)
}

/// `redux.min/max.f32`, with `.abs` and `.NaN`.
pub fn redux_f32(larger: bool, abs: bool, nan: bool, members: u32, values: &[u32; 32]) -> u32 {
    let modes = MinMax {
        nan,
        ..MinMax::default()
    };
    let result = lanes(members)
        .map(|l| u64::from(values[l as usize]))
        .map(|v| if abs { v & 0x7fff_ffff } else { v })
        .reduce(|a, b| {
            if larger {
                crate::float::max(F32, modes, a, b)
            } else {
                crate::float::min(F32, modes, a, b)
            }
        });
    result.unwrap_or(0) as u32
}

/// The lanes of a mask, ascending.
pub fn lanes(mask: u32) -> impl Iterator<Item = u32> {
    (0..32).filter(move |l| mask >> l & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffles_stay_in_their_segment() {
        assert_eq!(shfl_source(ShflMode::Up, 0, 1, 0), (0, false));
        assert_eq!(shfl_source(ShflMode::Up, 5, 2, 0), (3, true));
        assert_eq!(shfl_source(ShflMode::Down, 30, 4, 31), (30, false));
        assert_eq!(shfl_source(ShflMode::Bfly, 3, 16, 31), (19, true));
        assert_eq!(shfl_source(ShflMode::Idx, 9, 40, 31), (8, true));
        // width 8: c = ((32 - 8) << 8) | 31
        let c = 24 << 8 | 31;
        assert_eq!(shfl_source(ShflMode::Down, 6, 1, c), (7, true));
        assert_eq!(shfl_source(ShflMode::Down, 7, 1, c), (7, false));
        assert_eq!(shfl_source(ShflMode::Idx, 13, 2, c), (10, true));
        assert_eq!(shfl_source(ShflMode::Up, 8, 1, 24 << 8), (8, false));
    }

    #[test]
    fn votes_count_only_members() {
        assert_eq!(vote(VoteMode::All, 0xf, 0xff), 1);
        assert_eq!(vote(VoteMode::Any, 0xf, 0xf0), 0);
        assert_eq!(vote(VoteMode::Uni, 0xf, 0x3), 0);
        assert_eq!(vote(VoteMode::Ballot, 0xf, 0x3c), 0xc);
    }

    #[test]
    fn matches_and_reductions() {
        let values: [u64; 32] = std::array::from_fn(|i| i as u64 % 4);
        assert_eq!(match_any(u32::MAX, &values, 5), 0x2222_2222);
        for members in [u32::MAX, 0x0001_80f7, 1 << 31] {
            let all = match_any_of_all(members, &values);
            for l in lanes(members) {
                assert_eq!(all[l as usize], match_any(members, &values, l));
            }
        }
        assert_eq!(match_all(0x1111, &values), (0x1111, true));
        assert_eq!(match_all(0x3, &values), (0, false));
        let words: [u32; 32] = std::array::from_fn(|i| (i as i32 - 16) as u32);
        assert_eq!(redux(ReduxOp::Add, false, u32::MAX, &words), -16i32 as u32);
        assert_eq!(redux(ReduxOp::Min, true, u32::MAX, &words), -16i32 as u32);
        assert_eq!(redux(ReduxOp::Max, true, u32::MAX, &words), 15);
        assert_eq!(redux(ReduxOp::Min, false, u32::MAX, &words), 0);
        assert_eq!(redux(ReduxOp::Xor, false, 0x3, &words), words[0] ^ words[1]);
    }
}
