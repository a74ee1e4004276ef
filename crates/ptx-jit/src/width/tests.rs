use super::*;
use std::collections::HashMap;
use std::sync::Mutex;

#[derive(Debug, Default)]
struct Kept(Mutex<HashMap<String, Vec<u8>>>);

impl CodeCache for Kept {
    fn load(&self, key: &str) -> Option<Vec<u8>> {
        self.0.lock().expect("unpoisoned").get(key).cloned()
    }
    fn save(&self, key: &str, bytes: &[u8]) {
        let mut kept = self.0.lock().expect("unpoisoned");
        kept.insert(key.into(), bytes.into());
    }
}

#[test]
fn the_variable_has_three_values() {
    assert_eq!(Width::parse("128"), Some(Width::Bits128));
    assert_eq!(Width::parse(" 256\n"), Some(Width::Bits256));
    assert_eq!(Width::parse("auto"), Some(Width::Auto));
    assert_eq!(Width::parse(""), Some(Width::Auto));
    assert_eq!(Width::parse("512"), None);
    assert_eq!(Width::parse("wide"), None);
}

#[test]
fn a_measurement_is_made_once() {
    for wide in [false, true] {
        let store = Kept::default();
        assert_eq!(kept_or(Some(&store), "a", || Ok(wide)), wide);
        let again = || panic!("measured again");
        assert_eq!(kept_or(Some(&store), "a", again), wide);
        // Another processor or compiler knows nothing of it.
        assert_eq!(kept_or(Some(&store), "b", || Ok(!wide)), !wide);
    }
    assert!(kept_or(None, "a", || Ok(true)));
}

#[test]
fn what_is_kept_and_makes_no_sense_is_measured_again() {
    for nonsense in [&b""[..], b"512", b"1286", b"256 "] {
        let store = Kept::default();
        store.save("a", nonsense);
        assert!(kept_or(Some(&store), "a", || Ok(true)), "{nonsense:?}");
        assert_eq!(store.load("a").as_deref(), Some(&b"256"[..]));
    }
}

#[test]
fn a_failed_measurement_means_128_bits_and_is_not_kept() {
    let store = Kept::default();
    let failed = || Err(CompileError::Backend("no".into()));
    assert!(!kept_or(Some(&store), "a", failed));
    assert_eq!(store.load("a"), None);
}

#[test]
fn both_widths_compute_the_same_forces() {
    let run = |width| {
        let mut trial = Trial::new(width).expect("compiles");
        assert!(trial.run().expect("runs") > 0.0);
        let forces = trial.arena.split_off(BODIES);
        (trial.module.wide_versions(), forces)
    };
    let (none, narrow) = run(Width::Bits128);
    let (some, wide) = run(Width::Bits256);
    assert_eq!(narrow, wide);
    assert!(narrow.iter().all(|f| f.is_finite()) && narrow[0] != 0.0);
    assert_eq!(none, 0);
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
        assert_eq!(some, 1, "the trial compares nothing");
    }
    let began = std::time::Instant::now();
    let faster = is_wide_faster().expect("measured");
    println!(
        "256 bits are faster: {faster}; measured in {:?}",
        began.elapsed()
    );
}

#[test]
fn the_name_tells_processors_and_compilers_apart() {
    let name = name();
    assert!(name.contains(&processor()) && name.contains(env!("MICA_JIT_SOURCES")));
    #[cfg(target_arch = "x86_64")]
    assert!(processor().len() > 8, "{}", processor());
}
