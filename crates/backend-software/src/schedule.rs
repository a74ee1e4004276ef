//! The order of blocks and threads of a launch, where a number chooses it (`mica run --seed`, `mica check --schedule`).

use mica_kernel::Order;

use crate::core::Core;
use crate::grid::Grid;

/// The order of one launch.
#[derive(Debug)]
pub(crate) struct Schedule {
    /// `None` for the usual order, which cooperative launches always have: all their blocks run at once.
    order: Option<Order>,
    seed: u64,
}

impl Schedule {
    /// The block to run in place of the one with this number, and the order of its threads.
    pub(crate) fn at(&self, number: u64) -> (u64, u64) {
        let block = self.order.map_or(number, |order| order.at(number));
        match self.seed {
            0 => (block, 0),
            seed => (
                block,
                seed.wrapping_add(block.wrapping_mul(0x9e37_79b9)).max(1),
            ),
        }
    }
}

impl Core {
    /// Prepares a launch that is about to be queued for what follows it.
    pub(crate) fn begin(&self, grid: &mut Grid) {
        self.begin_schedule(grid);
        self.begin_check(grid);
        self.begin_record(grid);
    }

    /// Chooses the order of a launch that is about to be queued.
    fn begin_schedule(&self, grid: &mut Grid) {
        let seed = self.seed.or(self.check.and_then(|check| check.schedule));
        grid.schedule = seed.filter(|seed| *seed != 0).map(|seed| Schedule {
            order: (!grid.cooperative).then(|| Order::new(seed, grid.total)),
            seed,
        });
    }

    /// Whether time may not decide what runs when: one launch after the other, each by the device's own threads.
    pub(crate) fn is_exact(&self) -> bool {
        self.seed.is_some()
    }
}
