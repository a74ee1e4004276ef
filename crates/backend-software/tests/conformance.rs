//! The suite every backend passes, on this device.

use mica_backend_software::{Config, Engine, SoftwareGpu};
use mica_gpu::conformance::{Ptx, graph_cases, run};

fn check(engine: Engine, workers: usize) {
    let config = Config {
        memory_bytes: Some(1 << 30),
        workers: Some(workers),
        engine,
        ..Config::default()
    };
    let gpu = SoftwareGpu::new(config).unwrap();
    let report = run(&gpu, &Ptx);
    assert!(report.0.len() >= 80, "{} cases", report.0.len());
    assert!(report.failures().is_empty(), "\n{report}");
    // The engine replays graphs on this device.
    let graphs: Vec<&str> = graph_cases().iter().map(|case| case.name).collect();
    assert_eq!(report.skipped(), graphs, "\n{report}");
}

#[test]
fn interpreter_conforms() {
    check(Engine::Interpreter, 2);
}

#[test]
fn native_code_conforms() {
    check(Engine::Jit, 2);
}

#[test]
fn one_worker_is_enough() {
    check(Engine::Jit, 1);
}
