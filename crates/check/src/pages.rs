//! A sparse table with one entry for each page of the arena.

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;
const PER_GROUP: u64 = 512;

/// Entries by page, found by two indexes.
#[derive(Debug)]
pub(crate) struct PageTable<T> {
    base: u64,
    groups: Vec<Option<Box<[Option<T>]>>>,
}

impl<T> PageTable<T> {
    /// A table for `[base, base + len)`; nothing is held until an entry is made.
    pub(crate) fn new(base: u64, len: u64) -> Self {
        let groups = len.div_ceil(PAGE * PER_GROUP) as usize;
        let mut table = Vec::new();
        table.resize_with(groups, || None);
        Self {
            base,
            groups: table,
        }
    }

    /// The entry of the page that holds an address; `None` outside the arena.
    pub(crate) fn slot(&mut self, address: u64) -> Option<&mut Option<T>> {
        let page = address.wrapping_sub(self.base) / PAGE;
        let group = self.groups.get_mut((page / PER_GROUP) as usize)?;
        let group = group.get_or_insert_with(|| (0..PER_GROUP).map(|_| None).collect());
        group.get_mut((page % PER_GROUP) as usize)
    }

    /// The entry, if there is one.
    pub(crate) fn get(&mut self, address: u64) -> Option<&mut T> {
        let page = address.wrapping_sub(self.base) / PAGE;
        let group = self.groups.get_mut((page / PER_GROUP) as usize)?.as_mut()?;
        group.get_mut((page % PER_GROUP) as usize)?.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_the_arena_have_entries() {
        let mut table = PageTable::new(1 << 30, 1 << 22);
        assert!(table.get(1 << 30).is_none());
        *table.slot((1 << 30) + 5000).unwrap() = Some(7);
        assert_eq!(table.get((1 << 30) + 4096).copied(), Some(7));
        assert_eq!(table.get((1 << 30) + 8192), None);
        assert!(table.slot((1 << 30) - 1).is_none());
        assert!(table.slot((1 << 30) + (1 << 23)).is_none());
    }
}
