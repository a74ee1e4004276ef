//! A sparse table with one entry for each page of the arena.

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;
const PER_GROUP: u64 = 512;

/// Entries by page, found by two indexes.
#[derive(Debug)]
pub(crate) struct PageTable<T> {
    base: u64,
    groups: Vec<Option<Box<[Option<T>]>>>,
    /// Groups that are allocated.
    held: u64,
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
            held: 0,
        }
    }

    /// Host memory of the table itself, without what the entries point to.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held * PER_GROUP * size_of::<Option<T>>() as u64
    }

    /// The entry of the page that holds an address; `None` outside the arena.
    pub(crate) fn slot(&mut self, address: u64) -> Option<&mut Option<T>> {
        let page = address.wrapping_sub(self.base) / PAGE;
        let group = self.groups.get_mut((page / PER_GROUP) as usize)?;
        if group.is_none() {
            self.held += 1;
        }
        let group = group.get_or_insert_with(|| (0..PER_GROUP).map(|_| None).collect());
        group.get_mut((page % PER_GROUP) as usize)
    }

    /// The entry, if there is one.
    #[inline]
    pub(crate) fn get(&mut self, address: u64) -> Option<&mut T> {
        let page = address.wrapping_sub(self.base) / PAGE;
        let group = self.groups.get_mut((page / PER_GROUP) as usize)?.as_mut()?;
        group.get_mut((page % PER_GROUP) as usize)?.as_mut()
    }

    /// Removes the entry of the page that holds an address.
    pub(crate) fn remove(&mut self, address: u64) -> Option<T> {
        let page = address.wrapping_sub(self.base) / PAGE;
        let group = self.groups.get_mut((page / PER_GROUP) as usize)?.as_mut()?;
        group.get_mut((page % PER_GROUP) as usize)?.take()
    }

    /// Keeps the entries for which `keep` is true. Returns how many were removed.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) -> u64 {
        let mut removed = 0;
        for entry in self.groups.iter_mut().flatten().flatten() {
            if entry.as_ref().is_some_and(|entry| !keep(entry)) {
                *entry = None;
                removed += 1;
            }
        }
        self.trim(self.base, u64::MAX);
        removed
    }

    /// Gives up the groups of `[address, address + bytes)` that have no entries.
    pub(crate) fn trim(&mut self, address: u64, bytes: u64) {
        let per_group = PAGE * PER_GROUP;
        let first = address.wrapping_sub(self.base);
        let groups = self.groups.iter_mut().skip((first / per_group) as usize);
        let count = first.saturating_add(bytes).div_ceil(per_group) - first / per_group;
        for group in groups.take(count as usize) {
            if (group.as_ref()).is_some_and(|entries| entries.iter().all(Option::is_none)) {
                *group = None;
                self.held -= 1;
            }
        }
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

    #[test]
    fn a_group_without_entries_takes_no_memory() {
        let mut table = PageTable::new(0, 1 << 30);
        for page in 0..1000 {
            *table.slot(page * PAGE).unwrap() = Some(page);
        }
        let two_groups = table.held_bytes();
        assert_eq!(table.remove(PAGE), Some(1));
        assert_eq!(table.retain(|page| *page >= 500), 499);
        assert_eq!(table.get(500 * PAGE).copied(), Some(500));
        assert_eq!(table.held_bytes(), two_groups);
        for page in 500..1000 {
            assert_eq!(table.remove(page * PAGE), Some(page));
        }
        table.trim(1023 * PAGE, PAGE);
        assert_eq!(table.held_bytes(), two_groups / 2);
        assert_eq!(table.retain(|_| false), 0);
        assert_eq!(table.held_bytes(), 0);
    }
}
