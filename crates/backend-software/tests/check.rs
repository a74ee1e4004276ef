//! Seeded mistakes (`tests/check`): every one is found, at its line; what is right is not reported.
//!
//! The `.cu` files say what is expected of each kernel, and the `.ptx` files beside them are what nvcc made of them.

use std::sync::{Arc, Mutex};

use mica_backend_software::{Config, OutputKind, OutputSink, SoftwareGpu};
use mica_check::{CheckSettings, Finding, Record, Severity, Tools};
use mica_gpu::{ContextId, Copy3d, DevicePtr, Gpu, HostSpan, Launch, ModuleOptions, Place};

/// Integers in each of the three buffers that a kernel gets.
const N: usize = 256;

/// A kernel and what is expected of it.
struct Case {
    kernel: String,
    expect: String,
    grid: u32,
    block: u32,
    shared: u32,
    /// Lines that a finding may name.
    lines: Vec<u32>,
}

fn cases(source: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let (mut expect, mut launch) = (None, (1, 64, 0));
    for (number, line) in (1u32..).zip(source.lines()) {
        if let Some(text) = line.strip_prefix("// expect: ") {
            expect = Some(text.trim().to_owned());
            launch = (1, 64, 0);
        }
        if let Some(text) = line.strip_prefix("// launch: ") {
            let mut words = text.split_whitespace();
            while let (Some(name), Some(value)) = (words.next(), words.next()) {
                let value = value.parse().unwrap();
                match name {
                    "grid" => launch.0 = value,
                    "block" => launch.1 = value,
                    "shared" => launch.2 = value,
                    other => panic!("line {number}: {other}"),
                }
            }
        }
        if let Some(rest) = line.strip_prefix("KERNEL ") {
            let (kernel, _) = rest.split_once('(').unwrap();
            cases.push(Case {
                kernel: kernel.to_owned(),
                expect: expect.take().expect("a kernel without an expectation"),
                grid: launch.0,
                block: launch.1,
                shared: launch.2,
                lines: Vec::new(),
            });
        }
        if line.contains("// <-") {
            cases.last_mut().unwrap().lines.push(number);
        }
    }
    cases
}

struct Rig {
    gpu: SoftwareGpu,
    context: ContextId,
    told: Arc<Mutex<String>>,
}

impl Rig {
    fn new(tools: &str) -> Self {
        let told = Arc::new(Mutex::new(String::new()));
        let sink = Arc::clone(&told);
        let output: OutputSink = Arc::new(move |kind, text: &[u8]| {
            if kind == OutputKind::Check {
                sink.lock()
                    .unwrap()
                    .push_str(std::str::from_utf8(text).unwrap());
            }
        });
        let tools: Tools = tools.parse().unwrap();
        let config = Config {
            memory_bytes: Some(64 << 20),
            workers: Some(2),
            output: Some(output),
            check: Some(CheckSettings {
                tools,
                schedule: None,
            }),
            ..Config::default()
        };
        let gpu = SoftwareGpu::new(config).unwrap();
        let context = gpu.context_create().unwrap();
        Self { gpu, context, told }
    }

    fn fill(&self, at: DevicePtr) {
        let mut words: Vec<u32> = (0..N as u32).collect();
        let bytes = 4 * N as u64;
        // SAFETY: the words outlive the synchronization below.
        let host = Place::Host(unsafe { HostSpan::new(words.as_mut_ptr().cast(), bytes) });
        let stream = self.gpu.default_stream(self.context).unwrap();
        let copy = Copy3d::linear(Place::Device(at), host, bytes);
        self.gpu.copy(stream, &copy).unwrap();
        self.gpu.stream_synchronize(stream).unwrap();
    }

    /// Runs one kernel in a fresh context and gives what was found.
    fn run(&self, ptx: &str, case: &Case) -> Vec<Finding> {
        let bytes = 4 * N as u64;
        let (gpu, context) = (&self.gpu, self.context);
        let module = gpu
            .module_load(context, ptx.as_bytes(), &ModuleOptions::default())
            .unwrap();
        let [a, b, freed] = [(); 3].map(|()| gpu.memory_alloc(context, bytes).unwrap());
        self.fill(a);
        self.fill(freed);
        gpu.memory_free(context, freed).unwrap();
        let info = gpu.module_info(module).unwrap();
        let kernel = info.kernels.iter().position(|k| k.name == case.kernel);
        let mut params = Vec::new();
        for pointer in [a, b, freed] {
            params.extend(pointer.0.to_le_bytes());
        }
        params.extend((N as u32).to_le_bytes());
        let launch = Launch {
            module,
            kernel: kernel.unwrap() as u32,
            grid: [case.grid, 1, 1],
            block: [case.block, 1, 1],
            dynamic_shared: case.shared,
            cooperative: false,
            params: &params,
        };
        let stream = gpu.default_stream(context).unwrap();
        gpu.launch(stream, &launch).unwrap();
        // Faults are errors of the program; findings say the rest.
        let _ = gpu.context_synchronize(context);
        let told = std::mem::take(&mut *self.told.lock().unwrap());
        let records = told.lines().map(|line| serde_json::from_str(line).unwrap());
        let finding = |record| match record {
            Record::Finding(finding) => Some(finding),
            _ => None,
        };
        records.filter_map(finding).collect()
    }
}

/// What is wrong with the findings of a kernel; nothing if they are as expected.
fn judge(case: &Case, found: &[Finding], file: &str) -> Option<String> {
    let named: Vec<String> = found
        .iter()
        .map(|f| format!("{}/{}", f.tool.name(), f.kind))
        .collect();
    let say = |what: &str| Some(format!("{file} {}: {what}; found {found:#?}", case.kernel));
    if case.expect == "none" {
        return (!found.is_empty()).then(|| say("reported though it is right"))?;
    }
    let (tool, kind) = case.expect.split_once('/').unwrap();
    let is_wanted = |name: &&String| match kind {
        "*" => name.starts_with(&format!("{tool}/")),
        _ => **name == case.expect,
    };
    if named.iter().find(is_wanted).is_none() {
        return say(&format!("{} is missing", case.expect));
    }
    // A read that races with the first write of its memory may come before that write.
    let follows = |name: &String| tool == "racecheck" && name.starts_with("initcheck/");
    let other = |name: &&String| !name.starts_with(tool) && !follows(name);
    if let Some(other) = named.iter().find(other) {
        return say(&format!("{other} is reported too"));
    }
    for party in found.iter().flat_map(|f| &f.parties) {
        let in_file = party.place.file.as_deref() == Some(file);
        let is_marked = in_file && case.lines.contains(&party.place.line);
        if !is_marked && !case.lines.is_empty() {
            return say(&format!(
                "line {} is not one of {:?}",
                party.place.line, case.lines
            ));
        }
    }
    let unnamed = found.iter().any(|f| f.kernel != case.kernel);
    if unnamed || found.iter().any(|f| f.severity == Severity::Note) {
        return say("a finding of another kernel, or a note");
    }
    None
}

fn check_all(file: &str, source: &str, ptx: &str) {
    let mut wrong = Vec::new();
    for case in cases(source) {
        // A device each: a fault ends its context.
        let found = Rig::new("all").run(ptx, &case);
        if let Some(text) = judge(&case, &found, file) {
            wrong.push(text);
            continue;
        }
        let again = Rig::new("all").run(ptx, &case);
        let shape = |all: &[Finding]| {
            let all = all
                .iter()
                .map(|f| (f.kind.clone(), f.parties.clone(), f.count));
            all.collect::<Vec<_>>()
        };
        if shape(&found) != shape(&again) {
            wrong.push(format!(
                "{file} {}: another report the second time",
                case.kernel
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn wrong_addresses_and_unwritten_memory_are_found() {
    let (source, ptx) = (
        include_str!("../../../tests/check/memory.cu"),
        include_str!("../../../tests/check/memory.ptx"),
    );
    check_all("memory.cu", source, ptx);
}

#[test]
fn races_are_found() {
    let (source, ptx) = (
        include_str!("../../../tests/check/races.cu"),
        include_str!("../../../tests/check/races.ptx"),
    );
    check_all("races.cu", source, ptx);
}

#[test]
fn wrong_synchronization_is_found() {
    let (source, ptx) = (
        include_str!("../../../tests/check/sync.cu"),
        include_str!("../../../tests/check/sync.ptx"),
    );
    check_all("sync.cu", source, ptx);
}

#[test]
fn the_suite_has_at_least_sixty_mistakes() {
    let sources = [
        include_str!("../../../tests/check/memory.cu"),
        include_str!("../../../tests/check/races.cu"),
        include_str!("../../../tests/check/sync.cu"),
    ];
    let all: Vec<Case> = sources.into_iter().flat_map(cases).collect();
    let mistakes = all.iter().filter(|case| case.expect != "none").count();
    assert!(mistakes >= 60, "{mistakes}");
}

/// With memcheck alone fewer accesses are told to the monitor: what it finds is the same.
#[test]
fn memcheck_alone_finds_every_wrong_address() {
    let (source, ptx) = (
        include_str!("../../../tests/check/memory.cu"),
        include_str!("../../../tests/check/memory.ptx"),
    );
    let mut looked_at = 0;
    for case in cases(source) {
        if case.expect.starts_with("memcheck/") || case.expect == "none" {
            looked_at += 1;
            let found = Rig::new("memcheck").run(ptx, &case);
            assert_eq!(judge(&case, &found, "memory.cu"), None);
        }
    }
    assert!(looked_at > 20, "{looked_at}");
}

/// Arrays of one size, next to each other in step: each is remembered, and an access behind one of them is found.
#[test]
fn many_arrays_of_one_size_do_not_hide_an_access_behind_one() {
    let source = "// expect: none\nKERNEL walk(";
    let case = &cases(source)[0];
    let body = |last: u32| {
        format!(
            ".version 7.0\n.target sm_75\n.address_size 64\n\
             .visible .entry walk(.param .u64 a, .param .u64 b, .param .u64 f, .param .u32 n)\n{{\n\
             .reg .b64 %d<6>; .reg .b32 %r<4>;\n\
             ld.param.u64 %d1, [a];\nld.param.u64 %d2, [b];\nmov.u32 %r1, %tid.x;\n\
             mul.wide.u32 %d3, %r1, 4;\nadd.u64 %d4, %d1, %d3;\nadd.u64 %d5, %d2, %d3;\n\
             ld.global.u32 %r2, [%d4];\nst.global.u32 [%d5], %r2;\n\
             ld.global.u32 %r3, [%d4+{last}];\nst.global.u32 [%d5], %r3;\nret;\n}}\n"
        )
    };
    let found = |last| Rig::new("memcheck").run(&body(last), case);
    assert_eq!(found(4 * (N as u32 - 64)), []);
    let wrong = found(4 * N as u32);
    assert!(wrong.iter().any(|f| f.kind == "out-of-bounds"), "{wrong:?}");
}

/// A kernel that loads and stores one word; `address` leaves the load's address in `%d4`, `%d1` being the array and
/// `%r1` the thread.
fn one_load(address: &str) -> String {
    format!(
        ".version 7.0\n.target sm_75\n.address_size 64\n\
         .visible .entry walk(.param .u64 a, .param .u64 b, .param .u64 f, .param .u32 n)\n{{\n\
         .reg .b64 %d<8>; .reg .b32 %r<8>; .reg .pred %p;\n\
         ld.param.u64 %d1, [a];\nld.param.u64 %d2, [b];\nmov.u32 %r1, %tid.x;\n\
         mul.wide.u32 %d3, %r1, 4;\nadd.u64 %d5, %d2, %d3;\n{address}\n\
         ld.global.u32 %r2, [%d4];\nst.global.u32 [%d5], %r2;\nret;\n}}\n"
    )
}

/// Vector code compares the addresses of a whole group with live memory: the lane that leaves it is named, whichever
/// it is, with memcheck alone as with all tools.
#[test]
fn memcheck_names_the_lane_of_a_group_that_leaves_its_allocation() {
    let case = &cases("// expect: none\nKERNEL walk(")[0];
    for bad in 0..64 {
        let ptx = one_load(&format!(
            "setp.eq.u32 %p, %r1, {bad};\nselp.u32 %r3, {N}, %r1, %p;\n\
             mul.wide.u32 %d6, %r3, 4;\nadd.u64 %d4, %d1, %d6;"
        ));
        for tools in ["memcheck", "all"] {
            let found = Rig::new(tools).run(&ptx, case);
            let wrong: Vec<_> = found.iter().filter(|f| f.kind == "out-of-bounds").collect();
            let [wrong] = wrong[..] else {
                panic!("thread {bad} with {tools}: {found:?}");
            };
            assert_eq!(wrong.parties[0].thread, [bad, 0, 0], "{tools}");
        }
    }
}

/// The ends of a row of addresses are compared: rows that begin before an allocation or end behind it are found, in
/// either direction, and those that touch its first and last word are not.
#[test]
fn memcheck_finds_rows_that_cross_the_end_of_an_allocation() {
    let case = &cases("// expect: none\nKERNEL walk(")[0];
    let row = |stride: i32, offset: i32| {
        one_load(&format!(
            "mul.wide.s32 %d6, %r1, {stride};\nadd.s64 %d6, %d6, {offset};\nadd.s64 %d4, %d1, %d6;"
        ))
    };
    let last = 4 * N as i32 - 4;
    for (stride, offset, thread) in [
        (4, 0, None),
        (4, last - 4 * 63, None),
        (4, last - 4 * 62, Some(63)),
        (4, last - 4 * 30, Some(31)),
        (4, -4, Some(0)),
        (16, 0, None),
        (16, 16, Some(63)),
        (-4, 4 * 63, None),
        (-4, 4 * 62, Some(63)),
        (-4, last + 4, Some(0)),
        (0, last, None),
    ] {
        let found = Rig::new("memcheck").run(&row(stride, offset), case);
        let named: Vec<u32> = (found.iter())
            .filter(|f| f.kind == "out-of-bounds")
            .map(|f| f.parties[0].thread[0])
            .collect();
        assert_eq!(
            named,
            Vec::from_iter(thread),
            "stride {stride}, offset {offset}"
        );
    }
}
