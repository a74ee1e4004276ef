//! `mica ptx`: what is in a file of GPU code, and whether the software GPU can run it.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use mica_fatbin::{Cubin, DEFAULT_PAYLOAD_LIMIT, Entry, EntryKind, Image};
use mica_kernel::{Dim3, Executable};
use mica_ptx::ast::{Module, Unsupported};
use mica_ptx::names::readable;
use mica_ptx_interp::InterpModule;
use mica_ptx_jit::JitModule;
use mica_ptx_ops::device_runtime;
use mica_ptx_ops::layout::ModuleLayout;
use mica_wire::host::printable::{printable, printable_lines};
use serde_json::{Value, json};

use crate::args::PtxArgs;
use crate::listing::print_json;

/// What one piece of an image holds.
enum Piece {
    Ptx {
        description: mica_ptx::Description,
        check: Option<Vec<Checked>>,
    },
    Machine(Option<Cubin>),
}

/// A kernel and what becomes of it.
struct Checked {
    kernel: String,
    made: Made,
}

/// How a kernel would run.
enum Made {
    /// As native code; milliseconds that took.
    Native(f64),
    /// Interpreted, because the compiler refuses it.
    Interpreted(String),
    /// Not at all.
    Refused(String),
}

pub(crate) fn show(args: &PtxArgs) -> Result<()> {
    let name = args.file.display();
    let bytes = std::fs::read(&args.file).with_context(|| format!("{name} cannot be read"))?;
    let image = Image::parse(&bytes).with_context(|| format!("{name} holds no GPU code"))?;
    if image.entries.is_empty() {
        bail!("{name} is {}", image.describe());
    }
    let (mut pieces, mut problems, mut has_ptx) = (Vec::new(), 0, false);
    for entry in &image.entries {
        let piece = examine(entry, args)?;
        if let Piece::Ptx { description, check } = &piece {
            has_ptx = true;
            problems += description.unsupported.len();
            let made = check.iter().flatten();
            problems += made.filter(|c| matches!(c.made, Made::Refused(_))).count();
        }
        if args.json {
            pieces.push(as_json(&entry.arch(), &piece));
        } else {
            print(entry, &piece);
        }
    }
    if args.json {
        print_json(&pieces)?;
    } else if !has_ptx {
        outln!(
            "{name} is {}. The software GPU compiles PTX and cannot run it; build with \
             -gencode arch=compute_80,code=compute_80 to add PTX.",
            image.describe()
        );
    }
    match problems {
        0 => Ok(()),
        _ if !args.check => Ok(()),
        1 => bail!("the software GPU cannot run one thing in {name}"),
        n => bail!("the software GPU cannot run {n} things in {name}"),
    }
}

fn examine(entry: &Entry<'_>, args: &PtxArgs) -> Result<Piece> {
    if entry.kind != EntryKind::Ptx {
        let payload = entry.payload(DEFAULT_PAYLOAD_LIMIT).ok();
        return Ok(Piece::Machine(
            payload.and_then(|bytes| Cubin::parse(&bytes).ok()),
        ));
    }
    let payload = entry.payload(DEFAULT_PAYLOAD_LIMIT)?;
    let module = mica_ptx::parse(&payload).with_context(|| located(&args.file, &entry.arch()))?;
    let mut description = mica_ptx::describe(&module);
    // What kernels that launch kernels call is the software GPU's own: NVIDIA's is never loaded.
    if device_runtime::is_nvidias(&payload) {
        description.unsupported = Vec::new();
        let check = None;
        return Ok(Piece::Ptx { description, check });
    }
    let bytes = payload.len();
    let whole = device_runtime::join(payload).map_err(anyhow::Error::msg)?;
    let module = match whole.len() == bytes {
        true => module,
        false => mica_ptx::parse(&whole).with_context(|| located(&args.file, &entry.arch()))?,
    };
    description.unsupported = mica_ptx_ops::support::unsupported(&module);
    if let Err(error) = ModuleLayout::new(&module) {
        description.unsupported.push(Unsupported {
            what: error.to_string(),
            function: None,
            line: error.line(),
            column: 1,
        });
    }
    let runnable = description.unsupported.is_empty();
    let check = match args.check && runnable {
        true => {
            Some(compile(Arc::new(module)).with_context(|| located(&args.file, &entry.arch()))?)
        }
        false => None,
    };
    Ok(Piece::Ptx { description, check })
}

/// Compiles every kernel for this machine, as a first launch would.
fn compile(module: Arc<Module>) -> Result<Vec<Checked>> {
    let block = Dim3 { x: 128, y: 1, z: 1 };
    let interpreted = InterpModule::new(Arc::clone(&module));
    let instead = |why: String| match &interpreted {
        Ok(_) => Made::Interpreted(why),
        Err(_) => Made::Refused(why),
    };
    let native = match JitModule::compile(module, mica_ptx_jit::Options::default()) {
        Ok(native) => native,
        Err(error) => {
            let Ok(interpreted) = &interpreted else {
                return Err(error.into());
            };
            let kernels = interpreted.kernels().iter().map(|info| Checked {
                kernel: info.name.clone(),
                made: Made::Interpreted(error.to_string()),
            });
            return Ok(kernels.collect());
        }
    };
    let kernels = native.kernels().iter().enumerate();
    Ok(kernels
        .filter(|(_, info)| !info.name.starts_with(device_runtime::INTERNAL))
        .map(|(index, info)| {
            let start = Instant::now();
            let made = native.prepare_block(index, block);
            let ms = start.elapsed().as_secs_f64() * 1e3;
            Checked {
                kernel: info.name.clone(),
                made: made.map_or_else(instead, |()| Made::Native(ms)),
            }
        })
        .collect())
}

fn located(file: &Path, arch: &str) -> String {
    format!("{}, {arch}", file.display())
}

fn print(entry: &Entry<'_>, piece: &Piece) {
    outln!("{}  ({} bytes stored)", entry.arch(), entry.stored_len());
    match piece {
        Piece::Ptx { description, check } => {
            let description = description.to_string();
            outln!("{}", printable_lines(&description));
            let Some(check) = check else { return };
            outln!("compiled for this machine");
            for checked in check {
                let kernel = readable(&checked.kernel);
                let line = match &checked.made {
                    Made::Native(ms) => format!("  {ms:>8.1} ms  {kernel}"),
                    Made::Interpreted(why) => format!("  interpreted  {kernel}: {why}"),
                    Made::Refused(why) => format!("  refused      {kernel}: {why}"),
                };
                outln!("{}", printable_lines(&line));
            }
            outln!();
        }
        Piece::Machine(cubin) => {
            outln!("machine code: runs on GPUs of its own generation only");
            for kernel in cubin.iter().flat_map(|cubin| &cubin.kernels) {
                outln!("\nkernel {}", printable(&readable(&kernel.name)));
                outln!("  parameters: {} bytes", kernel.param_bytes);
                if let Some(registers) = kernel.registers {
                    outln!("  registers: {registers}");
                }
                if kernel.shared_bytes > 0 {
                    outln!("  shared memory: {} bytes", kernel.shared_bytes);
                }
            }
            outln!();
        }
    }
}

fn as_json(arch: &str, piece: &Piece) -> Value {
    let (description, check) = match piece {
        Piece::Ptx { description, check } => (description, check),
        Piece::Machine(cubin) => {
            let names = cubin.iter().flat_map(|cubin| &cubin.kernels);
            let kernels: Vec<Value> = names
                .map(|k| {
                    json!({
                        "name": k.name,
                        "readable_name": readable(&k.name),
                        "param_bytes": k.param_bytes,
                        "registers": k.registers,
                        "shared_bytes": k.shared_bytes,
                    })
                })
                .collect();
            return json!({ "arch": arch, "ptx": null, "machine_code": { "kernels": kernels } });
        }
    };
    let kernels: Vec<Value> = description.kernels.iter().map(function_json).collect();
    let functions: Vec<Value> = description.functions.iter().map(function_json).collect();
    let unsupported: Vec<Value> = description
        .unsupported
        .iter()
        .map(|u| json!({ "what": u.what, "function": u.function, "line": u.line }))
        .collect();
    let compiled: Option<Vec<Value>> = check.as_ref().map(|check| {
        let one = |c: &Checked| {
            let (ms, interpreted, refused) = match &c.made {
                Made::Native(ms) => (Some(ms), None, None),
                Made::Interpreted(why) => (None, Some(why), None),
                Made::Refused(why) => (None, None, Some(why)),
            };
            json!({ "kernel": c.kernel, "ms": ms, "interpreted": interpreted, "refused": refused })
        };
        check.iter().map(one).collect()
    });
    json!({
        "arch": arch,
        "ptx": {
            "version": format!("{}.{}", description.version.0, description.version.1),
            "target": description.target,
            "kernels": kernels,
            "functions": functions,
            "externs": description.externs,
            "unsupported": unsupported,
            "compiled": compiled,
        }
    })
}

fn function_json(function: &mica_ptx::FunctionDescription) -> Value {
    let params: Vec<Value> = function
        .params
        .iter()
        .map(|p| json!({ "name": p.name, "type": p.ty, "offset": p.offset, "size_bytes": p.size }))
        .collect();
    let registers: serde_json::Map<String, Value> = function
        .registers
        .iter()
        .map(|(class, count)| ((*class).to_owned(), json!(count)))
        .collect();
    json!({
        "name": function.name,
        "readable_name": function.readable_name(),
        "params": params,
        "registers": registers,
        "shared_bytes": function.shared_bytes,
        "dynamic_shared": function.dynamic_shared,
        "local_bytes": function.local_bytes,
        "instructions": function.instructions,
        "barriers": function.barriers,
    })
}
