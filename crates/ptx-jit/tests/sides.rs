//! Short ways around that vector code runs with lanes switched off, against the interpreter and scalar code.

mod common;

use common::{Device, Params, compiled};
use mica_kernel::{BlockOutcome, Dim3, FaultKind};

const PTX: &str = include_str!("sides.ptx");
const LANES: [u32; 5] = [1, 4, 8, 16, 32];
const WORDS: usize = 512;

fn noise() -> Vec<u32> {
    let next = |x: &u32| Some(x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    let words = std::iter::successors(Some(7), next).map(|x| x >> 3);
    words.take(WORDS).collect()
}

fn run(mut d: Device, kernel: &str, x: u32) -> Vec<u32> {
    let from = d.upload(&noise());
    let to = d.upload(&vec![0; WORDS + 4]);
    let params = Params::default().u64(from).u64(to).u32(x).u32(0);
    d.run(kernel, 1, 128, params);
    d.read(to, WORDS + 4)
}

#[test]
fn lanes_that_are_off_keep_what_they_have() {
    for kernel in ["select", "access"] {
        // No lane, some and all of them.
        for x in [0, 1, 2, 5, 0x80, u32::MAX] {
            let want = run(Device::interpreter(PTX), kernel, x);
            for lanes in LANES {
                let got = run(compiled(PTX, lanes), kernel, x);
                assert_eq!(got, want, "{kernel} with {x:#x} and {lanes} lanes");
            }
        }
    }
}

#[test]
fn an_index_that_wraps_within_a_group_is_widened_right() {
    for x in [0, 0x7fff_ffc0, 0x7fff_fff7, 0xffff_ffe3] {
        let want = run(Device::interpreter(PTX), "widen", x);
        for lanes in LANES {
            let got = run(compiled(PTX, lanes), "widen", x);
            assert_eq!(got, want, "{x:#x} and {lanes} lanes");
        }
    }
}

#[test]
fn only_lanes_that_are_on_access_memory() {
    let launch = |mut d: Device, x: u32, y: u32| {
        let to = d.upload(&[0; 32]);
        let params = Params::default().u64(to).u64(to).u32(x).u32(y);
        let (one, block) = (Dim3 { x: 1, y: 1, z: 1 }, Dim3 { x: 32, y: 1, z: 1 });
        let (outcome, fault) = d.launch("bad", one, block, 0, params);
        (outcome, fault, d.read(to, 32))
    };
    for lanes in LANES {
        for x in [0, 1, 0x8000_0000, 0x0f0f_00f0] {
            let (outcome, _, out) = launch(compiled(PTX, lanes), x, 99);
            assert_eq!(outcome, BlockOutcome::Done, "{lanes} lanes, {x:#x}");
            let want = (0..32).map(|t| if x >> t & 1 == 1 { t } else { 0 });
            assert_eq!(out, want.collect::<Vec<u32>>());
        }
        for (x, y) in [(0x0f0f_00f0, 5), (0x0f0f_00f0, 27), (2, 1)] {
            let (_, want, _) = launch(Device::interpreter(PTX), x, y);
            let (outcome, got, _) = launch(compiled(PTX, lanes), x, y);
            assert_eq!(outcome, BlockOutcome::Faulted);
            assert_eq!(got.kind, FaultKind::IllegalAddress as u32);
            let told = (got.thread.x, got.ptx_line, got.bytes, got.is_write);
            let expected = (want.thread.x, want.ptx_line, want.bytes, want.is_write);
            assert_eq!(told, expected, "{lanes} lanes, {x:#x}, {y}");
        }
    }
}

#[test]
fn a_loop_of_turns_within_one_that_waits_lets_others_go_on() {
    for lanes in LANES {
        let (tell, told) = std::sync::mpsc::channel();
        // A group that never stands aside would run for ever.
        std::thread::spawn(move || tell.send(run(compiled(PTX, lanes), "waits", 0)));
        let done = told.recv_timeout(std::time::Duration::from_secs(60));
        let out = done.unwrap_or_else(|_| panic!("{lanes} lanes wait for ever"));
        assert_eq!(out[4..4 + 128], [1; 128], "{lanes} lanes");
    }
}
