//! Kernels that launch kernels: order, limits, and what a hostile kernel may try.

use std::time::{Duration, Instant};

use mica_backend_software::{Config, Engine, SoftwareGpu};
use mica_check::CheckSettings;
use mica_cuda_abi::CuResult;
use mica_gpu::{
    ContextId, Copy3d, DevicePtr, Gpu, HostSpan, Launch, ModuleId, ModuleOptions, Place,
};
use mica_gpu::{Result, StreamId};

const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64
.extern .func (.param .b64 r) __cudaCDP2GetParameterBufferV2(.param .b64 k, .param .align 4 .b8 g[12], .param .align 4 .b8 b[12], .param .b32 s);
.extern .func (.param .b32 r) __cudaCDP2LaunchDeviceV2(.param .b64 p, .param .b64 s);
";

/// `p[*p[0]++] = value`, by one thread of each block.
const NOTE: &str = ".visible .entry note(.param .u64 p, .param .u32 value) {
.reg .b32 %r<4>; .reg .b64 %d<4>;
ld.param.u64 %d1, [p]; ld.param.u32 %r1, [value];
atom.global.add.u32 %r2, [%d1], 1; add.u32 %r2, %r2, 1;
mul.wide.u32 %d2, %r2, 4; add.u64 %d2, %d1, %d2; st.global.u32 [%d2], %r1; ret; }
";

/// Launches `kernel(p, value)` with so many blocks on a stream; the code goes to `%r9`.
fn launch(kernel: &str, value: &str, blocks: &str, stream: u64) -> String {
    format!(
        "{{ .param .b64 a; .param .align 4 .b8 g[12]; .param .align 4 .b8 t[12]; .param .b32 s; .param .b64 q;
mov.u64 %d5, {kernel}; st.param.b64 [a], %d5;
st.param.b32 [g], {blocks}; st.param.b32 [g+4], 1; st.param.b32 [g+8], 1;
st.param.b32 [t], 1; st.param.b32 [t+4], 1; st.param.b32 [t+8], 1; st.param.b32 [s], 0;
call (q), __cudaCDP2GetParameterBufferV2, (a, g, t, s); ld.param.b64 %d6, [q]; }}
st.u64 [%d6], %d1; mov.u32 %r8, {value}; st.u32 [%d6+8], %r8;
{{ .param .b64 a; .param .b64 s; .param .b32 q; st.param.b64 [a], %d6; st.param.b64 [s], {stream};
call (q), __cudaCDP2LaunchDeviceV2, (a, s); ld.param.b32 %r9, [q]; }}
"
    )
}

fn parent(name: &str, body: &str) -> String {
    format!(
        ".visible .entry {name}(.param .u64 p, .param .u32 value) {{
.reg .b32 %r<12>; .reg .b64 %d<12>; .reg .pred %p<3>;
ld.param.u64 %d1, [p]; ld.param.u32 %r1, [value];
{body}
ret; }}
"
    )
}

struct Device {
    gpu: SoftwareGpu,
    context: ContextId,
    stream: StreamId,
    module: ModuleId,
    words: DevicePtr,
}

const WORDS: usize = 64;

impl Device {
    fn config(engine: Engine) -> Config {
        Config {
            memory_bytes: Some(256 << 20),
            workers: Some(2),
            engine,
            ..Config::default()
        }
    }

    fn new(engine: Engine, text: &str) -> Result<Self> {
        Self::with(Self::config(engine), text)
    }

    fn with(config: Config, text: &str) -> Result<Self> {
        let gpu = SoftwareGpu::new(config)?;
        let context = gpu.context_create()?;
        let stream = gpu.default_stream(context)?;
        let text = format!("{HEAD}{text}");
        let module = gpu.module_load(context, text.as_bytes(), &ModuleOptions::default())?;
        let words = gpu.memory_alloc(context, 4 * WORDS as u64)?;
        Ok(Self {
            gpu,
            context,
            stream,
            module,
            words,
        })
    }

    fn start(&self, kernel: &str, value: u32) -> Result<()> {
        let info = self.gpu.module_info(self.module)?;
        let index = info.kernels.iter().position(|k| k.name == kernel);
        let mut params = self.words.0.to_le_bytes().to_vec();
        params.extend(value.to_le_bytes());
        let launch = Launch {
            module: self.module,
            kernel: index.expect("a kernel") as u32,
            grid: [1; 3],
            block: [1; 3],
            dynamic_shared: 0,
            cooperative: false,
            params: &params,
        };
        self.gpu.launch(self.stream, &launch)
    }

    /// What is in memory once the stream is done.
    fn words(&self) -> Result<Vec<u32>> {
        let mut words = vec![0u32; WORDS];
        let bytes = 4 * WORDS as u64;
        // SAFETY: the words outlive the synchronization below.
        let host = Place::Host(unsafe { HostSpan::new(words.as_mut_ptr().cast(), bytes) });
        let copy = Copy3d::linear(host, Place::Device(self.words), bytes);
        self.gpu.copy(self.stream, &copy)?;
        self.gpu.stream_synchronize(self.stream)?;
        Ok(words)
    }
}

#[test]
fn children_run_in_order_and_before_what_follows_their_parent() {
    let child = parent(
        "child",
        &(launch("note", "%r1", "2", 0) + &launch("note", "77", "1", 3)),
    );
    let body = launch("note", "1", "1", 3)
        + &launch("child", "10", "1", 0)
        + &launch("note", "20", "1", 4);
    let text = format!("{NOTE}{child}{}", parent("top", &body));
    for engine in [Engine::Interpreter, Engine::Jit] {
        let d = Device::new(engine, &text).unwrap();
        d.start("top", 0).unwrap();
        d.start("note", 99).unwrap();
        let words = d.words().unwrap();
        // The child's blocks, its tail, its sibling, the tail of the first, then the stream's next launch.
        assert_eq!(words[..7], [6, 10, 10, 77, 20, 1, 99], "{engine:?}");
    }
}

#[test]
fn a_checked_kernel_launches_no_cluster() {
    // As the host is answered that launches it.
    let paired = NOTE
        .replace("note", "pair")
        .replace("value) {", "value) .reqnctapercluster 2, 1, 1 {");
    let body = launch("pair", "5", "2", 0) + "st.global.u32 [%d1+16], %r9;\n";
    let text = format!("{paired}{}", parent("top", &body));
    let text = text.replace("sm_80", "sm_90");
    for check in [None, Some(CheckSettings::default())] {
        let config = Config {
            check,
            ..Device::config(Engine::Jit)
        };
        let d = Device::with(config, &text).unwrap();
        d.start("top", 0).unwrap();
        let words = d.words().unwrap();
        match check {
            None => assert_eq!((&words[..3], words[4]), (&[2, 5, 5][..], 0)),
            Some(_) => assert_eq!((words[0], words[4]), (0, CuResult::NotSupported as u32)),
        }
    }
}

#[test]
fn forged_buffers_and_impossible_shapes_are_refused() {
    let forged = |address: &str| {
        format!(
            "mov.u64 %d6, {address};
{{ .param .b64 a; .param .b64 s; .param .b32 q; st.param.b64 [a], %d6; st.param.b64 [s], 0;
call (q), __cudaCDP2LaunchDeviceV2, (a, s); ld.param.b32 %r9, [q]; }}
setp.eq.u32 %p1, %r9, 0; @%p1 st.global.u32 [%d1+4], %r10;"
        )
    };
    let mut body = String::from("mov.u32 %r10, 1;\n");
    for address in [
        "0",
        "8",
        "64",
        "0xffffffffffffffff",
        "0x7fffffffff00",
        "%d1",
    ] {
        body += &forged(address);
    }
    // No blocks, and too many.
    for blocks in ["0", "0x80000000"] {
        body += &launch("note", "5", blocks, 0);
        body += "setp.eq.u32 %p1, %r9, 0; @%p1 st.global.u32 [%d1+8], %r10;\n";
    }
    body += "st.global.u32 [%d1+12], %r10;";
    let text = format!("{NOTE}{}", parent("top", &body));
    let d = Device::new(Engine::Jit, &text).unwrap();
    d.start("top", 0).unwrap();
    let words = d.words().unwrap();
    assert_eq!(words[..4], [0, 0, 0, 1]);
}

#[test]
fn launches_that_wait_are_bounded() {
    // One launch for each turn of a loop, far more than may wait.
    let body = format!(
        "mov.u32 %r2, 0; mov.u32 %r3, 0;
again:
{}
setp.eq.u32 %p1, %r9, 0; @%p1 add.u32 %r3, %r3, 1;
add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 3000; @%p2 bra again;
st.global.u32 [%d1+252], %r3;",
        launch("skip", "5", "1", 0)
    );
    let skip = parent("skip", "");
    let d = Device::new(Engine::Jit, &format!("{skip}{}", parent("top", &body))).unwrap();
    d.start("top", 0).unwrap();
    assert_eq!(d.words().unwrap()[63], 2048);
}

#[test]
fn a_kernel_that_launches_itself_for_ever_can_be_cancelled() {
    let text = parent("top", &launch("top", "1", "1", 0));
    let d = Device::new(Engine::Jit, &text).unwrap();
    d.start("top", 0).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(!d.gpu.stream_query(d.stream).unwrap());
    let start = Instant::now();
    d.gpu.cancel(d.context, None).unwrap();
    d.gpu.stream_synchronize(d.stream).unwrap();
    assert!(start.elapsed() < Duration::from_secs(20));
    d.words().unwrap();
}
