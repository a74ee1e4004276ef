//! What ends the process, seen from outside: the test program runs itself.

use super::limits::live;
use super::{HEAD, Params, compiled, dim};
use crate::common::Device;
use mica_kernel::{
    BlockContext, BlockOutcome, Executable, GlobalInfo, KernelInfo, LaunchFacts, PrepareError,
};
use mica_ptx_jit::{JitModule, Options};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const CHILD: &str = "MICA_TEST_CHILD";

/// Runs one test of this program alone, in its child's part.
fn child(test: &str) -> Output {
    let program = std::env::current_exe().expect("a path");
    let run = Command::new(program)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output();
    run.expect("runs")
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// A module that claims every launch to be proven.
struct Lying(JitModule);

impl Executable for Lying {
    fn kernels(&self) -> &[KernelInfo] {
        self.0.kernels()
    }
    fn globals(&self) -> &[GlobalInfo] {
        self.0.globals()
    }
    fn scratch_bytes(&self, kernel: usize, threads: u32) -> usize {
        self.0.scratch_bytes(kernel, threads)
    }
    fn prepare(&self, kernel: usize, launch: &LaunchFacts<'_>) -> Result<bool, PrepareError> {
        self.0.prepare(kernel, launch).map(|_| true)
    }
    fn function_address(&self, name: &str) -> Option<u64> {
        self.0.function_address(name)
    }
    unsafe fn run_block(&self, kernel: usize, context: &mut BlockContext) -> BlockOutcome {
        // SAFETY: the same contract, except that `proven` is a lie: the arena's guard pages catch it.
        unsafe { self.0.run_block(kernel, context) }
    }
}

#[test]
fn an_address_that_is_wrongly_unchecked_is_found_by_a_recheck() {
    if !is_child() {
        let out = child("child::an_address_that_is_wrongly_unchecked_is_found_by_a_recheck");
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.signal(), Some(libc::SIGABRT), "{said}");
        assert!(said.contains("no check was emitted"), "{said}");
        return;
    }
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 out)
{{
	.reg .b32 %r<3>;
	.reg .b64 %d<4>;
	mov.u32 %r1, %tid.x;
	ld.param.u64 %d1, [out];
	mul.wide.u32 %d2, %r1, 4;
	add.s64 %d3, %d1, %d2;
	st.global.u32 [%d3], %r1;
	ret;
}}
"
    );
    let parsed = Arc::new(mica_ptx::parse(text.as_bytes()).expect("parses"));
    let options = Options {
        recheck: true,
        ..Options::default()
    };
    let module = JitModule::compile(parsed, options).expect("compiles");
    let mut d = Device::new(Box::new(Lying(module)));
    // Only the last lanes are outside.
    let (_, end) = d.arena();
    d.launch("k", dim(1), dim(32), 0, Params::default().u64(end - 64));
}

/// Memory below the stack that no frame may reach, and how much there is of it.
static BELOW: AtomicUsize = AtomicUsize::new(0);
const BELOW_BYTES: usize = 1 << 20;
const PAGE: usize = 4096;
const STACK_BYTES: usize = 128 << 10;

/// Says by the exit code whether anything below the guard page was written.
extern "C" fn at_guard(_signal: i32) {
    let below = BELOW.load(Ordering::SeqCst) as *const u8;
    // SAFETY: mapped for the whole test.
    let clean = (0..BELOW_BYTES).all(|i| unsafe { below.add(i).read_volatile() } == 0);
    // SAFETY: ends the process from a signal handler.
    unsafe { libc::_exit(if clean { 7 } else { 8 }) };
}

extern "C" fn launch(device: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: the device of the test below, which waits for this thread.
    let d = unsafe { &mut *device.cast::<Device>() };
    let mut alternate = vec![0u8; 64 << 10];
    let stack = libc::stack_t {
        ss_sp: alternate.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: alternate.len(),
    };
    // SAFETY: the memory outlives the handler, which does not return.
    unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) };
    let (base, _) = d.arena();
    d.launch("k", dim(1), dim(1), 0, Params::default().u64(base + 4096));
    std::ptr::null_mut()
}

/// A frame of 160 KB on a stack of 128 KiB: the page below the stack is found before anything else is
/// written.
#[test]
fn a_frame_does_not_reach_over_the_guard_page() {
    if !is_child() {
        let out = child("child::a_frame_does_not_reach_over_the_guard_page");
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(7), "{:?}: {said}", out.status);
        return;
    }
    let mut d = compiled(&live(20_000), 1);
    let (base, _) = d.arena();
    // Compiled, and run once where there is room.
    d.launch("k", dim(1), dim(1), 0, Params::default().u64(base + 4096));
    // SAFETY: a fresh mapping, one page of which is made inaccessible; the thread gets what is above it,
    // and is waited for.
    unsafe {
        let all = libc::mmap(
            std::ptr::null_mut(),
            BELOW_BYTES + PAGE + STACK_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(all, libc::MAP_FAILED);
        BELOW.store(all as usize, Ordering::SeqCst);
        let guard = all.cast::<u8>().add(BELOW_BYTES);
        assert_eq!(libc::mprotect(guard.cast(), PAGE, libc::PROT_NONE), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = at_guard as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        let stack = guard.add(PAGE).cast();
        assert_eq!(
            libc::pthread_attr_setstack(&mut attributes, stack, STACK_BYTES),
            0
        );
        let mut thread: libc::pthread_t = std::mem::zeroed();
        let device = (&raw mut d).cast();
        assert_eq!(
            libc::pthread_create(&mut thread, &attributes, launch, device),
            0
        );
        libc::pthread_join(thread, std::ptr::null_mut());
    }
}
