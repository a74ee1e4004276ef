//! Code of one width is never taken for code of another.

use mica_kernel::{Dim3, Executable};
use mica_ptx_jit::{CodeCache, JitModule, Options, Width};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

#[derive(Debug, Default)]
struct Kept(Mutex<HashMap<String, Vec<u8>>>);

impl Kept {
    fn count(&self) -> usize {
        self.0.lock().expect("unpoisoned").len()
    }
}

impl CodeCache for Kept {
    fn load(&self, key: &str) -> Option<Vec<u8>> {
        self.0.lock().expect("unpoisoned").get(key).cloned()
    }
    fn save(&self, key: &str, bytes: &[u8]) {
        let mut kept = self.0.lock().expect("unpoisoned");
        kept.insert(key.into(), bytes.into());
    }
}

/// How many versions of n-body compute with 256 bits, compiled or loaded with this width.
fn wide_versions(store: &Arc<Kept>, width: Width) -> usize {
    let text = include_str!("../kernels/bench.ptx");
    let parsed = Arc::new(mica_ptx::parse(text.as_bytes()).expect("parses"));

    let store: Arc<dyn CodeCache> = store.clone();
    let options = Options {
        width,
        code_cache: Some((store, "bench".into())),
        ..Options::default()
    };
    let module = JitModule::compile(parsed, options).expect("a module");
    let block = Dim3 { x: 256, y: 1, z: 1 };
    let found = module.kernels().iter().position(|k| k.name == "nbody");
    let index = found.expect("a kernel");
    module.prepare_block(index, block).expect("compiles");
    module.wide_versions()
}

#[test]
fn a_kept_kernel_has_the_width_that_is_asked_for() {
    let store = Arc::new(Kept::default());
    let wide = wide_versions(&store, Width::Bits256);
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
        assert_eq!(wide, 1);
    }
    let kept = store.count();
    assert!(kept > 0);
    assert_eq!(wide_versions(&store, Width::Bits128), 0);
    assert!(store.count() > kept, "128 bits are kept beside 256");
    // From the store now.
    let kept = store.count();
    assert_eq!(wide_versions(&store, Width::Bits256), wide);
    assert_eq!(wide_versions(&store, Width::Bits128), 0);
    assert_eq!(store.count(), kept);
}

#[test]
fn what_is_measured_is_kept_for_other_processes() {
    let store = Arc::new(Kept::default());
    wide_versions(&store, Width::Auto);
    let kept = store.0.lock().expect("unpoisoned");
    let choices: Vec<_> = kept.iter().filter(|k| k.0.starts_with("width ")).collect();
    let asked = std::env::var("MICA_JIT_WIDTH").unwrap_or_default();
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") && matches!(&*asked, "" | "auto") {
        assert_eq!(choices.len(), 1);
        assert!(matches!(&choices[0].1[..], b"128" | b"256"));
        return;
    }
    assert!(choices.is_empty(), "nothing had to be measured");
}
