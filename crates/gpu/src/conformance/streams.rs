//! Order: within a stream, between streams, against the default stream, with the host.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use super::session::Args;
use super::{Check, Session, case_list, ensure};
use crate::{DevicePtr, Fill2d, Gpu, GpuError, StreamFlags, StreamId, ValueWait};

case_list![
    work_on_one_stream_runs_in_order,
    streams_do_not_wait_for_each_other,
    default_stream_waits_for_blocking_streams,
    blocking_streams_wait_for_the_default_stream,
    non_blocking_streams_ignore_the_default_stream,
    default_stream_synchronize_covers_blocking_streams,
    query_tells_whether_work_is_done,
    destroyed_streams_finish_their_work,
    callbacks_run_in_stream_order,
    callbacks_hold_later_work,
    releases_run_while_a_host_function_blocks,
    a_wait_has_run_the_releases_before_it,
    a_stream_waits_for_a_word_that_a_copy_writes,
    a_stream_waits_for_both_halves_of_a_wide_word,
    a_wait_that_is_met_holds_nothing_up,
    priorities_are_accepted_and_clamped,
    many_streams_at_once,
];

fn work_on_one_stream_runs_in_order(s: &Session<'_>) -> Check {
    let (log, cursor) = (s.zeros(64)?, s.zeros(1)?);
    let stream = s.own_stream()?;
    for value in 0..50 {
        let args = Args::default().ptr(log).ptr(cursor).u32(value);
        s.launch_on(stream, "append", 1, 1, &args)?;
    }
    let seen = s.read_on(stream, log, 50)?;
    ensure!(seen == (0..50).collect::<Vec<_>>(), "{seen:?}");
    Ok(())
}

fn streams_do_not_wait_for_each_other(s: &Session<'_>) -> Check {
    let total = s.zeros(1)?;
    let (held, free) = (s.own_stream()?, s.own_stream()?);
    let hold = s.hold(held)?;
    s.launch_on(held, "count", 1, 1, &Args::default().ptr(total))?;
    s.launch_on(free, "count", 1, 1, &Args::default().ptr(total))?;
    s.gpu.stream_synchronize(free)?;
    let seen = s.peek(total, 1)?;
    ensure!(seen == [1], "{seen:?}");
    drop(hold);
    s.gpu.stream_synchronize(held)?;
    ensure!(s.peek(total, 1)? == [2], "the held kernel was lost");
    Ok(())
}

fn default_stream_waits_for_blocking_streams(s: &Session<'_>) -> Check {
    let (log, cursor) = (s.zeros(4)?, s.zeros(1)?);
    let stream = s.blocking_stream()?;
    let hold = s.hold(stream)?;
    let append = |value| Args::default().ptr(log).ptr(cursor).u32(value);
    s.launch_on(stream, "append", 1, 1, &append(1))?;
    s.launch_on(s.stream, "append", 1, 1, &append(2))?;
    ensure!(
        s.peek(cursor, 1)? == [0],
        "something ran behind a held stream"
    );
    drop(hold);
    s.gpu.context_synchronize(s.context)?;
    let seen = s.peek(log, 2)?;
    ensure!(seen == [1, 2], "{seen:?}");
    Ok(())
}

fn blocking_streams_wait_for_the_default_stream(s: &Session<'_>) -> Check {
    let (log, cursor) = (s.zeros(4)?, s.zeros(1)?);
    let stream = s.blocking_stream()?;
    let hold = s.hold(s.stream)?;
    let append = |value| Args::default().ptr(log).ptr(cursor).u32(value);
    s.launch_on(s.stream, "append", 1, 1, &append(1))?;
    s.launch_on(stream, "append", 1, 1, &append(2))?;
    ensure!(
        s.peek(cursor, 1)? == [0],
        "something ran behind the default stream"
    );
    ensure!(
        !s.gpu.stream_query(stream)?,
        "the blocking stream says it is done"
    );
    drop(hold);
    s.gpu.context_synchronize(s.context)?;
    let seen = s.peek(log, 2)?;
    ensure!(seen == [1, 2], "{seen:?}");
    Ok(())
}

fn non_blocking_streams_ignore_the_default_stream(s: &Session<'_>) -> Check {
    let total = s.zeros(1)?;
    let stream = s.own_stream()?;
    let hold = s.hold(s.stream)?;
    s.launch_on(s.stream, "count", 1, 1, &Args::default().ptr(total))?;
    s.launch_on(stream, "count", 1, 1, &Args::default().ptr(total))?;
    s.gpu.stream_synchronize(stream)?;
    let seen = s.peek(total, 1)?;
    ensure!(seen == [1], "{seen:?}");
    drop(hold);
    s.gpu.context_synchronize(s.context)?;
    Ok(())
}

fn default_stream_synchronize_covers_blocking_streams(s: &Session<'_>) -> Check {
    let done = Arc::new(AtomicU32::new(0));
    let stream = s.blocking_stream()?;
    let inside = Arc::clone(&done);
    let slow = move || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        inside.store(1, Ordering::SeqCst);
    };
    s.gpu.stream_callback(stream, Box::new(slow))?;
    s.launch_on(s.stream, "empty", 1, 1, &Args::default())?;
    s.gpu.stream_synchronize(s.stream)?;
    ensure!(done.load(Ordering::SeqCst) == 1, "it did not wait");
    Ok(())
}

fn query_tells_whether_work_is_done(s: &Session<'_>) -> Check {
    let stream = s.own_stream()?;
    ensure!(
        s.gpu.stream_query(stream)?,
        "a new stream has nothing to do"
    );
    let hold = s.hold(stream)?;
    ensure!(!s.gpu.stream_query(stream)?, "a held stream is not done");
    drop(hold);
    s.gpu.stream_synchronize(stream)?;
    ensure!(s.gpu.stream_query(stream)?, "a synchronized stream is done");
    // The default stream holds up what a blocking one is given later, which is nothing yet.
    let blocking = s.blocking_stream()?;
    let hold = s.hold(s.stream)?;
    ensure!(
        s.gpu.stream_query(blocking)?,
        "a blocking stream that was given nothing is not done"
    );
    ensure!(
        !s.gpu.stream_query(s.stream)?,
        "the held default stream is done"
    );
    drop(hold);
    s.gpu.stream_synchronize(s.stream)?;
    Ok(())
}

fn destroyed_streams_finish_their_work(s: &Session<'_>) -> Check {
    let total = s.zeros(1)?;
    let stream = s.own_stream()?;
    let hold = s.hold(stream)?;
    s.launch_on(stream, "count", 2, 32, &Args::default().ptr(total))?;
    s.gpu.stream_destroy(stream)?;
    ensure!(
        s.gpu.stream_query(stream).is_err(),
        "the handle still works"
    );
    drop(hold);
    s.wait_for_word(total, |count| count == 64)
}

fn callbacks_run_in_stream_order(s: &Session<'_>) -> Check {
    let order = Arc::new(Mutex::new(Vec::new()));
    let stream = s.own_stream()?;
    for value in 0..20 {
        let order = Arc::clone(&order);
        let note = move || {
            if let Ok(mut order) = order.lock() {
                order.push(value);
            }
        };
        s.gpu.stream_callback(stream, Box::new(note))?;
        s.launch_on(stream, "empty", 1, 1, &Args::default())?;
    }
    s.gpu.stream_synchronize(stream)?;
    let seen = order.lock().map(|o| o.clone()).unwrap_or_default();
    ensure!(seen == (0..20).collect::<Vec<_>>(), "{seen:?}");
    Ok(())
}

fn callbacks_hold_later_work(s: &Session<'_>) -> Check {
    let total = s.zeros(1)?;
    let stream = s.own_stream()?;
    s.launch_on(stream, "count", 1, 1, &Args::default().ptr(total))?;
    let hold = s.hold(stream)?;
    s.launch_on(stream, "count", 1, 1, &Args::default().ptr(total))?;
    s.wait_for_word(total, |count| count == 1)?;
    ensure!(s.peek(total, 1)? == [1], "later work did not wait");
    drop(hold);
    s.gpu.stream_synchronize(stream)?;
    ensure!(s.peek(total, 1)? == [2], "later work was lost");
    Ok(())
}

/// Writes a word of 4 bytes in stream order.
fn write_word(gpu: &dyn Gpu, stream: StreamId, at: DevicePtr, value: u32) -> Result<(), GpuError> {
    let fill = Fill2d {
        dst: at,
        pitch: 4,
        value,
        element_bytes: 4,
        width: 1,
        height: 1,
    };
    gpu.fill(stream, &fill)
}

/// Whether a stream with a wait and a kernel behind it is held until `write` has written the word.
fn holds_until(s: &Session<'_>, wait: &ValueWait, write: impl FnOnce(StreamId) -> Check) -> Check {
    let total = s.zeros(1)?;
    let (waiting, writing) = (s.own_stream()?, s.own_stream()?);
    s.gpu.stream_wait_value(waiting, wait)?;
    s.launch_on(waiting, "count", 1, 1, &Args::default().ptr(total))?;
    std::thread::sleep(Duration::from_millis(30));
    ensure!(!s.gpu.stream_query(waiting)?, "the stream did not wait");
    ensure!(
        s.peek(total, 1)? == [0],
        "a kernel ran before the word was written"
    );
    write(writing)?;
    s.gpu.stream_synchronize(waiting)?;
    ensure!(s.peek(total, 1)? == [1], "the kernel was lost");
    Ok(())
}

fn a_stream_waits_for_a_word_that_a_copy_writes(s: &Session<'_>) -> Check {
    // At least 3 comes after the highest numbers too.
    for (flags, before, value, after) in [
        (0, 6, 7, 8),
        (0, !5, 3, 4),
        (1, 8, 7, 7),
        (2, 8, 7, 4),
        (3, !0, 0, !1),
    ] {
        let word = s.zeros(2)?;
        write_word(s.gpu, s.stream, word, before)?;
        s.gpu.stream_synchronize(s.stream)?;
        let wait = ValueWait::new(word, false, value, flags)?;
        holds_until(s, &wait, |stream| {
            Ok(write_word(s.gpu, stream, word, after)?)
        })?;
    }
    Ok(())
}

fn a_stream_waits_for_both_halves_of_a_wide_word(s: &Session<'_>) -> Check {
    let word = s.zeros(2)?;
    let upper = DevicePtr(word.0 + 4);
    let wait = ValueWait::new(word, true, 1 << 40, 0)?;
    holds_until(s, &wait, |stream| {
        write_word(s.gpu, stream, word, 1)?;
        Ok(write_word(s.gpu, stream, upper, 1 << 8)?)
    })
}

fn a_wait_that_is_met_holds_nothing_up(s: &Session<'_>) -> Check {
    let (word, total) = (s.zeros(1)?, s.zeros(1)?);
    let stream = s.own_stream()?;
    for _ in 0..100 {
        s.gpu
            .stream_wait_value(stream, &ValueWait::new(word, false, 0, 1)?)?;
        s.launch_on(stream, "count", 1, 1, &Args::default().ptr(total))?;
    }
    s.gpu.stream_synchronize(stream)?;
    ensure!(s.peek(total, 1)? == [100], "kernels were lost");
    Ok(())
}

fn priorities_are_accepted_and_clamped(s: &Session<'_>) -> Check {
    let total = s.zeros(1)?;
    let (least, most) = s.gpu.properties().stream_priorities;
    for priority in [least, most, least + 100, most - 100] {
        let flags = StreamFlags { non_blocking: true };
        let stream = s.gpu.stream_create(s.context, flags, priority)?;
        s.launch_on(stream, "count", 1, 1, &Args::default().ptr(total))?;
        s.gpu.stream_synchronize(stream)?;
    }
    ensure!(s.peek(total, 1)? == [4], "a kernel was lost");
    Ok(())
}

fn many_streams_at_once(s: &Session<'_>) -> Check {
    let total = s.zeros(1)?;
    let mut streams = Vec::new();
    for i in 0..40 {
        let non_blocking = i % 2 == 0;
        streams.push(
            s.gpu
                .stream_create(s.context, StreamFlags { non_blocking }, 0)?,
        );
    }
    for round in 0..10 {
        for stream in &streams {
            s.launch_on(
                *stream,
                "count",
                1 + round % 3,
                32,
                &Args::default().ptr(total),
            )?;
        }
    }
    s.gpu.context_synchronize(s.context)?;
    let blocks: u32 = (0..10).map(|round| 1 + round % 3).sum();
    let seen = s.peek(total, 1)?;
    ensure!(seen == [blocks * 32 * 40], "{seen:?}");
    Ok(())
}

/// A correct program may do this: its host function waits for a copy on another stream, which ends with a release.
fn releases_run_while_a_host_function_blocks(s: &Session<'_>) -> Check {
    let (held, free) = (s.own_stream()?, s.own_stream()?);
    let hold = s.hold(held)?;
    let (tell, told) = mpsc::channel();
    let release = Box::new(move || tell.send(()).unwrap_or(()));
    s.gpu.stream_release(free, 0, release)?;
    let ran = told.recv_timeout(Duration::from_secs(10));
    drop(hold);
    s.gpu.stream_synchronize(held)?;
    ensure!(ran.is_ok(), "the release waited for the host function");
    Ok(())
}

fn a_wait_has_run_the_releases_before_it(s: &Session<'_>) -> Check {
    let total = s.zeros(1)?;
    let stream = s.own_stream()?;
    for round in 0..100 {
        s.launch_on(stream, "count", 1, 1, &Args::default().ptr(total))?;
        let (tell, told) = mpsc::channel();
        let release = Box::new(move || tell.send(()).unwrap_or(()));
        s.gpu.stream_release(stream, 0, release)?;
        s.gpu.stream_synchronize(stream)?;
        ensure!(told.try_recv().is_ok(), "round {round}: not yet");
    }
    Ok(())
}
