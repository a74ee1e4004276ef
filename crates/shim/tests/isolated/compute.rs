//! A Rust program in a virtual GPU that shares it with libraries of its process: the API through the driver library, and products
//! by the user's cuBLASLt, for which a stand-in computes.
//!
//! Each test runs itself again, under the shim.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use mica::{ArrayShape, DeviceAttribute, Filter, Graph, Grid, TextureOptions, Vgpu};
use mica_ops::{Activation, DType, Gemm, Ops, Precision, Tensor};

use super::{Host, TOKEN, built};

/// Runs an ignored test of this executable in a virtual GPU; what it printed.
fn inside(name: &str, set: impl FnOnce(&mut Command)) -> String {
    let host = Host::start();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            &format!("compute::{name}"),
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env("LD_LIBRARY_PATH", &built().directory)
        .env("MICA_MODE", "isolated")
        .env("MICA_HOST_SOCKET", host.socket())
        .env("MICA_TOKEN", TOKEN)
        .env("MICA_OPS_TUNE", "off")
        .env_remove("CUDA_HOME")
        .env_remove("CUDA_PATH")
        .env("MICA_CUDA_LIBRARIES", "off");
    set(&mut command);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}\n{}", host.log());
    assert!(said.contains("1 passed"), "{said}");
    host.assert_clean(1);
    said
}

#[test]
fn a_rust_program_uses_its_driver_library() {
    inside("through_the_driver", |_| {});
}

#[test]
fn graphs_textures_and_managed_memory_are_the_drivers() {
    inside("graphs_through_the_driver", |_| {});
    inside("textures_through_the_driver", |_| {});
    inside("memory_through_the_driver", |_| {});
}

#[test]
fn products_by_a_library_of_the_process_are_right() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path());
    inside("products_by_the_library", |command| {
        command.env("MICA_CUDA_LIBRARIES", folder.path());
    });
}

#[test]
fn a_library_that_is_not_there_is_skipped_with_a_reason() {
    inside("without_the_library", |_| {});
}

fn build(folder: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cublas/tests/fake_cublaslt.c");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(folder.join("libcublasLt.so.12"))
        .arg("-DFAKE_VERSION=120801")
        .arg(source)
        .args(["-lm", "-ldl"])
        .status()
        .unwrap();
    assert!(status.success());
}

/// Adds 1 to each element, and the value of a variable.
const ADD: &str = "
.version 7.0
.target sm_75
.address_size 64
.visible .global .u32 more = 10;
.visible .entry add(.param .u64 data)
{
    .reg .b32 %r<4>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [data];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d2, %r1, 4;
    add.u64 %d3, %d1, %d2;
    ld.global.u32 %r2, [%d3];
    ld.global.u32 %r3, [more];
    add.u32 %r2, %r2, %r3;
    st.global.u32 [%d3], %r2;
    ret;
}";

#[test]
#[ignore = "no test by itself: a test above runs this (--exact compute::through_the_driver --ignored) as a program in a virtual GPU"]
fn through_the_driver() {
    let vgpu = Vgpu::through_driver().unwrap();
    assert!(vgpu.info().is_software(), "{:?}", vgpu.info());
    assert_eq!(vgpu.memory().unwrap().limit_bytes, super::LIMIT);
    assert!(vgpu.driver_context().is_some());
    let module = vgpu.load_ptx(ADD).unwrap();
    let kernel = module.kernel("add").unwrap();
    let more = module.global("more").unwrap();
    more.write(&[100_u32]).unwrap();
    let unknown = module.global("none").unwrap_err();
    assert!(unknown.to_string().contains("\"none\""), "{unknown}");
    let stream = vgpu.stream().unwrap();
    assert!(stream.driver_handle().is_some_and(|handle| handle != 0));
    let (start, end) = (vgpu.event().unwrap(), vgpu.event().unwrap());
    let mut buffer = vgpu.upload(&[1_u32, 2, 3, 4]).unwrap();
    start.record(&stream).unwrap();
    stream
        .launch(&kernel, Grid::new(1, 4), (&mut buffer,))
        .unwrap();
    end.record(&stream).unwrap();
    let later = buffer.download(&stream).unwrap();
    assert_eq!(later.wait().unwrap(), [101, 102, 103, 104]);
    end.synchronize().unwrap();
    assert!(end.is_reached().unwrap() && end.elapsed_since_ms(&start).unwrap() >= 0.0);
    let mut copy = vgpu.alloc::<u32>(4).unwrap();
    copy.copy_from_buffer(&stream, &buffer).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(copy.to_vec().unwrap(), [101, 102, 103, 104]);
    // The limit is the virtual GPU's, whoever asks.
    let refused = vgpu
        .alloc_unset::<u8>(super::LIMIT as usize + 1)
        .unwrap_err();
    assert!(refused.is_out_of_memory(), "{refused}");
    let broken = vgpu.load_ptx(".version 7.0 nonsense").unwrap_err();
    assert!(broken.code().is_some(), "{broken}");
    let daemon = vgpu.resize(1 << 20).unwrap_err();
    assert!(daemon.to_string().contains("mica resize"), "{daemon}");
}

#[test]
#[ignore = "no test by itself: a test above runs this (--exact compute::graphs_through_the_driver --ignored) as a program in a virtual GPU"]
fn graphs_through_the_driver() {
    let vgpu = Vgpu::through_driver().unwrap();
    let add = vgpu.load_ptx(ADD).unwrap().kernel("add").unwrap();
    let stream = vgpu.stream().unwrap();
    let mut data = vgpu.alloc::<u32>(4).unwrap();
    let mut copy = vgpu.alloc::<u32>(4).unwrap();
    let called = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&called);
    let graph = stream
        .capture(|| {
            stream.fill(&mut data, 1)?;
            data.slice_mut(3..)?.copy_from(&stream, &[5])?;
            stream.launch(&add, Grid::new(1, 4).cooperative(), (&data,))?;
            copy.copy_from_buffer(&stream, &data)?;
            stream.call_each(move || {
                counter.fetch_add(1, Ordering::SeqCst);
            })
        })
        .unwrap();
    let mut ready = graph.instantiate().unwrap();
    ready.upload(&stream).unwrap();
    for _ in 0..3 {
        ready.launch(&stream).unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(copy.to_vec().unwrap(), [11, 11, 11, 15]);
    assert_eq!(called.load(Ordering::SeqCst), 3);
    let (start, end) = (vgpu.event().unwrap(), vgpu.event().unwrap());
    let mut other = Graph::new(&vgpu);
    let begun = other.record(&[], &start).unwrap();
    let filled = other.fill(&[begun], &mut data, 100).unwrap();
    let nothing = other.join(&[filled]).unwrap();
    let added = other
        .launch(&[nothing], &add, Grid::new(1, 4), (&data,))
        .unwrap();
    other.record(&[added], &end).unwrap();
    ready.update(&other).unwrap();
    ready.launch(&stream).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(data.to_vec().unwrap(), [110; 4]);
    assert!(end.elapsed_since_ms(&start).unwrap() >= 0.0);
    drop(ready);
    let (sum, profile) = vgpu
        .profile(|| {
            stream.launch(&add, Grid::new(1, 4).priority(0), (&data,))?;
            stream.launch(&add, Grid::new(1, 4), (&data,))?;
            stream.synchronize()?;
            data.to_vec()
        })
        .unwrap();
    assert_eq!(sum, [130; 4]);
    let kernel = profile.lines.iter().find(|line| line.name == "add");
    assert_eq!(kernel.map(|line| line.calls), Some(2), "{profile}");
}

#[test]
#[ignore = "no test by itself: a test above runs this (--exact compute::textures_through_the_driver --ignored) as a program in a virtual GPU"]
fn textures_through_the_driver() {
    let vgpu = Vgpu::through_driver().unwrap();
    let module = vgpu
        .load_ptx(include_str!("../../../mica/tests/textures.ptx"))
        .unwrap();
    let sample = module.kernel("sample").unwrap();
    let stream = vgpu.default_stream();
    let ramp: Vec<f32> = (0..32).map(|i| (i / 8 * 10 + i % 8) as f32).collect();
    let mut array = vgpu.array::<f32>(ArrayShape::plane(8, 4)).unwrap();
    array.copy_from(&stream, &ramp).unwrap();
    assert_eq!(array.to_vec().unwrap(), ramp);
    let mut rows = vgpu.alloc_pitched::<f32>(8, 4).unwrap();
    rows.copy_from(&stream, &ramp).unwrap();
    assert_eq!(rows.to_vec().unwrap(), ramp);
    let options = TextureOptions {
        filter: Filter::Linear,
        ..TextureOptions::default()
    };
    let mut out = vgpu.alloc::<f32>(8).unwrap();
    for texture in [
        array.texture(&options).unwrap(),
        rows.texture(&options).unwrap(),
    ] {
        let params = (&texture, &mut out, 1.0_f32, 1.0_f32);
        stream.launch(&sample, Grid::new(1, 8), params).unwrap();
        let seen = out.to_vec().unwrap();
        assert_eq!((seen[0], seen[6], seen[7]), (5.5, 11.5, 12.0));
    }
    let numbers: Vec<u32> = (7..107).collect();
    let buffer = vgpu.upload(&numbers).unwrap();
    let mut fetched = vgpu.alloc::<u32>(100).unwrap();
    let (fetch, texture) = (module.kernel("fetch").unwrap(), buffer.texture().unwrap());
    stream
        .launch(&fetch, Grid::new(1, 100), (&texture, &mut fetched))
        .unwrap();
    assert_eq!(fetched.to_vec().unwrap(), numbers);
    let written = vgpu.array::<u32>(ArrayShape::plane(16, 8)).unwrap();
    let (store, surface) = (module.kernel("store").unwrap(), written.surface().unwrap());
    stream
        .launch(&store, Grid::of([1; 3], [16, 8, 1]), (&surface,))
        .unwrap();
    let wanted: Vec<u32> = (0..128).map(|i| i / 16 * 100 + i % 16).collect();
    assert_eq!(written.to_vec().unwrap(), wanted);
}

#[test]
#[ignore = "no test by itself: a test above runs this (--exact compute::memory_through_the_driver --ignored) as a program in a virtual GPU"]
fn memory_through_the_driver() {
    let vgpu = Vgpu::through_driver().unwrap();
    let before = vgpu.memory().unwrap().used_bytes;
    let add = vgpu.load_ptx(ADD).unwrap().kernel("add").unwrap();
    let stream = vgpu.stream().unwrap();
    let mut data = vgpu.managed::<u32>(1000).unwrap();
    data.write(0, &[1, 2, 3, 4]).unwrap();
    data.prefetch_to_device(&stream).unwrap();
    stream.launch(&add, Grid::new(1, 4), (&data,)).unwrap();
    data.prefetch_to_host(&stream).unwrap();
    let mut seen = [0; 5];
    data.read(0, &mut seen).unwrap();
    assert_eq!(seen, [11, 12, 13, 14, 0]);
    assert!(vgpu.memory().unwrap().used_bytes > before);
    drop(data);
    let aligned = vgpu.alloc_aligned::<u32>(4, 1 << 16).unwrap();
    assert_eq!(aligned.address() % (1 << 16), 0);
    let warp = vgpu.attribute(DeviceAttribute::WarpSize).unwrap();
    assert_eq!(warp, Some(32));
}

#[test]
#[ignore = "no test by itself: a test above runs this (--exact compute::without_the_library --ignored) as a program in a virtual GPU"]
fn without_the_library() {
    let ops = Ops::new(&Vgpu::through_driver().unwrap()).unwrap();
    let providers = ops.providers();
    assert!(!providers[0].is_used);
    assert_eq!(providers[0].state, "MICA_CUDA_LIBRARIES is off");
    let a = tensor(&ops, &[3, 4], DType::F32, 1);
    let kernels = ops
        .gemm_kernels(&a, &a.t().unwrap(), &Gemm::default())
        .unwrap();
    assert!(
        kernels.iter().all(|name| !name.starts_with("cublas")),
        "{kernels:?}"
    );
}

/// Small integers: every order of additions gives the same result in every type.
fn tensor(ops: &Ops, shape: &[usize], dtype: DType, seed: usize) -> Tensor {
    let count = shape.iter().product();
    let values: Vec<f32> = (0..count)
        .map(|at| ((at * 7 + seed * 5) % 9) as f32 - 4.0)
        .collect();
    ops.tensor(shape, dtype, &values).unwrap()
}

#[test]
#[ignore = "no test by itself: a test above runs this (--exact compute::products_by_the_library --ignored) as a program in a virtual GPU"]
fn products_by_the_library() {
    let ops = Ops::new(&Vgpu::through_driver().unwrap()).unwrap();
    let providers = ops.providers();
    assert!(providers[0].is_used, "{providers:?}");
    assert!(
        providers[0].state.ends_with("version 120801"),
        "{providers:?}"
    );
    let mut compared = 0;
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I8] {
        for [batch, m, n, k] in [[1, 5, 7, 6], [3, 4, 5, 16], [1, 1, 3, 2]] {
            for by_columns in 0..4 {
                let stack = |rows, cols, turned: bool, seed| match turned {
                    false => tensor(&ops, &[batch, rows, cols], dtype, seed),
                    true => tensor(&ops, &[batch, cols, rows], dtype, seed).t().unwrap(),
                };
                let a = stack(m, k, by_columns & 1 == 1, 1);
                let b = stack(k, n, by_columns & 2 == 2, 2);
                compared += compare_epilogues(&ops, &a, &b, [batch, m, n]);
            }
        }
    }
    assert!(compared > 300, "{compared}");
    // The library is no candidate where it may not compute: integers of 32 bits have no product at all.
    let wide = tensor(&ops, &[2, 2], DType::I32, 1);
    assert!(ops.gemm_kernels(&wide, &wide, &Gemm::default()).is_err());
}

/// Compares the library's candidates with a kernel of the crate for each epilogue; how many were compared.
fn compare_epilogues(ops: &Ops, a: &Tensor, b: &Tensor, shape: [usize; 3]) -> usize {
    let natural = match a.dtype() {
        DType::I8 => DType::I32,
        dtype => dtype,
    };
    let extra = |dtype, seed| tensor(ops, &shape, dtype, seed);
    let (c, residual) = (extra(natural, 3), extra(natural, 4));
    let (wide_c, bias) = (extra(DType::F32, 5), tensor(ops, &shape[2..], natural, 6));
    let plain = Gemm::default();
    let mut specs = vec![
        plain.clone(),
        Gemm {
            out: Some(DType::F32),
            alpha: 2.0,
            ..plain.clone()
        },
        Gemm {
            out: Some(DType::F32),
            c: Some(&wide_c),
            beta: 3.0,
            ..plain.clone()
        },
        Gemm {
            activation: Activation::Relu,
            bias: Some(&bias),
            ..plain.clone()
        },
        Gemm {
            c: Some(&c),
            beta: 1.0,
            residual: Some(&residual),
            ..plain.clone()
        },
        Gemm {
            precision: Precision::Tf32,
            ..plain.clone()
        },
    ];
    if natural == DType::F32 {
        specs.push(Gemm {
            activation: Activation::Gelu,
            scale: 0.5,
            ..plain
        });
    }
    let mut compared = 0;
    for spec in specs {
        let kernels = ops.gemm_kernels(a, b, &spec).unwrap();
        let libraries = kernels.iter().filter(|name| name.starts_with("cublaslt"));
        let libraries: Vec<&String> = libraries.collect();
        assert!(!libraries.is_empty(), "{kernels:?}");
        let want = ops
            .values(&ops.gemm_by(&kernels[0], a, b, &spec).unwrap())
            .unwrap();
        for name in libraries {
            let got = ops
                .values(&ops.gemm_by(name, a, b, &spec).unwrap())
                .unwrap();
            assert_eq!(got, want, "{name} {:?} {:?} {spec:?}", a.dtype(), a.shape());
            compared += 1;
        }
    }
    compared
}
