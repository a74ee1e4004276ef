//! The suite every backend passes, on memory that can leave, and while it does.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

use mica_backend_software::{Config, SoftwareGpu};
use mica_gpu::Gpu;
use mica_gpu::conformance::{Ptx, graph_cases, run};
use mica_memory::residency::Place;
use mica_swap::Swapper;

fn software() -> Arc<dyn Gpu> {
    let config = Config {
        memory_bytes: Some(1 << 30),
        workers: Some(2),
        ..Config::default()
    };
    Arc::new(SoftwareGpu::new(config).unwrap())
}

fn check(gpu: &dyn Gpu) {
    let report = run(gpu, &Ptx);
    assert!(report.0.len() >= 80, "{} cases", report.0.len());
    assert!(report.failures().is_empty(), "\n{report}");
    let graphs: Vec<&str> = graph_cases().iter().map(|case| case.name).collect();
    assert_eq!(report.skipped(), graphs, "\n{report}");
}

#[test]
fn memory_that_can_leave_behaves_as_any_other() {
    let swapper = Swapper::new(|| {});
    check(&*swapper.wrap(software()));
}

#[test]
fn programs_notice_nothing_of_memory_that_leaves_and_returns_all_the_time() {
    let swapper = Swapper::new(|| {});
    let gpu = swapper.wrap(software());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            let mut rounds = 0;
            while !over.load(Acquire) {
                swapper.leave(|_| {}).unwrap();
                assert_eq!(swapper.status().place, Place::Away);
                swapper.allow(0);
                swapper.come_back(|_| {}, |text| panic!("{text}"), || false);
                assert_eq!(swapper.status().out_bytes, 0);
                rounds += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            rounds
        });
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&*gpu)));
        over.store(true, Release);
        let rounds = mover.join().unwrap();
        assert!(rounds > 10, "{rounds} rounds");
        if let Err(failed) = checked {
            std::panic::resume_unwind(failed);
        }
    });
}
