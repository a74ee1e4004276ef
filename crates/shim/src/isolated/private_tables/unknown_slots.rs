//! Functions for the slots of private tables whose meaning is not known.
//!
//! A slot's number is all that a caller leaves behind, so each slot has a function of its own, which knows its
//! number. Tables share them: a table's name is found by the slot's place in the table.

use std::sync::Mutex;

use mica_cuda_abi::{CuResult, CuStatus};

use crate::isolated::refusals;
use crate::isolated::support::lock;

/// Slots of a table that can be told apart.
const SLOTS: usize = 128;

/// What stands in a slot.
type Slot = extern "C" fn() -> CuStatus;

static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

extern "C" fn unknown<const TABLE: usize, const SLOT: usize>() -> CuStatus {
    report(TABLE, SLOT)
}

fn report(table: usize, slot: usize) -> CuStatus {
    let name = lock(&NAMES).get(table).copied().unwrap_or("?");
    refusals::tell(&format!(
        "slot {slot} of the driver's private table {name} was called: Mica does not know it"
    ));
    CuResult::NotSupported as CuStatus
}

/// Functions for the first `slots` slots of the table with this name. Tables beyond the last that can be told
/// apart share its functions, and so its name.
pub(crate) fn of(name: &'static str, slots: usize) -> Vec<usize> {
    let mut names = lock(&NAMES);
    let known = names.iter().position(|known| *known == name);
    let table = known.unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    });
    let functions = &ALL[table.min(ALL.len() - 1)];
    let address = |slot: &Slot| *slot as *const () as usize;
    functions.iter().take(slots).map(address).collect()
}

macro_rules! table {
    ($table:literal) => {
        table!(@rows $table [] 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@rows $table:literal [$($done:tt)*] $high:literal $($rest:literal)*) => {
        table!(@rows $table [$($done)*
            unknown::<$table, { $high * 8 }>, unknown::<$table, { $high * 8 + 1 }>,
            unknown::<$table, { $high * 8 + 2 }>, unknown::<$table, { $high * 8 + 3 }>,
            unknown::<$table, { $high * 8 + 4 }>, unknown::<$table, { $high * 8 + 5 }>,
            unknown::<$table, { $high * 8 + 6 }>, unknown::<$table, { $high * 8 + 7 }>,
        ] $($rest)*)
    };
    (@rows $table:literal [$($done:tt)*]) => { [$($done)*] };
}

static ALL: [[Slot; SLOTS]; 16] = [
    table!(0),
    table!(1),
    table!(2),
    table!(3),
    table!(4),
    table!(5),
    table!(6),
    table!(7),
    table!(8),
    table!(9),
    table!(10),
    table!(11),
    table!(12),
    table!(13),
    table!(14),
    table!(15),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_functions_of_their_own() {
        let (mut a, b) = (of("first", 100), of("second", 100));
        assert_eq!(of("first", 100), a);
        assert!(a.iter().zip(&b).all(|(a, b)| a != b));
        a.sort_unstable();
        a.dedup();
        assert_eq!(a.len(), 100);
    }
}
