//! Blocks of an ordinary launch that wait for each other, as they may where a GPU holds all of them.

mod common;

use common::{Bench, config};
use mica_backend_software::{Config, SoftwareGpu};

#[test]
fn blocks_wait_for_blocks_that_have_no_worker() {
    for workers in [1, 2] {
        let gpu = SoftwareGpu::new(Config {
            workers: Some(workers),
            ..config()
        })
        .unwrap();
        let bench = Bench::new(&gpu);
        let count = bench.alloc(4);
        bench.launch("gather", 7, &[count.0]);
        assert_eq!(bench.read(count, 1), [7]);
    }
}
