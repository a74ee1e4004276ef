//! One instruction for all lanes of a group, where compiled code does not do it inline.
//!
//! Compiled code stores each register that the instruction reads as a row of lanes, and finds each result
//! as such a row after them. One call for a group costs it far less than one for each lane.

use mica_ptx::ast::{Op, RegId};

use super::env::Env;
use super::helpers::{Ctx, ended, kernel};
use super::{scalar_ops, texture_row};
use crate::plan::SlowSite;
use crate::scratch::status;
use crate::unit::Class;

/// Bytes from one row to the next, for each lane.
pub(crate) const CELL: usize = 16;

/// Bytes from one lane to the next in a row of this class.
fn step(class: Class) -> usize {
    match class {
        Class::B128 => 16,
        Class::B64 => 8,
        _ => 4,
    }
}

/// The rows of a call.
pub(super) struct Rows<'s> {
    pub(super) site: u64,
    slow: &'s SlowSite,
    rows: *mut u8,
    pub(super) lanes: usize,
}

impl Rows<'_> {
    fn at(&self, row: usize) -> *mut u8 {
        // SAFETY: compiled code made room for a row for each register and each result.
        unsafe { self.rows.add(row * self.lanes * CELL) }
    }

    /// The row of a register of this class.
    pub(super) fn operand(&self, r: RegId, class: Class) -> Option<*const u8> {
        let found = self.slow.uses.iter().position(|u| *u == (r, class));
        found.map(|row| self.at(row).cast_const())
    }

    /// The row of a result of this class.
    pub(super) fn result(&self, r: RegId, class: Class) -> Option<*mut u8> {
        let found = self.slow.defs.iter().position(|d| *d == (r, class));
        found.map(|row| self.at(self.slow.uses.len() + row))
    }
}

/// A lane's value of a register.
///
/// # Safety
/// `at` is a cell of a row of this class.
#[inline]
unsafe fn read_cell(at: *const u8, class: Class) -> u64 {
    // SAFETY: by contract.
    unsafe {
        match step(class) {
            4 if class == Class::Pred => u64::from(at.cast::<u32>().read_unaligned() != 0),
            4 => u64::from(at.cast::<u32>().read_unaligned()),
            _ => at.cast::<u64>().read_unaligned(),
        }
    }
}

/// Sets a lane's value of a register.
///
/// # Safety
/// As for [`read_cell`].
#[inline]
unsafe fn write_cell(at: *mut u8, class: Class, value: u128) {
    // What a register does not hold is left out; of a predicate all bits of a lane are set.
    let word = match class {
        Class::Pred if value != 0 => u32::MAX,
        Class::B16 => value as u32 & 0xffff,
        _ => value as u32,
    };
    // SAFETY: by contract.
    unsafe {
        match step(class) {
            4 => at.cast::<u32>().write_unaligned(word),
            8 => at.cast::<u64>().write_unaligned(value as u64),
            _ => at.cast::<u128>().write_unaligned(value),
        }
    }
}

/// `rows` holds the registers, then the results, for `lanes` threads from `t` on.
pub(super) extern "C" fn slow_row(
    ctx: Ctx,
    site: u64,
    t: u64,
    rows: *mut u8,
    sp: u64,
    lanes: u64,
) -> u64 {
    let k = kernel(ctx);
    let s = &k.plan.slow[site as usize];
    let lanes = lanes as usize;
    let mut env = Env::at(k, ctx, s, t as u32, sp);
    if let Op::Tex(x) = &k.plan.unit.inst(&k.module, s.place).op {
        let rows = Rows {
            site,
            slow: s,
            rows,
            lanes,
        };
        if texture_row::sample(&env, x, &rows).is_some() {
            return status::OK as u64;
        }
    }
    let at = |row: usize, lane: usize, class: Class| row * lanes * CELL + lane * step(class);
    for lane in 0..lanes {
        env.thread = t as u32 + lane as u32;
        for (row, (value, (_, class))) in env.values.iter_mut().zip(&s.uses).enumerate() {
            // SAFETY: compiled code stored a row of this class for each register.
            *value = unsafe { read_cell(rows.add(at(row, lane, *class)), *class) };
        }
        let mut out = |r: mica_ptx::ast::RegId, v: u128| {
            let Some(i) = s.defs.iter().position(|d| d.0 == r) else {
                return;
            };
            let class = s.defs[i].1;
            // SAFETY: there is a row of this class for each result.
            unsafe { write_cell(rows.add(at(s.uses.len() + i, lane, class)), class, v) };
        };
        if let Err(end) = scalar_ops::execute(&env, &mut out) {
            return ended(ctx, end);
        }
    }
    status::OK as u64
}
