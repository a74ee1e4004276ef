//! Code from a store runs like code just made.

mod common;

use common::{Device, Params};
use mica_ptx_jit::{CodeCache, DiskCodeCache, JitModule, Options};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Counts what a store is asked.
#[derive(Debug)]
struct Counting {
    inner: DiskCodeCache,
    hits: AtomicU32,
    saves: AtomicU32,
}

impl CodeCache for Counting {
    fn load(&self, key: &str) -> Option<Vec<u8>> {
        let found = self.inner.load(key);
        self.hits
            .fetch_add(u32::from(found.is_some()), Ordering::SeqCst);
        found
    }
    fn save(&self, key: &str, bytes: &[u8]) {
        self.saves.fetch_add(1, Ordering::SeqCst);
        self.inner.save(key, bytes);
    }
}

fn sums(store: &Arc<Counting>) -> Vec<f32> {
    let text = include_str!("../../ptx-interp/tests/ptx/kernels.ptx");
    let parsed = Arc::new(mica_ptx::parse(text.as_bytes()).expect("parses"));
    let store: Arc<dyn CodeCache> = store.clone();
    let options = Options {
        code_cache: Some((store, "kernels".into())),
        ..Options::default()
    };
    let mut d = Device::new(Box::new(
        JitModule::compile(parsed, options).expect("compiles"),
    ));
    let a: Vec<f32> = (0..100).map(|i| i as f32).collect();
    let (pa, pb, pc) = (
        d.upload_f32(&a),
        d.upload_f32(&a),
        d.upload_f32(&[0.0; 100]),
    );
    d.run(
        "vadd",
        4,
        32,
        Params::default().u64(pa).u64(pb).u64(pc).u32(100),
    );
    d.read_f32(pc, 100)
}

#[test]
fn the_second_process_compiles_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let inner = DiskCodeCache::open(&dir.path().join("code"), 1 << 20).expect("opens");
    let store = Arc::new(Counting {
        inner,
        hits: 0.into(),
        saves: 0.into(),
    });
    let want: Vec<f32> = (0..100).map(|i| 2.0 * i as f32).collect();
    assert_eq!(sums(&store), want);
    let made = store.saves.load(Ordering::SeqCst);
    assert!(made > 0);
    assert_eq!(store.hits.load(Ordering::SeqCst), 0);
    assert_eq!(sums(&store), want);
    assert_eq!(store.saves.load(Ordering::SeqCst), made);
    assert_eq!(store.hits.load(Ordering::SeqCst), made);
}
