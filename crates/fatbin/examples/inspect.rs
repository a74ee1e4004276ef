//! Says what is inside files that carry GPU code.

use mica_fatbin::{Cubin, DEFAULT_PAYLOAD_LIMIT, EntryKind, Image};

fn main() {
    for path in std::env::args().skip(1) {
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) => {
                eprintln!("{path}: {e}");
                continue;
            }
        };
        let image = match Image::parse(&bytes) {
            Ok(image) => image,
            Err(e) => {
                eprintln!("{path}: {e}");
                continue;
            }
        };
        println!("{path}: {}", image.describe());
        for entry in &image.entries {
            let payload = match entry.payload(DEFAULT_PAYLOAD_LIMIT) {
                Ok(payload) => payload,
                Err(e) => {
                    println!("  {}: {e}", entry.arch());
                    continue;
                }
            };
            println!(
                "  {}: {} bytes, {} stored",
                entry.arch(),
                payload.len(),
                entry.stored_len()
            );
            if entry.kind == EntryKind::Cubin {
                match Cubin::parse(&payload) {
                    Ok(cubin) => {
                        for k in cubin.kernels {
                            println!("    {}: {} parameters", k.name, k.params.len());
                        }
                    }
                    Err(e) => println!("    {e}"),
                }
            }
        }
    }
}
