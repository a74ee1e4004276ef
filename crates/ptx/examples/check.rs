//! Parses PTX files and says what is wrong with the first bad one.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut failed = false;
    for path in std::env::args().skip(1) {
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) => {
                eprintln!("{path}: {e}");
                failed = true;
                continue;
            }
        };
        let start = std::time::Instant::now();
        match mica_ptx::parse(&bytes) {
            Ok(module) => println!(
                "{path}: {} kernels, {} functions, {} instructions, {} unsupported, {:?}",
                module.kernels().count(),
                module.functions.len(),
                module.functions.iter().map(|f| f.body.len()).sum::<usize>(),
                module.unsupported.len(),
                start.elapsed(),
            ),
            Err(e) => {
                eprintln!("{path}: {e}");
                failed = true;
            }
        }
        if std::env::var_os("DESCRIBE").is_some()
            && let Ok(module) = mica_ptx::parse(&bytes)
        {
            print!("{}", mica_ptx::describe(&module));
        }
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
