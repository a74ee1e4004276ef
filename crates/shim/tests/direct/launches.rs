//! The hand-written path of launches: whatever way one takes, the driver gets it as the program gave it.

use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;

use mica_wire::host::page::gate;

use crate::daemon::Daemon;
use crate::leases::far;
use crate::programs::preloaded;
use crate::served::Served;
use crate::{MIB, eventually, limited, with_limit};

/// `cuLaunchKernel`, `cuLaunchKernel_ptsz`, `cuLaunchKernelEx`, `cuLaunchKernelEx_ptsz`.
const LAUNCHES: [u32; 4] = [0, 1, 2, 3];

fn served(daemon: &Daemon) -> Served {
    Served::start(limited(&["serve"], daemon))
}

#[test]
fn arguments_arrive_with_the_gate_open_whatever_streams_were_used() {
    for launch in LAUNCHES {
        let (_directory, daemon) = with_limit(64 * MIB);
        let mut served = served(&daemon);
        let page = daemon.pages().remove(0);
        // The first stream, the same again, another one, and any after that.
        for (number, stream) in [5, 5, 5, 6, 6, 5, 0, 2].into_iter().enumerate() {
            assert_eq!(served.ask(&format!("k{launch}{stream}")), "arrived");
            assert_eq!(page.counters.launches.load(SeqCst), number as u64 + 1);
        }
    }
}

#[test]
fn arguments_arrive_after_a_wait_at_the_gate_and_under_a_lease() {
    let (_directory, daemon) = with_limit(64 * MIB);
    let mut served = served(&daemon);
    let page = daemon.pages().remove(0);
    let mut sequence = 0;
    for launch in LAUNCHES {
        for stream in [5, 6] {
            let before = page.counters.launches.load(SeqCst);
            let call = format!("k{launch}{stream}");
            sequence += 1;
            daemon.set_gate(gate::CLOSED, sequence, 0);
            served.send(&call);
            eventually("a thread at the gate", || {
                page.counters.waiting.load(SeqCst) == 1
            });
            assert_eq!(page.counters.launches.load(SeqCst), before);
            let answer = served.answer_while(|| {
                sequence += 1;
                daemon.set_gate(gate::LEASED, sequence, far());
            });
            assert_eq!(answer, "arrived");
            // Waited for nothing, but by the path that asks.
            served.send(&call);
            let answer = served.answer_while(|| {
                sequence += 1;
                daemon.set_gate(gate::LEASED, sequence, far());
            });
            assert_eq!(answer, "arrived");
            assert_eq!(page.counters.launches.load(SeqCst), before + 2);
        }
    }
}

#[test]
fn arguments_arrive_without_limits_without_the_daemon_and_in_a_trace() {
    let all = |served: &mut Served| {
        for launch in LAUNCHES {
            for stream in [5, 5, 6] {
                assert_eq!(served.ask(&format!("k{launch}{stream}")), "arrived");
            }
        }
    };
    all(&mut Served::start(preloaded(&["serve"])));
    let (directory, daemon) = with_limit(64 * MIB);
    let traced = |mut command: Command| {
        command.env("MICA_TRACE", directory.path().join("trace"));
        Served::start(command)
    };
    all(&mut traced(preloaded(&["serve"])));
    all(&mut traced(limited(&["serve"], &daemon)));
    let mut served = served(&daemon);
    daemon.set_gate(gate::CLOSED, 1, 0);
    daemon.die();
    all(&mut served);
}

#[test]
fn a_thread_at_the_gate_can_be_followed_back_to_the_program() {
    let (_directory, daemon) = with_limit(64 * MIB);
    let mut served = served(&daemon);
    let page = daemon.pages().remove(0);
    for (turn, launch) in LAUNCHES.into_iter().enumerate() {
        let sequence = 2 * turn as u32 + 1;
        daemon.set_gate(gate::CLOSED, sequence, 0);
        served.send(&format!("k{launch}5"));
        eventually("a thread at the gate", || {
            page.counters.waiting.load(SeqCst) == 1
        });
        assert_eq!(served.look_back(), "found");
        daemon.set_gate(gate::OPEN, sequence + 1, 0);
        assert_eq!(served.answer(), "arrived");
        eventually("nobody at the gate", || {
            page.counters.waiting.load(SeqCst) == 0
        });
    }
}

#[test]
fn a_launch_without_a_configuration_is_the_drivers_to_refuse() {
    let (_directory, daemon) = with_limit(64 * MIB);
    let mut served = served(&daemon);
    for launch in ["n2", "n3", "n2"] {
        assert_eq!(served.ask(launch), "refused");
    }
}

/// Whether a lease comes back without a wait for everything, after launches and a wait for a stream.
fn is_proof(launches: &[String], wait: &str) -> bool {
    let (_directory, daemon) = with_limit(64 * MIB);
    let mut served = served(&daemon);
    let page = daemon.pages().remove(0);
    for launch in launches {
        assert_eq!(served.ask(launch), "arrived");
    }
    assert_eq!(served.ask(wait), "stream synced");
    daemon.set_gate(gate::LEASED, 5, far());
    eventually("the idle lease came back", || {
        page.counters.yielded.load(SeqCst) == 5
    });
    served.ask("m") == "waited for 0"
}

#[test]
fn each_launch_notes_its_stream() {
    for launch in LAUNCHES {
        let on = |stream: u32| format!("k{launch}{stream}");
        assert!(is_proof(&[on(5)], "y5"), "{launch}");
        assert!(is_proof(&[on(5), on(5)], "y5"), "{launch}");
        assert!(!is_proof(&[on(5)], "y6"), "{launch}");
        assert!(!is_proof(&[on(5), on(6)], "y5"), "{launch}");
        assert!(!is_proof(&[on(5), on(6)], "y6"), "{launch}");
        // Each thread has a stream of its own behind this handle.
        assert!(!is_proof(&[on(2)], "y2"), "{launch}");
        let per_thread = launch % 2 == 1;
        assert_eq!(is_proof(&[on(0)], "y0"), !per_thread, "{launch}");
    }
}
