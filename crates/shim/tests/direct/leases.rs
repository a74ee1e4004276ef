//! The gate: launches wait for their turn, leases are drained and given back.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use mica_limits::SharedPage;
use mica_wire::host::page::{client_flags, gate};

use crate::daemon::Daemon;
use crate::served::Served;
use crate::{MIB, eventually, limited, that_can_be_held, with_limit};

/// A program that does what it is told, its daemon and the page between them.
fn serving() -> (tempfile::TempDir, Arc<Daemon>, Served, Arc<SharedPage>) {
    let (directory, daemon) = with_limit(64 * MIB);
    let served = Served::start(limited(&["serve"], &daemon));
    let page = daemon.pages().remove(0);
    (directory, daemon, served, page)
}

fn came_back(page: &SharedPage, lease: u32) {
    eventually("the lease came back", || {
        page.counters.yielded.load(SeqCst) == lease
    });
}

fn held_at_the_gate(page: &SharedPage) {
    eventually("a thread at the gate", || {
        page.counters.waiting.load(SeqCst) == 1
    });
}

#[test]
fn a_closed_gate_holds_launches_until_it_opens() {
    let (_directory, daemon) = with_limit(64 * MIB);
    let mut served = Served::start(limited(&["serve"], &daemon));
    assert_eq!(served.ask("l"), "launched 1");
    let page = daemon.pages().remove(0);
    assert_eq!(page.counters.launches.load(SeqCst), 1);
    assert_ne!(
        page.client.flags.load(SeqCst) & client_flags::GATE_CONTROL,
        0
    );

    daemon.set_gate(gate::CLOSED, 1, 0);
    served.send("l");
    held_at_the_gate(&page);
    assert_eq!(page.counters.launches.load(SeqCst), 1);
    daemon.set_gate(gate::OPEN, 2, 0);
    assert_eq!(served.answer(), "launched 2");
    eventually("nobody at the gate", || {
        page.counters.waiting.load(SeqCst) == 0
    });
}

#[test]
fn a_large_fill_waits_like_a_launch() {
    let (_directory, daemon, mut served, page) = serving();
    daemon.set_gate(gate::CLOSED, 1, 0);
    served.send("z");
    held_at_the_gate(&page);
    daemon.set_gate(gate::OPEN, 2, 0);
    assert_eq!(served.answer(), "filled");
    assert_eq!(page.counters.launches.load(SeqCst), 1);
}

#[test]
fn copies_of_arrays_and_sparse_mappings_wait_like_launches() {
    let (_directory, daemon, mut served, page) = serving();
    for (turn, what) in ["A1", "A2", "A3", "A4"].into_iter().enumerate() {
        let sequence = 2 * turn as u32;
        daemon.set_gate(gate::CLOSED, sequence + 1, 0);
        served.send(what);
        held_at_the_gate(&page);
        assert_eq!(page.counters.launches.load(SeqCst), turn as u64);
        daemon.set_gate(gate::OPEN, sequence + 2, 0);
        assert_eq!(served.answer(), "copied");
    }
}

/// An hour from now.
pub(crate) fn far() -> u64 {
    mica_limits::monotonic_ns() + 3_600_000_000_000
}

#[test]
fn a_lease_that_ended_is_drained_and_given_back() {
    let (_directory, daemon, mut served, page) = serving();
    // Something unfinished, so that the lease is not given back for idleness.
    assert_eq!(served.ask("l"), "launched 1");
    daemon.set_gate(gate::LEASED, 5, far());
    assert_eq!(served.ask("l"), "launched 2");
    assert_eq!(page.counters.yielded.load(SeqCst), 0);

    daemon.set_gate(gate::LEASED, 6, 1);
    came_back(&page, 6);
    served.send("l");
    held_at_the_gate(&page);
    assert_eq!(page.counters.launches.load(SeqCst), 2);
    // Granted anew each time, as a daemon does for one that waits.
    let mut sequence = 6;
    let answer = served.answer_while(|| {
        sequence += 1;
        daemon.set_gate(gate::LEASED, sequence, far());
    });
    assert_eq!(answer, "launched 3");
    // The launch before the hand-over was waited for.
    let synced = served.ask("s");
    assert!(
        synced.starts_with("synced") && synced != "synced 1",
        "{synced}"
    );
}

#[test]
fn all_contexts_are_drained_before_a_lease_goes_back() {
    let (_directory, daemon, mut served, page) = serving();
    assert_eq!(served.ask("l"), "launched 1");
    assert_eq!(served.ask("c"), "created");
    assert_eq!(served.ask("l"), "launched 2");
    assert_eq!(served.ask("m"), "waited for 0");
    daemon.set_gate(gate::LEASED, 5, 1);
    came_back(&page, 5);
    assert_eq!(served.ask("m"), "waited for 6");
}

#[test]
fn an_idle_holder_gives_its_lease_back_early() {
    let (_directory, daemon, mut served, page) = serving();
    assert_eq!(served.ask("l"), "launched 1");
    daemon.set_gate(gate::LEASED, 3, far());
    assert_eq!(served.ask("s"), "synced 1");
    assert_eq!(page.counters.drains.load(SeqCst), 1);
    came_back(&page, 3);
}

#[test]
fn a_wait_that_leaves_one_submission_counts_as_a_drain_and_one_that_leaves_two_does_not() {
    let (_directory, _daemon, mut served, page) = serving();
    let mut drains_after = |commands: &[&str]| {
        for command in commands {
            served.ask(command);
        }
        page.counters.drains.load(SeqCst)
    };
    assert_eq!(drains_after(&["l", "1", "l", "2", "l", "3", "w1"]), 0);
    assert_eq!(drains_after(&["w2"]), 1);
    assert_eq!(drains_after(&["w2"]), 1, "the same moment, asked again");
    assert_eq!(drains_after(&["w3"]), 2);
}

#[test]
fn a_captured_stream_is_never_held() {
    let (_directory, daemon, mut served, page) = serving();
    assert_eq!(served.ask("b"), "capturing");
    assert_eq!(page.client.captures.load(SeqCst), 1);
    daemon.set_gate(gate::CLOSED, 1, 0);
    assert_eq!(served.ask("l"), "launched 1");
    assert_eq!(served.ask("e"), "captured");
    assert_eq!(page.client.captures.load(SeqCst), 0);
    served.send("l");
    held_at_the_gate(&page);
    daemon.set_gate(gate::OPEN, 2, 0);
    assert_eq!(served.answer(), "launched 2");
}

#[test]
fn a_capture_whose_stream_is_destroyed_is_over() {
    let (_directory, daemon, mut served, page) = serving();
    assert_eq!(served.ask("b"), "capturing");
    assert_eq!(served.ask("d"), "destroyed");
    assert_eq!(page.client.captures.load(SeqCst), 0);
    // Leases are drained again.
    assert_eq!(served.ask("l"), "launched 1");
    daemon.set_gate(gate::LEASED, 5, 1);
    came_back(&page, 5);
    assert_eq!(served.ask("m"), "waited for 2");
}

#[test]
fn a_capture_that_begins_during_a_drain_waits_for_its_end() {
    let (directory, daemon) = with_limit(64 * MIB);
    let (mut served, hold, inside) = that_can_be_held(directory.path(), &daemon);
    let page = daemon.pages().remove(0);
    served.ask("l");
    std::fs::write(&hold, "").unwrap();
    daemon.set_gate(gate::LEASED, 5, 1);
    eventually("the lease is being drained", || inside.exists());
    served.send("b");
    eventually("the capture is announced", || {
        page.client.captures.load(SeqCst) == 1
    });
    std::fs::remove_file(&hold).unwrap();
    assert_eq!(served.answer(), "capturing");
    assert_eq!(served.ask("x"), "broken 0");
}

#[test]
fn a_wait_for_one_of_several_streams_is_no_proof_that_nothing_runs() {
    let (_directory, daemon, mut served, page) = serving();
    // On stream 5, as all launches here.
    assert_eq!(served.ask("l"), "launched 1");
    assert_eq!(served.ask("y6"), "stream synced");
    daemon.set_gate(gate::LEASED, 5, far());
    eventually("the idle lease came back", || {
        page.counters.yielded.load(SeqCst) == 5
    });
    assert_eq!(served.ask("m"), "waited for 2", "drained before that");
    // The only stream there is: no need to wait for more.
    let syncs = served.ask("s");
    daemon.set_gate(gate::OPEN, 6, 0);
    assert_eq!(served.ask("l"), "launched 2");
    assert_eq!(served.ask("y5"), "stream synced");
    daemon.set_gate(gate::LEASED, 7, far());
    eventually("the idle lease came back", || {
        page.counters.yielded.load(SeqCst) == 7
    });
    let number = |text: &str| {
        text.strip_prefix("synced ")
            .unwrap()
            .parse::<u32>()
            .unwrap()
    };
    assert_eq!(number(&served.ask("s")), number(&syncs) + 2);
}

#[test]
fn a_lease_that_was_taken_away_is_given_back_when_its_work_is_done() {
    let (directory, daemon) = with_limit(64 * MIB);
    let (mut served, hold, inside) = that_can_be_held(directory.path(), &daemon);
    let page = daemon.pages().remove(0);
    served.ask("l");
    std::fs::write(&hold, "").unwrap();
    daemon.set_gate(gate::LEASED, 5, 1);
    eventually("the lease is being drained", || inside.exists());
    daemon.set_gate(gate::CLOSED, 5, 0);
    assert_eq!(page.counters.yielded.load(SeqCst), 0);
    assert_eq!(page.counters.syncing.load(SeqCst), 1);
    std::fs::remove_file(&hold).unwrap();
    eventually("the daemon hears that it is over", || {
        page.counters.yielded.load(SeqCst) == 5
    });
}

#[test]
fn one_that_stood_still_while_its_gate_closed_and_opened_says_when_it_has_drained() {
    let (_directory, daemon, mut served, page) = serving();
    assert_eq!(served.ask("l"), "launched 1");
    // With a lease taken away meanwhile, and with the gate closed for the first time.
    for (sequence, before) in [(5, gate::LEASED), (9, gate::OPEN)] {
        daemon.set_gate(before, sequence - u32::from(before == gate::OPEN), far());
        assert!(served.ask("l").starts_with("launched"));
        served.freeze();
        take_away(&daemon, sequence);
        served.thaw();
        eventually("the daemon hears that it is over", || {
            page.counters.yielded.load(SeqCst) == sequence
        });
    }
    // A gate that opens as ever is no news.
    let waited = served.ask("s");
    daemon.set_gate(gate::OPEN, 11, 0);
    assert_eq!(served.ask("l"), "launched 4");
    assert_eq!(page.counters.yielded.load(SeqCst), 9, "{waited}");
}

#[test]
fn no_more_is_queued_under_a_lease_than_can_finish_soon() {
    let (_directory, daemon) = with_limit(64 * MIB);
    let mut served = Served::start(limited(&["serve"], &daemon));
    served.ask("l");
    daemon.set_gate(gate::LEASED, 1, far());
    let mut sequence = 1;
    for _ in 0..40 {
        served.send("l");
        served.answer_while(|| {
            sequence += 1;
            daemon.set_gate(gate::LEASED, sequence, far());
        });
    }
    let synced = served.ask("s");
    let syncs: u32 = synced.strip_prefix("synced ").unwrap().parse().unwrap();
    assert!(syncs > 1, "{synced}: only the program's own");
}

#[test]
fn a_lease_that_ends_while_the_queue_is_waited_for_lets_nothing_more_through() {
    let (directory, daemon) = with_limit(64 * MIB);
    let (mut served, hold, inside) = that_can_be_held(directory.path(), &daemon);
    let page = daemon.pages().remove(0);
    served.ask("l");
    daemon.set_gate(gate::LEASED, 1, far());
    std::fs::write(&hold, "").unwrap();
    // One of these finds as much queued as may be, and waits for it.
    let mut launched = 1;
    while !inside.exists() {
        served.send("l");
        served.answer_or(|| inside.exists());
        launched += 1;
        assert!(launched < 100, "the queue is never waited for");
    }
    let before = page.counters.launches.load(SeqCst);
    daemon.set_gate(gate::CLOSED, 1, 0);
    std::fs::remove_file(&hold).unwrap();
    eventually("the thread came back to the gate", || {
        page.counters.waiting.load(SeqCst) == 1
    });
    assert_eq!(page.counters.launches.load(SeqCst), before);
    daemon.set_gate(gate::OPEN, 2, 0);
    assert!(served.answer().starts_with("launched"));
}

#[test]
fn a_thread_whose_stream_waits_for_the_host_is_not_made_to_wait_for_it() {
    let (directory, daemon) = with_limit(64 * MIB);
    let hold = directory.path().join("hold");
    let mut program = limited(&["serve"], &daemon);
    program.env("STANDIN_HOLD", &hold);
    let mut served = Served::start(program);
    // What is queued from here on waits for a word that this thread will write, after some launches more.
    std::fs::write(&hold, "").unwrap();
    assert_eq!(served.ask("v"), "waits");
    // Something unfinished, so that the lease is not given back for idleness before it is used.
    assert_eq!(served.ask("l"), "launched 1");
    daemon.set_gate(gate::LEASED, 1, far());
    for launched in 2..40 {
        assert_eq!(served.ask("l"), format!("launched {launched}"));
    }
    std::fs::remove_file(&hold).unwrap();
}

/// What the daemon does with a lease that is not given back in time.
fn take_away(daemon: &Daemon, sequence: u32) {
    daemon.set_gate(gate::CLOSED, sequence, 0);
    daemon.set_gate(gate::OPEN, sequence + 1, 0);
}

#[test]
fn work_that_waits_for_the_next_submission_holds_nobody_when_its_lease_ends() {
    let (directory, daemon) = with_limit(64 * MIB);
    let (mut served, hold, inside) = that_can_be_held(directory.path(), &daemon);
    let page = daemon.pages().remove(0);
    assert_eq!(served.ask("l"), "launched 1");
    // From here on what runs ends only when this program has gone on.
    std::fs::write(&hold, "").unwrap();
    daemon.set_gate(gate::LEASED, 5, 1);
    served.send("l");
    eventually("the thread is at the gate", || {
        page.counters.waiting.load(SeqCst) == 1
    });
    eventually("somebody waits for the work", || inside.exists());
    assert_eq!(page.counters.yielded.load(SeqCst), 0, "it has not drained");
    take_away(&daemon, 5);
    assert_eq!(served.answer(), "launched 2");
    for launched in 3..40 {
        assert_eq!(served.ask("l"), format!("launched {launched}"));
    }
    assert_eq!(served.ask("b"), "capturing");
    assert_eq!(served.ask("e"), "captured");
    assert_eq!(page.counters.yielded.load(SeqCst), 0, "it has not drained");
    // The program goes on, and so does its kernel.
    std::fs::remove_file(&hold).unwrap();
    eventually("the daemon hears that it is over", || {
        page.counters.yielded.load(SeqCst) == 5
    });
    // Later leases are drained as ever.
    daemon.set_gate(gate::LEASED, 9, 1);
    came_back(&page, 9);
}

#[test]
fn work_that_waits_for_the_next_submission_holds_nobody_while_a_lease_lasts() {
    let (directory, daemon) = with_limit(64 * MIB);
    let (mut served, hold, inside) = that_can_be_held(directory.path(), &daemon);
    served.ask("l");
    daemon.set_gate(gate::LEASED, 1, far());
    std::fs::write(&hold, "").unwrap();
    // More than may be queued: one of these waits for what never ends, for a while.
    for launched in 2..40 {
        assert_eq!(served.ask("l"), format!("launched {launched}"));
    }
    assert!(inside.exists(), "the queue was never waited for");
    std::fs::remove_file(&hold).unwrap();
}
