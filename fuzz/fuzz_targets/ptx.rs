//! Any bytes as PTX: an answer without a panic, and an accepted module keeps the tree's promises.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mica_ptx::cfg::Cfg;

fuzz_target!(|bytes: &[u8]| {
    match mica_ptx::parse(bytes) {
        Ok(module) => {
            if let Err(broken) = mica_ptx::verify(&module) {
                panic!("{broken}");
            }
            for function in &module.functions {
                let cfg = Cfg::build(function);
                assert_eq!(cfg.block_of.len(), function.body.len());
            }
            let _ = mica_ptx::describe(&module).to_string();
        }
        Err(error) => {
            let _ = error.to_string();
        }
    }
});
