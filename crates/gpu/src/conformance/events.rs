//! Events: progress, order across streams, time.

use mica_cuda_abi::CuResult;

use super::session::Args;
use super::{Check, Session, case_list, ensure, refused};
use crate::EventFlags;

case_list![
    a_new_event_is_done,
    an_event_is_reached_with_its_stream,
    events_order_streams,
    a_wait_means_the_record_before_it,
    destroyed_events_still_hold_their_waiters,
    time_passes_between_events,
    events_without_timing_have_no_time,
    the_default_stream_records_all_blocking_work,
];

fn a_new_event_is_done(s: &Session<'_>) -> Check {
    let event = s.event()?;
    ensure!(s.gpu.event_query(event)?, "not done");
    s.gpu.event_synchronize(event)?;
    let stream = s.own_stream()?;
    s.gpu.stream_wait_event(stream, event)?;
    s.gpu.stream_synchronize(stream)?;
    Ok(())
}

fn an_event_is_reached_with_its_stream(s: &Session<'_>) -> Check {
    let (stream, event) = (s.own_stream()?, s.event()?);
    let hold = s.hold(stream)?;
    s.gpu.event_record(event, stream)?;
    ensure!(!s.gpu.event_query(event)?, "reached too early");
    drop(hold);
    s.gpu.event_synchronize(event)?;
    ensure!(s.gpu.event_query(event)?, "not reached");
    Ok(())
}

fn events_order_streams(s: &Session<'_>) -> Check {
    let (log, cursor) = (s.zeros(4)?, s.zeros(1)?);
    let (a, b, event) = (s.own_stream()?, s.own_stream()?, s.event()?);
    let append = |value| Args::default().ptr(log).ptr(cursor).u32(value);
    let hold = s.hold(a)?;
    s.launch_on(a, "append", 1, 1, &append(1))?;
    s.gpu.event_record(event, a)?;
    s.gpu.stream_wait_event(b, event)?;
    s.launch_on(b, "append", 1, 1, &append(2))?;
    ensure!(s.peek(cursor, 1)? == [0], "it did not wait");
    drop(hold);
    s.gpu.stream_synchronize(b)?;
    let seen = s.peek(log, 2)?;
    ensure!(seen == [1, 2], "{seen:?}");
    Ok(())
}

fn a_wait_means_the_record_before_it(s: &Session<'_>) -> Check {
    let (a, b, event) = (s.own_stream()?, s.own_stream()?, s.event()?);
    s.gpu.event_record(event, a)?;
    s.gpu.stream_synchronize(a)?;
    s.gpu.stream_wait_event(b, event)?;
    let hold = s.hold(a)?;
    s.gpu.event_record(event, a)?;
    // The wait above is for the first record, which is long reached.
    s.gpu.stream_synchronize(b)?;
    ensure!(
        !s.gpu.event_query(event)?,
        "the second record is not reached"
    );
    drop(hold);
    s.gpu.event_synchronize(event)?;
    Ok(())
}

fn destroyed_events_still_hold_their_waiters(s: &Session<'_>) -> Check {
    let total = s.zeros(1)?;
    let (a, b, event) = (s.own_stream()?, s.own_stream()?, s.event()?);
    let hold = s.hold(a)?;
    s.gpu.event_record(event, a)?;
    s.gpu.stream_wait_event(b, event)?;
    s.launch_on(b, "count", 1, 1, &Args::default().ptr(total))?;
    s.gpu.event_destroy(event)?;
    ensure!(s.peek(total, 1)? == [0], "it did not wait");
    drop(hold);
    s.gpu.stream_synchronize(b)?;
    ensure!(s.peek(total, 1)? == [1], "the kernel was lost");
    Ok(())
}

fn time_passes_between_events(s: &Session<'_>) -> Check {
    let (stream, start, end) = (s.own_stream()?, s.event()?, s.event()?);
    s.gpu.event_record(start, stream)?;
    let nap = || std::thread::sleep(std::time::Duration::from_millis(20));
    s.gpu.stream_callback(stream, Box::new(nap))?;
    s.gpu.event_record(end, stream)?;
    s.gpu.event_synchronize(end)?;
    let ms = s.gpu.event_elapsed_ms(start, end)?;
    ensure!((15.0..60_000.0).contains(&ms), "{ms} ms around a nap of 20");
    let back = s.gpu.event_elapsed_ms(end, start)?;
    ensure!(back <= 0.0, "{back} ms backwards");
    let hold = s.hold(stream)?;
    s.gpu.event_record(end, stream)?;
    refused(
        s.gpu.event_elapsed_ms(start, end),
        &[CuResult::NotReady],
        "not reached",
    )?;
    drop(hold);
    s.gpu.stream_synchronize(stream)?;
    Ok(())
}

fn events_without_timing_have_no_time(s: &Session<'_>) -> Check {
    let flags = EventFlags {
        disable_timing: true,
    };
    let plain = s.gpu.event_create(s.context, flags)?;
    let (timed, never) = (s.event()?, s.event()?);
    for event in [plain, timed] {
        s.gpu.event_record(event, s.stream)?;
    }
    s.gpu.stream_synchronize(s.stream)?;
    let invalid = [CuResult::InvalidHandle];
    refused(s.gpu.event_elapsed_ms(plain, timed), &invalid, "no timing")?;
    refused(
        s.gpu.event_elapsed_ms(timed, never),
        &invalid,
        "never recorded",
    )
}

fn the_default_stream_records_all_blocking_work(s: &Session<'_>) -> Check {
    let (stream, event) = (s.blocking_stream()?, s.event()?);
    let hold = s.hold(stream)?;
    s.gpu.event_record(event, s.stream)?;
    ensure!(
        !s.gpu.event_query(event)?,
        "reached before the blocking stream"
    );
    drop(hold);
    s.gpu.event_synchronize(event)?;
    Ok(())
}
