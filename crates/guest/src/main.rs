//! The agent in a virtual machine.
#![deny(clippy::unwrap_used, clippy::expect_used)]

use std::path::PathBuf;
use std::process::ExitCode;

use mica_guest::{Agent, HostAddress, PORT, SharedMemory, VsockAddress};
use mica_limits::CONTAINER_DIR;

const HELP: &str = "\
Use the host's virtual GPU in a virtual machine.

Usage: mica-guest COMMAND [--host CID:PORT | --unix PATH] [--folder DIR]
                          [--ivshmem PATH | --no-ivshmem]

Commands:
  serve    serve programs until ended; they find the GPU without any variable
  show     print what the host says of the virtual GPU, as JSON

Options:
  --host CID:PORT  the host (default: 2:9350)
  --unix PATH      the host behind a socket in the file system
  --folder DIR     where programs find the agent (default: /run/mica-vgpu)
  --ivshmem PATH   memory shared with the host, instead of the machine's
                   devices; may be repeated
  --no-ivshmem     share no memory: everything travels over the stream
  -V, --version    print the version
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, text)) => {
            eprintln!("mica-guest: {text}");
            ExitCode::from(code)
        }
    }
}

/// An exit code and why.
type Failure = (u8, String);

fn run(words: &[String]) -> Result<(), Failure> {
    let usage = |text: String| {
        (
            2,
            format!("{text}; `mica-guest --help` shows what to write"),
        )
    };
    let mut host = HostAddress::Vsock(VsockAddress { cid: 2, port: PORT });
    let mut folder = PathBuf::from(CONTAINER_DIR);
    let mut memory = SharedMemory::Devices;
    let mut command = None;
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let mut value = || {
            let value = rest.next();
            value.ok_or_else(|| usage(format!("{word} needs a value")))
        };
        match word.as_str() {
            "--host" => host = HostAddress::Vsock(value()?.parse().map_err(usage)?),
            "--unix" => host = HostAddress::Unix(value()?.into()),
            "--folder" => folder = value()?.into(),
            "--ivshmem" => match &mut memory {
                SharedMemory::Files(files) => files.push(value()?.into()),
                memory => *memory = SharedMemory::Files(vec![value()?.into()]),
            },
            "--no-ivshmem" => memory = SharedMemory::None,
            "-h" | "--help" => {
                print!("{HELP}");
                return Ok(());
            }
            "-V" | "--version" => {
                println!("mica-guest {}", env!("CARGO_PKG_VERSION"));
                return Ok(());
            }
            "serve" | "show" if command.is_none() => command = Some(word.as_str()),
            other => return Err(usage(format!("{other:?} is not known"))),
        }
    }
    let failed = |error: mica_guest::GuestError| (1, mica_guest::with_causes(&error));
    match command {
        Some("serve") => {
            let _agent = Agent::start(host, &folder, memory).map_err(failed)?;
            loop {
                std::thread::park();
            }
        }
        Some(_) => {
            let facts = host.facts().map_err(failed)?;
            let text = serde_json::to_string_pretty(&facts).unwrap_or_default();
            println!("{text}");
            Ok(())
        }
        None => Err(usage("there is no command".into())),
    }
}
