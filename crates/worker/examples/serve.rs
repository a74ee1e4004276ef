//! A worker and nothing else: `worker_command = ["…/examples/serve"]` in the daemon's configuration
//! tries a change to the device or the worker without a new `mica`.

fn main() {
    let served = mica_worker::WorkerConfig::from_environment().and_then(|c| mica_worker::run(&c));
    if let Err(error) = served {
        eprintln!("worker: {error}");
        std::process::exit(1);
    }
}
