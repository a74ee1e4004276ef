//! Leases through real pages and futexes.

mod support;

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use mica_control::client::ControlClient;
use mica_limits::{Gate, monotonic_ns};
use mica_wire::host::page::{client_flags, gate, suspend};
use support::{Program, control, eventually, spec, start, start_with};

/// Submits and finishes imaginary kernels until told to stop.
fn work(program: &Program, stop: &AtomicBool) {
    let page = program.link.page();
    page.client
        .flags
        .fetch_or(client_flags::CONTEXT | client_flags::GATE_CONTROL, SeqCst);
    let gate = Gate::new(program.link.clone());
    while !stop.load(Relaxed) {
        gate.enter(&mut |_| true);
        page.counters.launches.fetch_add(1, Relaxed);
        page.counters.syncing.fetch_add(1, Relaxed);
        let until = monotonic_ns() + 50_000;
        while monotonic_ns() < until {
            std::hint::spin_loop();
        }
        page.counters.syncing.fetch_sub(1, Relaxed);
        page.counters.drains.fetch_add(1, Relaxed);
    }
}

#[test]
fn two_tenants_without_slices_share_by_leases_and_one_alone_runs_free() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    let mut specs = [spec("a", 64), spec("b", 64)];
    specs[0].share_percent = Some(60.into());
    specs[1].share_percent = Some(40.into());
    let created = specs.map(|spec| control.create(&spec).unwrap());
    let (one, two) = (Program::join(&created[0]), Program::join(&created[1]));
    let (stop_one, stop_two) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| work(&one, &stop_one));
        scope.spawn(|| work(&two, &stop_two));
        eventually("leases are in force", || {
            control.gpus().unwrap()[0].lease_state == "leases"
        });
        let before = [&one, &two].map(|p| p.link.page().counters.launches.load(Relaxed));
        eventually("both go on under leases", || {
            let now = [&one, &two].map(|p| p.link.page().counters.launches.load(Relaxed));
            now[0] > before[0] + 100 && now[1] > before[1] + 100
        });
        assert_eq!(control.get("a").unwrap().mechanism, "leases");
        stop_two.store(true, Relaxed);
        eventually("one alone is open", || {
            gate::state(one.link.page().lease.gate.load(SeqCst)) == gate::OPEN
        });
        stop_one.store(true, Relaxed);
    });
    let metrics = control.metrics().unwrap();
    assert!(
        metrics.contains("mica_vgpu_lease_wait_seconds_count"),
        "{metrics}"
    );
}

#[test]
fn a_suspended_tenant_waits_at_its_gate_until_it_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    let created = control.create(&spec("a", 64)).unwrap();
    let program = Program::join(&created);
    let stop = AtomicBool::new(false);
    let launches = || program.link.page().counters.launches.load(Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| work(&program, &stop));
        eventually("it runs", || launches() > 10);
        control.suspend("a").unwrap();
        eventually("it waits", || {
            program.link.page().counters.waiting.load(SeqCst) > 0
        });
        let held = launches();
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(launches(), held);
        assert_eq!(
            program.link.page().commands.suspend.load(SeqCst),
            suspend::STOP
        );
        control.resume("a").unwrap();
        eventually("it runs again", || launches() > held + 10);
        stop.store(true, Relaxed);
    });
}

/// Submits work that ends only when `drained` says so, until told to stop.
fn poll(program: &Program, drained: &AtomicBool, ended: &AtomicU32, stop: &AtomicBool) {
    let page = program.link.page();
    let gate = Gate::new(program.link.clone());
    while !stop.load(Relaxed) {
        gate.enter(&mut |sequence| {
            ended.store(sequence, SeqCst);
            drained.load(SeqCst)
        });
        page.counters.launches.fetch_add(1, Relaxed);
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
}

#[test]
fn one_whose_work_does_not_drain_goes_on_with_slices_and_everybody_is_told() {
    let dir = tempfile::tempdir().unwrap();
    // Longer than a busy machine keeps a thread from its processor, which would be found too.
    let sharing = "[sharing]\nleases = \"always\"\ndrain_limit_us = 2000000\n";
    let _daemon = start_with(dir.path(), sharing);
    let control = control(dir.path());
    let created = [spec("a", 64), spec("b", 64)].map(|spec| control.create(&spec).unwrap());
    let (one, two) = (Program::join(&created[0]), Program::join(&created[1]));
    for program in [&one, &two] {
        let flags =
            client_flags::CONTEXT | client_flags::GATE_CONTROL | client_flags::SLICE_CONTROL;
        program.link.page().client.flags.fetch_or(flags, SeqCst);
    }
    let (drained, ended) = (AtomicBool::new(false), AtomicU32::new(0));
    let (stop_one, stop_two) = (AtomicBool::new(false), AtomicBool::new(false));
    let launches = |program: &Program| program.link.page().counters.launches.load(Relaxed);
    let of_two = || control.get("b").unwrap().processes[0].clone();
    let told = |kind: &str| {
        let events = control.past_events().unwrap();
        events
            .iter()
            .filter(|e| e.kind == kind && e.vgpu.as_deref() == Some("b"))
            .count()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(&one, &stop_one));
        scope.spawn(|| poll(&two, &drained, &ended, &stop_two));
        eventually("it is found", || of_two().does_not_drain);
        let process = of_two();
        assert!(process.overruns_total > 0);
        assert_eq!(process.mechanism, "hardware slices");
        let before = (launches(&one), launches(&two));
        eventually("both go on", || {
            launches(&one) > before.0 + 100 && launches(&two) > before.1 + 100
        });
        eventually("it is told once", || told("process_undrained") == 1);
        let report = control.doctor(Some("b")).unwrap();
        assert!(
            report
                .checks
                .iter()
                .any(|c| c.evidence.contains("does not drain")),
            "{report:?}"
        );
        // Its pause is over, but what it submitted runs on: nothing is tried.
        std::thread::sleep(std::time::Duration::from_millis(2300));
        assert!(of_two().does_not_drain);
        assert_eq!(of_two().overruns_total, process.overruns_total);
        drained.store(true, SeqCst);
        Gate::new(two.link.clone()).give_back(ended.load(SeqCst));
        eventually("it is given leases again", || {
            let process = of_two();
            !process.does_not_drain && process.leases_total > 1
        });
        eventually("that is told", || told("process_drained") == 1);
        assert_eq!(told("process_undrained"), 1);
        stop_one.store(true, Relaxed);
        stop_two.store(true, Relaxed);
        // Whoever waits at its gate is let through.
        eventually("nobody waits", || {
            [&one, &two]
                .iter()
                .all(|p| p.link.page().counters.waiting.load(SeqCst) == 0)
        });
    });
}

/// Stops and starts its channels as told, and counts the time in which they run.
fn obey_stops(program: &Program, ran_ns: &AtomicU64, stop: &AtomicBool) {
    let page = program.link.page();
    let (mut stopped, mut at_ns) = (false, monotonic_ns());
    while !stop.load(Relaxed) {
        let told = page.commands.suspend.load(SeqCst) != 0;
        let now_ns = monotonic_ns();
        if !stopped {
            ran_ns.fetch_add(now_ns - at_ns, Relaxed);
        }
        at_ns = now_ns;
        if told != stopped {
            stopped = told;
            match told {
                true => page.client.flags.fetch_or(client_flags::SUSPENDED, SeqCst),
                false => page
                    .client
                    .flags
                    .fetch_and(!client_flags::SUSPENDED, SeqCst),
            };
            program.link.ring();
        }
        std::thread::sleep(std::time::Duration::from_micros(300));
    }
}

/// A program in a virtual GPU with a cap of so many percent, whose channels can be stopped.
fn capped(control: &ControlClient, percent: u32) -> Program {
    let mut wanted = spec("a", 64);
    (wanted.share_percent, wanted.cap) = (Some(percent.into()), true);
    let program = Program::join(&control.create(&wanted).unwrap());
    let flags = client_flags::CONTEXT | client_flags::GATE_CONTROL | client_flags::SLICE_CONTROL;
    program.link.page().client.flags.fetch_or(flags, SeqCst);
    program
}

#[test]
fn one_stopped_for_its_cap_may_go_on_without_the_daemon_and_does_with_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let control = control(dir.path());
    let program = capped(&control, 5);
    let page = program.link.page();
    let told = || page.commands.suspend.load(SeqCst);
    let (ran_ns, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let obeying = scope.spawn(|| obey_stops(&program, &ran_ns, &stop));
        page.counters.launches.fetch_add(1, Relaxed);
        page.counters.syncing.fetch_add(1, SeqCst);
        // What it owes by the time it is found takes it seconds at this cap.
        eventually("it is stopped", || told() == suspend::PAUSE);
        // Suspended by a person, it must not go on by itself.
        control.suspend("a").unwrap();
        eventually("it is suspended", || told() == suspend::STOP);
        control.resume("a").unwrap();
        eventually("its cap holds it again", || told() == suspend::PAUSE);
        stop.store(true, Relaxed);
        obeying.join().unwrap();
        drop(daemon);
        eventually("the program notices", || program.link.is_down());
        assert_ne!(
            told(),
            suspend::STOP,
            "nobody is left who could let it go on"
        );
        page.counters.syncing.fetch_sub(1, SeqCst);
        let _next = start(dir.path());
        eventually("the next one lets it go on", || told() == suspend::RUN);
    });
}

#[test]
fn a_capped_one_whose_kernel_never_ends_is_stopped_and_started() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    let program = capped(&control, 30);
    let page = program.link.page();
    let (ran_ns, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| obey_stops(&program, &ran_ns, &stop));
        // One launch, and a wait for its end.
        page.counters.launches.fetch_add(1, Relaxed);
        page.counters.syncing.fetch_add(1, SeqCst);
        let undrained = || control.get("a").unwrap().processes[0].does_not_drain;
        eventually("it is found", undrained);
        // It owes for the time until then.
        eventually("it has been stopped and goes on", || {
            static STOPPED: AtomicBool = AtomicBool::new(false);
            let told = page.commands.suspend.load(SeqCst) != 0;
            STOPPED.fetch_or(told, Relaxed) && !told
        });
        // A busy machine wakes threads late, on either side, but not in one second after another.
        let percent = || {
            let before = (ran_ns.load(Relaxed), monotonic_ns());
            std::thread::sleep(std::time::Duration::from_secs(1));
            let ran = (ran_ns.load(Relaxed) - before.0) as f64;
            100.0 * ran / (monotonic_ns() - before.1) as f64
        };
        let held = |percent: &f64| (22.0..=38.0).contains(percent);
        let seconds = (0..12).map(|_| percent()).filter(held).take(3);
        assert_eq!(seconds.count(), 3, "it runs more or less than 30 %");
        let vgpu = control.get("a").unwrap();
        assert!(vgpu.reasons.is_empty(), "{:?}", vgpu.reasons);
        let report = control.doctor(Some("a")).unwrap();
        let said = |c: &mica_control::api::Check| c.evidence.contains("stopping and starting");
        assert!(report.checks.iter().any(said), "{report:?}");
        stop.store(true, Relaxed);
    });
}
