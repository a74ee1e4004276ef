//! `mica ptx`: what is in a file of GPU code.

use std::path::Path;

use anyhow::{Context, Result, bail};
use mica_fatbin::{DEFAULT_PAYLOAD_LIMIT, EntryKind, Image};
use serde_json::{Value, json};

use crate::args::PtxArgs;
use crate::listing::print_json;

pub(crate) fn show(args: &PtxArgs) -> Result<()> {
    let name = args.file.display();
    let bytes = std::fs::read(&args.file).with_context(|| format!("{name} cannot be read"))?;
    let image = Image::parse(&bytes).with_context(|| format!("{name} holds no GPU code"))?;
    if image.entries.is_empty() {
        bail!("{name} is {}", image.describe());
    }
    let mut pieces = Vec::new();
    for entry in &image.entries {
        let description = match entry.kind {
            EntryKind::Ptx => {
                let payload = entry.payload(DEFAULT_PAYLOAD_LIMIT)?;
                let module = mica_ptx::parse(&payload)
                    .with_context(|| located(&args.file, &entry.arch()))?;
                Some(mica_ptx::describe(&module))
            }
            _ => None,
        };
        if args.json {
            pieces.push(as_json(&entry.arch(), description.as_ref()));
        } else {
            println!("{}  ({} bytes stored)", entry.arch(), entry.stored_len());
            match description {
                Some(description) => println!("{description}"),
                None => println!("  machine code: runs on GPUs of its own generation only\n"),
            }
        }
    }
    if args.json {
        print_json(&pieces)
    } else {
        Ok(())
    }
}

fn located(file: &Path, arch: &str) -> String {
    format!("{}, {arch}", file.display())
}

fn as_json(arch: &str, description: Option<&mica_ptx::Description>) -> Value {
    let Some(description) = description else {
        return json!({ "arch": arch, "ptx": null });
    };
    let kernels: Vec<Value> = description.kernels.iter().map(function_json).collect();
    let functions: Vec<Value> = description.functions.iter().map(function_json).collect();
    let unsupported: Vec<String> = description
        .unsupported
        .iter()
        .map(|item| format!("{item:?}"))
        .collect();
    json!({
        "arch": arch,
        "ptx": {
            "version": format!("{}.{}", description.version.0, description.version.1),
            "target": description.target,
            "kernels": kernels,
            "functions": functions,
            "externs": description.externs,
            "unsupported": unsupported,
        }
    })
}

fn function_json(function: &mica_ptx::FunctionDescription) -> Value {
    let params: Vec<Value> = function
        .params
        .iter()
        .map(|p| json!({ "name": p.name, "type": p.ty, "offset": p.offset, "size_bytes": p.size }))
        .collect();
    json!({
        "name": function.name,
        "params": params,
        "shared_bytes": function.shared_bytes,
        "local_bytes": function.local_bytes,
        "instructions": function.instructions,
        "barriers": function.barriers,
    })
}
