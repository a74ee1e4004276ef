//! Any text as a configuration: refused with a line, or accepted and valid.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use mica_daemon::config::{Config, ConfigError};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match Config::parse(text, Path::new("mica.toml")) {
        Ok(config) => {
            let _ = config.quota_of(0);
        }
        Err(ConfigError::Value { line, .. }) => {
            assert!(line >= 1 && line <= text.lines().count().max(1));
        }
        Err(refused) => assert!(refused.to_string().contains("mica.toml")),
    }
});
