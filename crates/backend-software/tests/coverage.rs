//! Which lines kernels reach (`tests/coverage`): the report is exactly what is expected, from both engines.

use std::path::PathBuf;
use std::sync::Arc;

use mica_backend_software::{Config, Engine, SoftwareGpu};
use mica_coverage::{CoverageLog, Record, Report, lcov};
use mica_gpu::{Gpu, Launch, ModuleOptions};

const PTX: &str = include_str!("../../../tests/coverage/half.ptx");
const INT: &str = "_Z6shapedIiEvPT_i";

/// Launches kernels in one process, and adds what they reached to a report. Each launch is a kernel and its `n`.
fn run(report: &mut Report, engine: Engine, process: u32, ptx: &str, launches: &[(&str, u32)]) {
    let log = Arc::new(CoverageLog::default());
    let config = Config {
        memory_bytes: Some(64 << 20),
        workers: Some(2),
        engine,
        coverage: Some(Arc::clone(&log)),
        ..Config::default()
    };
    let gpu = SoftwareGpu::new(config).unwrap();
    let context = gpu.context_create().unwrap();
    let module = gpu
        .module_load(context, ptx.as_bytes(), &ModuleOptions::default())
        .unwrap();
    let out = gpu.memory_alloc(context, 4096).unwrap();
    let info = gpu.module_info(module).unwrap();
    let stream = gpu.default_stream(context).unwrap();
    for (name, n) in launches {
        let kernel = info.kernels.iter().position(|k| k.name == *name);
        let mut params = out.0.to_le_bytes().to_vec();
        params.extend(n.to_le_bytes());
        let launch = Launch {
            module,
            kernel: kernel.unwrap() as u32,
            grid: [2, 1, 1],
            block: [32, 1, 1],
            dynamic_shared: 0,
            cooperative: false,
            params: &params,
        };
        gpu.launch(stream, &launch).unwrap();
    }
    gpu.context_synchronize(context).unwrap();
    while log.is_waiting() {
        let lines = log.take(256);
        for line in lines.split(|byte| *byte == b'\n').filter(|l| !l.is_empty()) {
            let record: Record = serde_json::from_slice(line).unwrap();
            report.take(process, record, |name| name.to_owned());
        }
    }
}

fn report(engine: Engine, ptx: &str, processes: &[&[(&str, u32)]]) -> String {
    let mut report = Report::default();
    for (process, launches) in (1..).zip(processes) {
        run(&mut report, engine, process, ptx, launches);
    }
    assert_eq!((report.lost, report.unreadable), (0, 0));
    lcov::write(&report)
}

/// Compares with a file of `tests/coverage`; both engines must agree.
fn expect(name: &str, ptx: &str, processes: &[&[(&str, u32)]]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/coverage");
    let path = path.join(name);
    let native = report(Engine::Jit, ptx, processes);
    let interpreted = report(Engine::Interpreter, ptx, processes);
    assert_eq!(native, interpreted, "{name}: the engines disagree");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &native).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert_eq!(native, expected, "{name}");
}

#[test]
fn one_branch_of_two_and_kernels_that_are_never_launched() {
    expect(
        "half.lcov",
        PTX,
        &[&[("half", 3), ("also", 9), ("also", 9), (INT, 9)]],
    );
}

#[test]
fn a_line_is_reached_if_any_process_and_any_copy_reaches_it() {
    expect(
        "processes.lcov",
        PTX,
        &[
            &[("half", 3)],
            &[("half", 9), (INT, 9)],
            &[("half", 9), (INT, u32::MAX)],
        ],
    );
}

#[test]
fn a_module_that_launches_nothing_is_reported_as_not_reached() {
    let told = report(Engine::Jit, PTX, &[&[]]);
    assert!(
        told.contains("LH:0\n") && told.contains("FNDA:0,half\n"),
        "{told}"
    );
}

/// Without `.loc` the lines are those of the text: each branch, guard and call is seen by itself.
#[test]
fn without_lines_of_the_source_those_of_the_text_are_told() {
    let text: Vec<&str> = PTX.lines().filter(|l| !l.contains("\t.loc\t")).collect();
    let text = text.join("\n");
    let launches: &[&[(&str, u32)]] = &[&[("half", 3), ("also", 2), ("also", 0)]];
    let native = report(Engine::Jit, &text, launches);
    assert_eq!(native, report(Engine::Interpreter, &text, launches));
    let line_of = |wanted: &str| {
        let at = text.lines().position(|line| line.trim() == wanted).unwrap();
        at + 1
    };
    let count = |line: usize| {
        let found = native
            .lines()
            .find(|l| l.starts_with(&format!("DA:{line},")));
        found.map(|l| l.rsplit(',').next().unwrap().to_owned())
    };
    // The else branch of `half`, and the call that is in the other one.
    assert_eq!(
        count(line_of("mul.lo.s32 \t%r6, %r1, 3;")).as_deref(),
        Some("1")
    );
    assert_eq!(
        count(line_of("st.param.b32 \t[param0+0], %r1;")).as_deref(),
        Some("0")
    );
    // A guarded branch counts where it is decided.
    assert_eq!(
        count(line_of("@%p1 bra \t$L__BB1_2;")).as_deref(),
        Some("1")
    );
    let file = native.lines().find_map(|l| l.strip_prefix("SF:")).unwrap();
    assert!(file.len() == 20 && file.ends_with(".ptx"), "{file}");
}

/// Threads of one warp go both ways, which vector code leaves to scalar code; a guarded store runs for none.
#[test]
fn divergent_and_guarded_code_is_seen() {
    let ptx = "\
.version 7.0
.target sm_75
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 n)
{
.reg .pred %p<4>; .reg .b32 %r<4>; .reg .b64 %d<4>;
ld.param.u64 %d1, [out];
ld.param.u32 %r1, [n];
mov.u32 %r2, %tid.x;
mul.wide.u32 %d2, %r2, 4;
add.u64 %d3, %d1, %d2;
setp.lt.u32 %p1, %r2, 5;
@%p1 bra LOW;
st.global.u32 [%d3], %r1;
bra END;
LOW:
st.global.u32 [%d3], %r2;
END:
setp.gt.u32 %p2, %r2, 100;
@%p2 st.global.u32 [%d3], 7;
@!%p2 st.global.u32 [%d3], 8;
setp.eq.u32 %p3, %r1, 77;
@%p3 bra NEVER;
ret;
NEVER:
trap;
}
";
    for engine in [Engine::Jit, Engine::Interpreter] {
        let told = report(engine, ptx, &[&[("k", 1)]]);
        let missed: Vec<&str> = told
            .lines()
            .filter_map(|l| l.strip_prefix("DA:")?.strip_suffix(",0"))
            .collect();
        assert_eq!(missed, ["20", "26"], "{engine:?}: {told}");
    }
}
