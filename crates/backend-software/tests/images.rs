//! Images as programs carry them: fatbins of all kinds, and what is refused with which words.

use std::sync::{Arc, Mutex};

use mica_backend_software::{Config, OutputKind, SoftwareGpu};
use mica_cuda_abi::CuResult;
use mica_gpu::{Gpu, ModuleOptions};

fn load(image: &[u8]) -> mica_gpu::Result<Vec<String>> {
    let config = Config {
        memory_bytes: Some(64 << 20),
        workers: Some(1),
        ..Config::default()
    };
    let gpu = SoftwareGpu::new(config)?;
    let context = gpu.context_create()?;
    let module = gpu.module_load(context, image, &ModuleOptions::default())?;
    let info = gpu.module_info(module)?;
    Ok(info.kernels.into_iter().map(|k| k.name).collect())
}

#[test]
fn ptx_in_containers_is_found() {
    let images: [(&str, &[u8]); 5] = [
        (
            "plain",
            include_bytes!("../../fatbin/tests/data/plain.fatbin"),
        ),
        ("lz4", include_bytes!("../../fatbin/tests/data/lz4.fatbin")),
        (
            "zstd",
            include_bytes!("../../fatbin/tests/data/zstd.fatbin"),
        ),
        (
            "several",
            include_bytes!("../../fatbin/tests/data/several.fatbin"),
        ),
        (
            "object",
            include_bytes!("../../fatbin/tests/data/kernels.obj"),
        ),
    ];
    for (name, image) in images {
        let kernels = load(image);
        assert!(
            kernels.is_ok_and(|k| !k.is_empty()),
            "{name}: {:?}",
            load(image)
        );
    }
}

#[test]
fn machine_code_alone_is_refused_with_what_is_inside() {
    let image = include_bytes!("../../fatbin/tests/data/sm_90.cubin");
    let error = load(image).unwrap_err();
    assert_eq!(error.code, CuResult::NoBinaryForGpu);
    for part in [
        "needs PTX (nvcc -arch=compute_80; NVRTC: compute_80 and nvrtcGetPTX)",
        "a cubin with machine code for sm_90; no PTX",
    ] {
        assert!(error.message.contains(part), "{error}");
    }
    let error = load(b"\x7fELF and nothing more").unwrap_err();
    assert_eq!(error.code, CuResult::InvalidImage);
}

#[test]
fn the_sink_hears_why_a_module_was_refused() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&heard);
    let config = Config {
        memory_bytes: Some(64 << 20),
        workers: Some(1),
        output: Some(Arc::new(move |kind, text: &[u8]| {
            let text = String::from_utf8_lossy(text).into_owned();
            sink.lock().unwrap().push((kind, text));
        })),
        ..Config::default()
    };
    let gpu = SoftwareGpu::new(config).unwrap();
    let context = gpu.context_create().unwrap();
    let image = include_bytes!("../../fatbin/tests/data/sm_90.cubin");
    let error = gpu.module_load(context, image, &ModuleOptions::default());
    assert_eq!(
        *heard.lock().unwrap(),
        [(OutputKind::Refused, error.unwrap_err().message)]
    );
}

#[test]
fn ptx_errors_have_a_line() {
    let image = b".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{\n    frob.u32 %r1;\n}\n";
    let error = load(image).unwrap_err();
    assert_eq!(error.code, CuResult::InvalidPtx);
    assert!(error.message.contains("line 6"), "{error}");
    assert!(error.message.contains("frob"), "{error}");
}
