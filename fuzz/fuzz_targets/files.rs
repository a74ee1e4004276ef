//! Any bytes as what a user or a worker gives besides: suppressions and settings of a check, findings, sizes and times on a
//! command line, and what a worker asks the keeper of its compiled kernels for. Refused or read, never a panic.
#![no_main]

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use libfuzzer_sys::fuzz_target;
use mica_check::report::Suppressions;
use mica_check::{CheckSettings, Record};
use mica_command::size::{Share, Size};
use mica_command::when::Since;
use mica_ptx_jit::{DiskCodeCache, keep};

/// Most that the keeper's folder may hold.
const MOST_BYTES: u64 = 64 << 10;

fn text(text: &str) {
    let rules = Suppressions::parse(text).unwrap_or_default();
    for line in text.lines() {
        if let Ok(Record::Finding(finding)) = serde_json::from_str::<Record>(line) {
            rules.hide(&finding);
        }
        if let Ok(settings) = line.parse::<CheckSettings>() {
            let again: Option<CheckSettings> = settings.to_string().parse().ok();
            assert_eq!(again, Some(settings));
        }
        let _ = line.parse::<Size>();
        let _ = line.parse::<Share>();
        let _ = line.parse::<Since>();
    }
}

/// Has the keeper answer the bytes as requests. Whatever they are, its folder stays within its size.
fn kept(bytes: &[u8]) {
    thread_local! {
        static FOLDER: PathBuf = {
            let name = format!("mica-fuzz-kept-{}", std::process::id());
            std::env::temp_dir().join(name)
        };
    }
    FOLDER.with(|folder| {
        let cache = DiskCodeCache::open(folder, MOST_BYTES).expect("a folder");
        let (mut own, other) = UnixStream::pair().expect("a pair");
        std::thread::scope(|scope| {
            let keeper = scope.spawn(|| keep(other, &cache));
            let mut answers = own.try_clone().expect("a copy");
            let reader = scope.spawn(move || std::io::copy(&mut answers, &mut std::io::sink()));
            let _ = own.write_all(bytes);
            let _ = own.shutdown(Shutdown::Write);
            // A scope ends before its threads have dropped what is local to them, which the leak sanitizer would report.
            keeper.join().expect("no panic");
            let _ = reader.join().expect("no panic");
        });
        let files = std::fs::read_dir(folder).expect("its folder").flatten();
        let held: u64 = files.map(|f| f.metadata().map_or(0, |m| m.len())).sum();
        assert!(held <= MOST_BYTES, "{held}");
    });
}

fuzz_target!(|bytes: &[u8]| {
    text(&String::from_utf8_lossy(bytes));
    kept(bytes);
});
