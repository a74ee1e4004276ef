//! The history on a simulated clock: what is added is what is answered, over restarts, and within its bounds.

use std::path::Path;

use mica_control::api::{AccountBy, Point, Subject, Timeline};

use super::blocks::Shape;
use super::query::{Asked, usual_step};
use super::record::{IDENTITY_BYTES, Record};
use super::tier::{COARSE, FINE};
use super::*;

const BEGIN: u64 = 1_790_000_040;
const GIB: u64 = 1 << 30;

fn identity(name: &str, owner_uid: u32) -> Identity {
    Identity {
        name: name.into(),
        owner_uid,
        ..Identity::default()
    }
}

fn busy(time_seconds: u64, got: f32) -> Point {
    Point {
        time_seconds,
        measured_seconds: 1.0,
        share_asked_percent: 50.0,
        share_unreserved_percent: 12.5,
        share_got_percent: got,
        waiting_percent: 10.0,
        memory_used_bytes: 2 * GIB,
        memory_peak_bytes: 3 * GIB,
        memory_limit_bytes: 4 * GIB,
        processes: 1,
        alloc_denied: 1,
        launches: 100,
    }
}

fn idle(time_seconds: u64) -> Point {
    Point {
        time_seconds,
        measured_seconds: 1.0,
        share_asked_percent: 50.0,
        memory_limit_bytes: 4 * GIB,
        ..Point::default()
    }
}

fn open(dir: &Path) -> History {
    let (history, damage) = History::open(dir);
    assert_eq!(damage, None);
    history
}

fn ask(history: &History, since: u64, until: u64, step: u32) -> Vec<Timeline> {
    let picture = history.picture(step, |_| true).unwrap();
    picture
        .timelines(Asked { since, until, step })
        .unwrap()
        .timelines
}

fn gpu_seconds(line: &Timeline) -> f64 {
    line.points.iter().map(Point::gpu_seconds).sum()
}

#[test]
fn all_files_together_stay_below_50_megabytes() {
    let series = 64 + (IDENTITY_BYTES as u64 + 8) * super::series::CAPACITY;
    let bytes = series + FINE.shape.bytes() + COARSE.shape.bytes();
    assert!(bytes <= 50_000_000, "{bytes}");
}

/// A step of a busy virtual GPU whose figures all change a little.
fn noisy(step: u64, series: u64, seconds: u64) -> Point {
    // A number from 0 to 2000 that looks random.
    let random = |column: u64| {
        let seed = step * 1_000_003 + series * 7919 + column * 104_729;
        (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 2001
    };
    let about = |middle: f32, column: u64, wide: f32| {
        middle + wide * (random(column) as f32 / 1000.0 - 1.0)
    };
    let used = 2 * GIB + if random(4) < 600 { random(5) << 20 } else { 0 };
    Point {
        time_seconds: BEGIN + step * seconds,
        measured_seconds: about(seconds as f32, 0, 0.1),
        share_asked_percent: 1.0,
        share_unreserved_percent: 1.0,
        share_got_percent: about(20.0 + series as f32 / 10.0, 1, 2.0),
        waiting_percent: about(50.0, 2, 2.0),
        memory_used_bytes: used,
        memory_peak_bytes: 4 * GIB,
        memory_limit_bytes: 4 * GIB,
        processes: 2,
        alloc_denied: 0,
        launches: about(80_000.0, 3, 2500.0) as u64,
    }
}

/// Days that a full file keeps of a hundred busy virtual GPUs and a GPU, from what so many blocks keep.
fn days_kept(resolution: Resolution, blocks: u64) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape {
        blocks,
        ..resolution.shape
    };
    let (mut file, _) = super::blocks::Blocks::open(&dir.path().join("file"), shape).unwrap();
    for step in 0.. {
        let record = |series| Record {
            series: series as u32,
            point: noisy(step, series, resolution.step_seconds),
        };
        let records: Vec<Record> = (0..101).map(record).collect();
        file.append(&records).unwrap();
        // The newest block has just begun when the oldest is overwritten.
        if let Some(oldest) = file.snapshot().overwritten_until().unwrap().first() {
            let seconds = BEGIN + step * resolution.step_seconds - oldest.point.time_seconds;
            let by_block = seconds as f64 / (blocks - 1) as f64;
            return by_block * (resolution.shape.blocks - 1) as f64 / 86_400.0;
        }
    }
    unreachable!("no block is ever overwritten")
}

#[test]
fn a_hundred_busy_virtual_gpus_keep_a_day_and_a_month() {
    let (fine, coarse) = (days_kept(FINE, 5), days_kept(COARSE, 5));
    println!("10 s for {fine:.2} days, 1 min for {coarse:.1} days");
    assert!(fine >= 1.0, "10 s for {fine:.2} days");
    assert!(coarse >= 30.0, "1 min for {coarse:.1} days");
}

#[test]
fn every_step_gives_the_same_sum_and_restarts_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let span = 7200;
    for half in 0..2 {
        let history = open(dir.path());
        for second in half * span / 2..(half + 1) * span / 2 {
            let now = BEGIN + second;
            let point = busy(now, if second % 100 < 50 { 80.0 } else { 20.0 });
            assert_eq!(history.add(now, vec![(identity("a", 7), point)]), None);
        }
        if half == 0 {
            history.close();
            continue;
        }
        for step in [1, 5, 10, 60, 600, 3600] {
            let until = BEGIN + span;
            let since = if step < 10 { until - 500 } else { BEGIN };
            let lines = ask(&history, since, until, step);
            assert_eq!(lines.len(), 1);
            let expected = (until - since) as f64 / 2.0;
            let got = gpu_seconds(&lines[0]);
            assert!(
                (got / expected - 1.0).abs() < 0.001,
                "step {step}: {got} of {expected}"
            );
            let denied: u64 = lines[0].points.iter().map(|p| p.alloc_denied).sum();
            assert_eq!(denied, until - since, "step {step}");
            let last = lines[0].points.last().unwrap();
            assert_eq!(
                (last.memory_peak_bytes, last.memory_limit_bytes),
                (3 * GIB, 4 * GIB)
            );
            assert_eq!(lines[0].owner_uid, Some(7));
        }
    }
}

#[test]
fn a_killed_daemon_loses_only_the_step_that_was_not_over() {
    let dir = tempfile::tempdir().unwrap();
    let history = open(dir.path());
    for second in 0..605 {
        history.add(
            BEGIN + second,
            vec![(identity("a", 7), busy(BEGIN + second, 50.0))],
        );
    }
    drop(history);
    let history = open(dir.path());
    let lines = ask(&history, BEGIN, BEGIN + 1000, 10);
    assert!((gpu_seconds(&lines[0]) - 300.0).abs() < 0.5, "{lines:?}");
}

#[test]
fn hours_in_which_nothing_happens_take_few_records_and_are_known() {
    let dir = tempfile::tempdir().unwrap();
    let history = open(dir.path());
    for second in 0..5 * 3600 {
        history.add(
            BEGIN + second,
            vec![(identity("a", 7), idle(BEGIN + second))],
        );
    }
    let size = std::fs::metadata(dir.path().join("history/fine"))
        .unwrap()
        .len();
    assert!(size < 64 + 20 * 40, "{size} bytes");
    history.close();
    let lines = ask(&open(dir.path()), BEGIN, BEGIN + 5 * 3600, 60);
    assert_eq!(lines[0].points.len(), 300);
    assert!(
        lines[0]
            .points
            .iter()
            .all(|p| (59.0..=61.0).contains(&p.measured_seconds))
    );
}

#[test]
fn a_removed_virtual_gpu_stays_in_the_history_with_its_end() {
    let history = open(tempfile::tempdir().unwrap().path());
    for second in 0..100 {
        let now = BEGIN + second;
        let mut all = vec![(identity("stays", 7), busy(now, 10.0))];
        if second < 40 {
            all.push((identity("goes", 7), busy(now, 90.0)));
        }
        history.add(now, all);
    }
    let lines = ask(&history, BEGIN, BEGIN + 100, 10);
    let named = |name: &str| lines.iter().find(|l| l.name == name).unwrap();
    assert_eq!(named("goes").points.len(), 4);
    assert!((gpu_seconds(named("goes")) - 36.0).abs() < 0.1);
    assert_eq!(named("stays").points.len(), 10);
    assert_eq!(history.samples("goes").len(), 40);
}

#[test]
fn what_the_fine_records_have_forgotten_is_answered_from_the_coarse_ones() {
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape {
        block_bytes: 512,
        blocks: 4,
    };
    let small = Resolution { shape, ..FINE };
    let (history, _) = History::try_open(dir.path(), small).unwrap();
    let span = 5400;
    for second in 0..span {
        let now = BEGIN + second;
        history.add(now, vec![(identity("a", 7), busy(now, 50.0))]);
    }
    let lines = ask(&history, BEGIN, BEGIN + span, 10);
    let line = &lines[0];
    assert_eq!(
        line.points[0].measured_seconds, 60.0,
        "coarse ones are older"
    );
    assert_eq!(line.points.last().unwrap().measured_seconds, 10.0);
    let sum = gpu_seconds(line);
    assert!((sum - span as f64 / 2.0).abs() < 0.5, "{sum}");
}

#[test]
fn accounts_add_up_by_user_name_and_container() {
    let history = open(tempfile::tempdir().unwrap().path());
    let contained = Identity {
        container: "abc".into(),
        ..identity("b", 8)
    };
    for second in 0..3600 {
        let now = BEGIN + second;
        history.add(
            now,
            vec![
                (identity("a", 7), busy(now, 25.0)),
                (contained.clone(), busy(now, 75.0)),
                (identity("c", 8), idle(now)),
            ],
        );
    }
    let usage = |by| {
        let picture = history.picture(60, |i| i.subject == Subject::Vgpu).unwrap();
        picture.usage(BEGIN, BEGIN + 3600, by).unwrap()
    };
    let near = |value: f64, wanted: f64| {
        assert!((value - wanted).abs() < 0.01, "{value} is not {wanted}");
    };
    let users = usage(AccountBy::User);
    assert_eq!(users.oldest_seconds, Some(BEGIN));
    let [eight, seven] = &users.accounts[..] else {
        panic!("{users:?}");
    };
    assert_eq!((eight.key.as_str(), eight.vgpus), ("8", 2));
    near(eight.gpu_hours, 0.75);
    near(eight.share_hours, 1.0);
    near(seven.share_unreserved_hours, seven.share_hours / 4.0);
    assert!(seven.share_unreserved_hours > 0.1);
    // 50 of the 75 percent are within the share of one; the other did nothing.
    near(eight.idle_percent, 50.0);
    near(seven.idle_percent, 50.0);
    near(seven.memory_gib_hours, 2.0);
    near(seven.memory_limit_gib_hours, 4.0);
    near(seven.waiting_hours, 0.1);
    assert_eq!(seven.alloc_denied, 3600);
    let keys = |by| {
        usage(by)
            .accounts
            .into_iter()
            .map(|a| a.key)
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(AccountBy::Vgpu), ["b", "a", "c"]);
    assert_eq!(keys(AccountBy::Container), ["abc", ""]);
}

#[test]
fn a_disk_that_fails_is_told_once_and_costs_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("history"), b"a file").unwrap();
    let (history, damage) = History::open(dir.path());
    assert!(damage.unwrap().contains("history"));
    for second in 0..100 {
        let now = BEGIN + second;
        assert_eq!(
            history.add(now, vec![(identity("a", 7), busy(now, 50.0))]),
            None
        );
    }
    assert_eq!(history.samples("a").len(), 100);
}

#[test]
fn a_question_without_a_step_gets_a_few_hundred() {
    for (span, step) in [
        (60, 1),
        (600, 2),
        (3600, 20),
        (86_400, 300),
        (31 * 86_400, 21_600),
    ] {
        assert_eq!(usual_step(BEGIN, BEGIN + span), step, "{span}");
    }
}

/// A full file of minutes: a hundred busy virtual GPUs for a month, and what questions about it take.
#[test]
#[ignore = "a measurement of some seconds, not a check: cargo test -p mica-daemon --lib -- --ignored a_week --nocapture"]
fn a_week_of_a_hundred_virtual_gpus_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let history = open(dir.path());
    let minutes = 31 * 1440;
    for minute in 0..minutes {
        let time = BEGIN + minute * 60;
        let of = |series| {
            let point = noisy(minute, series, 60);
            (identity(&format!("v{series}"), 7), point)
        };
        history
            .store()
            .add(time, (0..100).map(of).collect())
            .unwrap();
    }
    let until = BEGIN + minutes * 60;
    let size: u64 = ["fine", "coarse", "series"]
        .map(|name| {
            std::fs::metadata(dir.path().join("history").join(name))
                .unwrap()
                .len()
        })
        .iter()
        .sum();
    println!("files of {:.1} MB", size as f64 / 1e6);
    for (words, since) in [
        ("an hour", until - 3600),
        ("a day", until - 86_400),
        ("a week", until - 7 * 86_400),
        ("a month", BEGIN),
    ] {
        let began = std::time::Instant::now();
        let lines = ask(&history, since, until, usual_step(since, until));
        let points: usize = lines.iter().map(|line| line.points.len()).sum();
        println!(
            "{words}: {} lines, {points} points, {:?}",
            lines.len(),
            began.elapsed()
        );
    }
    let began = std::time::Instant::now();
    drop(open(dir.path()));
    println!("opened in {:?}", began.elapsed());
}
