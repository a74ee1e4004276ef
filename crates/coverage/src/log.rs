//! What the device has recorded and the program has not taken yet.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};

use crate::map::ModuleMap;
use crate::record::Record;

/// Most modules that wait to be taken; what is recorded of further ones is lost, and counted.
const MOST_MODULES: usize = 4096;

/// Modules that something new is known of. Records are made when they are taken, so that a launch costs nothing but a
/// look at what it reached.
#[derive(Debug, Default)]
pub struct CoverageLog {
    queue: Mutex<VecDeque<Arc<ModuleMap>>>,
    waiting: AtomicUsize,
    lost: AtomicU64,
}

impl CoverageLog {
    /// Something new is known of a module: it was loaded, or a launch of it ended.
    pub fn changed(&self, module: &Arc<ModuleMap>) {
        if module.queued.swap(true, SeqCst) {
            return;
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.len() >= MOST_MODULES {
            module.queued.store(false, SeqCst);
            self.lost.fetch_add(1, Relaxed);
            return;
        }
        queue.push_back(Arc::clone(module));
        self.waiting.store(queue.len(), Relaxed);
    }

    /// Whether there is something to take.
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// Takes records, `most` bytes or a few more.
    pub fn take(&self, most: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let modules = self.lost.swap(0, Relaxed);
        if modules > 0 && serde_json::to_writer(&mut out, &Record::Lost { modules }).is_ok() {
            out.push(b'\n');
        }
        while let Some(module) = queue.pop_front() {
            // Before its changes are looked at: what changes meanwhile queues it again.
            module.queued.store(false, SeqCst);
            if !module.write_changes(&mut out, most) {
                module.queued.store(true, SeqCst);
                queue.push_front(module);
                break;
            }
        }
        self.waiting.store(queue.len(), Relaxed);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module() -> Arc<ModuleMap> {
        let mut map = ModuleMap::default();
        let file = map.file("a.cu");
        let line = |n| [Some((file, n)), None];
        map.add_function("k", true, [line(3), line(4), line(6)].into_iter());
        let inlined = [Some((file, 20)), Some((file, 9))];
        map.add_function("f", false, [inlined, line(8)].into_iter());
        Arc::new(map)
    }

    fn records(log: &CoverageLog) -> Vec<Record> {
        let text = log.take(1 << 20);
        let lines = text.split(|b| *b == b'\n').filter(|l| !l.is_empty());
        lines.map(|l| serde_json::from_slice(l).unwrap()).collect()
    }

    #[test]
    fn each_line_is_told_once() {
        let (log, map) = (CoverageLog::default(), module());
        log.changed(&map);
        assert!(log.is_waiting());
        let told = records(&log);
        assert_eq!(told.len(), 2);
        assert!(
            matches!(&told[1], Record::Function { start: Some((_, 8)), lines, .. }
                if *lines == [("a.cu".to_owned(), vec![8, 9, 20])])
        );
        assert!(!log.is_waiting());
        for _ in 0..2 {
            map.reach(0, 1);
            map.reach(0, 99);
            map.reach(7, 0);
            map.launched("k");
            map.launched("f");
        }
        map.reach(1, 0);
        log.changed(&map);
        let told = records(&log);
        assert_eq!(
            told,
            [
                Record::Reached {
                    name: "k".into(),
                    launches: 2,
                    lines: vec![("a.cu".into(), vec![4])],
                },
                Record::Reached {
                    name: "f".into(),
                    launches: 0,
                    lines: vec![("a.cu".into(), vec![9, 20])],
                }
            ]
        );
        map.reach(0, 1);
        log.changed(&map);
        assert_eq!(records(&log), []);
    }

    #[test]
    fn what_does_not_fit_is_taken_next_time() {
        let (log, map) = (CoverageLog::default(), module());
        log.changed(&map);
        let first = log.take(1);
        assert!(!first.is_empty() && log.is_waiting());
        assert!(!log.take(1).is_empty());
        while log.is_waiting() {
            log.take(1);
        }
        assert!(log.take(1).is_empty());
    }
}
