//! What loading a module takes, counted by the allocator, against what the session is charged for it.

#[path = "../../fatbin/tests/counting/mod.rs"]
mod counting;

use std::sync::Arc;

use counting::{ALONE, counted};
use mica_backend_software::{Config, SoftwareGpu};
use mica_cuda_abi::CuResult;
use mica_gpu::{ContextId, Gpu, Launch, ModuleId, ModuleOptions, SessionBudget};

const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

fn kernel(body: &str) -> String {
    format!("{HEAD}.visible .entry k(.param .u64 p)\n{{\n{body}ret;\n}}\n")
}

/// Texts that make much of little, each of about so many bytes.
fn texts(bytes: usize) -> Vec<(&'static str, String)> {
    let repeat = |piece: &str| piece.repeat(bytes / piece.len());
    let numbered = |make: &dyn Fn(usize) -> String| {
        let mut text = String::new();
        for n in 0.. {
            text += &make(n);
            if text.len() >= bytes {
                break;
            }
        }
        text
    };
    vec![
        (
            "instructions",
            kernel(&format!(".reg .b32 %r;\n{}", repeat("add.s32 %r,%r,%r;"))),
        ),
        ("short instructions", kernel(&repeat("ret;"))),
        ("membars", kernel(&repeat("bar.sync 0;"))),
        ("labels", kernel(&numbered(&|n| format!("L{n}:")))),
        (
            "branches",
            kernel(&numbered(&|n| format!("L{n}:bra L{n};"))),
        ),
        (
            "registers",
            kernel(&numbered(&|n| format!(".reg .b32 r{n};"))),
        ),
        (
            "register lists",
            kernel(&format!(
                ".reg .b32 {}last;\n",
                numbered(&|n| format!("r{n},"))
            )),
        ),
        ("scopes", kernel(&repeat("{}"))),
        ("comments", kernel(&format!("/*{}*/", repeat("x")))),
        ("spaces", kernel(&repeat(" "))),
        ("locations", kernel(&repeat(".loc 1 1 1\n"))),
        (
            "initializer",
            format!(
                "{HEAD}.global .b8 a[{}] = {{{}0}};\n",
                bytes / 2,
                repeat("0,")
            ),
        ),
        (
            "globals",
            format!("{HEAD}{}", numbered(&|n| format!(".global .b8 g{n};\n"))),
        ),
        (
            "kernels",
            format!(
                "{HEAD}{}",
                numbered(&|n| format!(".entry k{n}(){{ret;}}\n"))
            ),
        ),
        (
            "functions",
            format!("{HEAD}{}", numbered(&|n| format!(".func f{n}(){{ret;}}\n"))),
        ),
        (
            "parameters",
            format!(
                "{HEAD}.entry k({}.param .u64 last){{ret;}}\n",
                numbered(&|n| format!(".param .u8 p{n},\n"))
            ),
        ),
        (
            "vector operands",
            kernel(&format!(
                ".reg .b32 %r;\n.reg .b64 %d;\n{}",
                repeat("st.v4.u32 [%d],{%r,%r,%r,%r};")
            )),
        ),
        ("wild bytes", format!("{HEAD}{}", repeat("\u{1}"))),
        ("words", format!("{HEAD}{}", repeat("a "))),
    ]
}

/// A device that charges to a budget, with a context.
fn device(limit_bytes: u64) -> (SoftwareGpu, ContextId, Arc<SessionBudget>) {
    let config = Config {
        memory_bytes: Some(256 << 20),
        arena_bytes: Some(8 << 30),
        workers: Some(1),
        ..Config::default()
    };
    let gpu = SoftwareGpu::new(config).unwrap();
    let budget = Arc::new(SessionBudget::new(limit_bytes));
    gpu.attach_budget(&budget);
    let context = gpu.context_create().unwrap();
    (gpu, context, budget)
}

fn launch(gpu: &SoftwareGpu, context: ContextId, module: ModuleId) -> mica_gpu::Result<()> {
    let stream = gpu.default_stream(context)?;
    let launch = Launch {
        module,
        kernel: 0,
        grid: [1; 3],
        block: [1; 3],
        dynamic_shared: 0,
        cooperative: false,
        params: &[0; 8],
    };
    gpu.launch(stream, &launch)
}

#[test]
fn modules_are_charged_for_what_reading_and_compiling_them_takes() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut wrong = Vec::new();
    for bytes in [20_000, 300_000] {
        for (name, text) in texts(bytes) {
            let (gpu, context, budget) = device(16 << 30);
            let options = ModuleOptions::default();
            let (loaded, peak, kept) =
                counted(|| gpu.module_load(context, text.as_bytes(), &options));
            let (charged, held) = (budget.peak_bytes(), budget.used_bytes());
            if peak > charged || kept > held && loaded.is_ok() {
                wrong.push(format!(
                    "{name}: {peak} and {kept} bytes, {charged} and {held} charged"
                ));
            }
            let Ok(module) = loaded else { continue };
            if bytes > 20_000 || !text.contains(".entry k(.param .u64 p)") {
                continue;
            }
            let ((), peak, _) = counted(|| drop(launch(&gpu, context, module)));
            let charged = budget.peak_bytes() - held;
            // What a device takes for its first launch is its own.
            let own = 4 << 20;
            if peak > charged + own {
                wrong.push(format!(
                    "{name}: {peak} bytes to compile, {charged} charged"
                ));
            }
            gpu.context_destroy(context).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_small_image_that_grows_is_refused_before_it_does() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let limit = 1 << 30;
    let (gpu, context, budget) = device(limit);
    let image = compressed("ret;", 200 << 20);
    assert!(image.len() < 1 << 20, "{} bytes", image.len());
    let options = ModuleOptions::default();
    let (loaded, peak, _) = counted(|| gpu.module_load(context, &image, &options));
    assert_eq!(loaded.unwrap_err().code, CuResult::OutOfMemory);
    assert!(peak < limit, "{peak} bytes");
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn modules_that_were_unloaded_are_kept_within_a_bound() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let (gpu, context, budget) = device(512 << 20);
    for round in 0..12 {
        let text = format!("// {round}\n{}", texts(100_000)[1].1);
        let module = gpu.module_load(context, text.as_bytes(), &ModuleOptions::default());
        gpu.module_unload(module.unwrap()).unwrap();
        assert!(budget.used_bytes() <= 64 << 20, "{}", budget.used_bytes());
    }
    assert!(budget.used_bytes() > 0, "some are kept");
    // What is kept makes room for what is wanted.
    let (gpu, context, budget) = device(45 << 20);
    for round in 0..12 {
        let text = format!("// {round}\n{}", texts(100_000)[1].1);
        let module = gpu.module_load(context, text.as_bytes(), &ModuleOptions::default());
        gpu.module_unload(module.unwrap()).unwrap();
    }
    assert!(budget.peak_bytes() <= 45 << 20);
}

/// A fatbin with PTX that says `piece` again and again, as LZ4 packs it.
fn compressed(piece: &str, bytes: usize) -> Vec<u8> {
    let (head, tail) = (kernel(""), "ret;ret;}\n");
    let head = &head[..head.len() - "ret;\n}\n".len()];
    let matched = bytes - head.len() - piece.len() - tail.len();
    let mut block = Vec::new();
    let long = |block: &mut Vec<u8>, mut left: usize| {
        while left >= 255 {
            block.push(255);
            left -= 255;
        }
        block.push(left as u8);
    };
    let literals = [head.as_bytes(), piece.as_bytes()].concat();
    block.push(0xff);
    long(&mut block, literals.len() - 15);
    block.extend(&literals);
    block.extend((piece.len() as u16).to_le_bytes());
    long(&mut block, matched - 4 - 15);
    block.push((tail.len() as u8) << 4);
    block.extend(tail.as_bytes());
    let mut entry = vec![0; 64];
    entry[..2].copy_from_slice(&1_u16.to_le_bytes());
    entry[4..8].copy_from_slice(&64_u32.to_le_bytes());
    entry[8..12].copy_from_slice(&(block.len() as u32).to_le_bytes());
    entry[16..20].copy_from_slice(&(block.len() as u32).to_le_bytes());
    entry[28..32].copy_from_slice(&80_u32.to_le_bytes());
    entry[40..48].copy_from_slice(&0x2000_u64.to_le_bytes());
    entry[56..64].copy_from_slice(&(bytes as u64).to_le_bytes());
    let body = [entry, block].concat();
    let mut image = 0xba55_ed50_u32.to_le_bytes().to_vec();
    image.extend([1, 0, 16, 0]);
    image.extend((body.len() as u64).to_le_bytes());
    image.extend(body);
    image
}
