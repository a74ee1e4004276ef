//! Whole screens, compared with files in `golden/`; `BLESS=1` rewrites them.

use std::path::PathBuf;

use mica_control::api::{
    DaemonInfo, GpuInfo, Point, Priority, ProcessInfo, Resize, Stats, Subject, Timeline, Timelines,
    VgpuInfo, VgpuState,
};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Color;
use ratatui_crossterm::crossterm::event::{
    Event, KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};

use super::act::{Action, parse_resize};
use super::input::{Effect, on_event};
use super::state::{Link, Prompt, Rate, RowKey, Sort, State};
use super::{draw, lines};

const SMALL: Rect = Rect::new(0, 0, 80, 24);
const LARGE: Rect = Rect::new(0, 0, 200, 50);
const NOW: u64 = 1_790_000_400;
const GIB: u64 = 1 << 30;

fn process(pid: u32, command: &str, container: Option<&str>) -> ProcessInfo {
    ProcessInfo {
        pid,
        command: command.into(),
        uid: Some(1000),
        container: container.map(Into::into),
        memory_used_bytes: GIB,
        gpu_seconds: 75.0,
        ..ProcessInfo::default()
    }
}

fn vgpu(name: &str, got: f64, used: u64, processes: Vec<ProcessInfo>) -> VgpuInfo {
    VgpuInfo {
        name: name.into(),
        state: match processes.is_empty() {
            true => VgpuState::Ready,
            false => VgpuState::Active,
        },
        owner_uid: 1000,
        memory_limit_bytes: 8 * GIB,
        memory_used_bytes: used,
        memory_peak_bytes: used + GIB,
        share_percent: 30.into(),
        share_reserved: true,
        share_measured_percent: got,
        gpu_seconds: got * 100.0,
        priority: Priority::Normal,
        processes,
        ..VgpuInfo::default()
    }
}

fn line(subject: Subject, name: &str, scale: f32) -> Timeline {
    let points = (0..120_u64).map(|step| Point {
        time_seconds: NOW - 600 + step * 5,
        measured_seconds: 5.0,
        share_asked_percent: 30.0,
        share_got_percent: (step as f32 * 0.8 * scale).min(100.0),
        waiting_percent: (step % 40) as f32,
        memory_used_bytes: step * GIB / 20,
        memory_peak_bytes: 7 * GIB,
        memory_limit_bytes: 8 * GIB,
        ..Point::default()
    });
    Timeline {
        subject,
        name: name.into(),
        // The first minutes have no measurement.
        points: points.skip(30).collect(),
        ..Timeline::default()
    }
}

fn state() -> State {
    let capped = VgpuInfo {
        cap: true,
        share_percent: 25.into(),
        state: VgpuState::Degraded,
        reasons: vec!["its work does not drain".into()],
        ..vgpu(
            "capped",
            24.0,
            7 * GIB + GIB / 2,
            vec![process(300, "serve", None)],
        )
    };
    let idle = VgpuInfo {
        share_reserved: false,
        ..vgpu("idle-with-a-very-long-name", 0.0, 0, Vec::new())
    };
    let contained = vec![
        process(
            4711,
            "python3 train.py --epochs 10 --batch-size 64",
            Some("3f4e5d6c7b8a"),
        ),
        process(4712, "python3 loader.py", Some("3f4e5d6c7b8a")),
        process(99, "nvtop", None),
    ];
    let stats = Stats {
        daemon: DaemonInfo {
            version: "0.1.0".into(),
            pid: 7,
            uptime_seconds: 7_985.0,
            ..DaemonInfo::default()
        },
        gpus: vec![GpuInfo {
            name: "NVIDIA H200".into(),
            memory_total_bytes: 141 * GIB,
            memory_used_bytes: 30 * GIB,
            share_reserved_percent: 85.into(),
            utilization_percent: 91.0,
            ..GpuInfo::default()
        }],
        vgpus: vec![vgpu("team-a", 61.0, 3 * GIB, contained), capped, idle],
    };
    let waits = Rate {
        waiting_percent: 38.0,
        launches_per_second: 12_345.0,
    };
    State {
        host: "node-1".into(),
        now: NOW as f64,
        clock: "14:02:33".into(),
        stats,
        history: Timelines {
            since_seconds: NOW - 600,
            until_seconds: NOW,
            step_seconds: 5,
            timelines: vec![
                line(Subject::Gpu, "GPU-1", 1.0),
                line(Subject::Vgpu, "team-a", 0.7),
                line(Subject::Vgpu, "capped", 0.3),
            ],
        },
        rates: [("team-a".to_owned(), waits)].into(),
        users: [(1000, "ann".to_owned())].into(),
        link: Link::Up,
        zoom: 1,
        colours: true,
        unicode: true,
        ..State::default()
    }
}

fn screen(state: &State, area: Rect) -> Vec<String> {
    let mut buffer = Buffer::empty(area);
    draw::draw(state, area, &mut buffer);
    lines(&buffer)
}

fn golden(name: &str, state: &State, area: Rect) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let path = path.join(format!("src/top/golden/{name}.txt"));
    let text = screen(state, area).join("\n") + "\n";
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text,
        wanted,
        "\n{text}\n{} differs; BLESS=1 rewrites it",
        path.display()
    );
}

fn key(state: &mut State, code: KeyCode) -> Effect {
    let event = Event::Key(KeyEvent::new(code, KeyModifiers::NONE));
    on_event(state, SMALL, &event)
}

fn press(state: &mut State, keys: &str) -> Effect {
    let all = keys.chars().map(|c| key(state, KeyCode::Char(c)));
    all.last().unwrap()
}

fn click(state: &mut State, column: u16, row: u16) -> Effect {
    let event = Event::Mouse(MouseEvent {
        kind: MouseEventKind::Down(MouseButton::Left),
        column,
        row,
        modifiers: KeyModifiers::NONE,
    });
    on_event(state, SMALL, &event)
}

#[test]
fn screens_look_as_they_should() {
    let mut state = state();
    golden("small", &state, SMALL);
    state.selected = Some(RowKey::Vgpu("team-a".into()));
    golden("large", &state, LARGE);
    state.unicode = false;
    golden("ascii", &state, SMALL);
    state.unicode = true;
    state.prompt = Some(Prompt::Help);
    golden("help", &state, SMALL);
    state.prompt = Some(Prompt::Confirm(Action::Suspend("team-a".into())));
    golden("confirm", &state, SMALL);
    state.prompt = None;
    state.link = Link::Down(NOW as f64 - 12.0, "no Mica daemon answers at /run/x".into());
    golden("lost", &state, SMALL);
    golden("empty", &State::default(), SMALL);
}

#[test]
fn any_size_can_be_drawn_and_clicked_on() {
    let mut state = state();
    for prompt in [None, Some(Prompt::Help), Some(Prompt::Filter)] {
        state.prompt = prompt;
        for (width, height) in [(1, 1), (2, 3), (10, 5), (79, 10), (121, 34), (500, 3)] {
            let area = Rect::new(0, 0, width, height);
            screen(&state, area);
            let mut clicked = state.clone();
            click(&mut clicked, width - 1, height - 1);
        }
    }
}

#[test]
fn without_colours_no_cell_has_one() {
    let mut state = state();
    state.colours = false;
    state.selected = Some(RowKey::Process("team-a".into(), 99));
    let mut buffer = Buffer::empty(LARGE);
    draw::draw(&state, LARGE, &mut buffer);
    let colours = |cell: &ratatui_core::buffer::Cell| (cell.fg, cell.bg);
    assert!(
        buffer
            .content()
            .iter()
            .all(|cell| colours(cell) == (Color::Reset, Color::Reset))
    );
}

#[test]
fn rows_are_sorted_filtered_and_folded() {
    let mut state = state();
    let names = |state: &State| -> Vec<String> {
        let rows = super::rows::rows(state)
            .iter()
            .map(super::rows::Row::key)
            .collect::<Vec<_>>();
        let only = rows
            .into_iter()
            .filter(|key| matches!(key, RowKey::Vgpu(_)));
        only.map(|key| key.vgpu().chars().take(4).collect())
            .collect()
    };
    assert_eq!(names(&state), ["capp", "idle", "team"]);
    press(&mut state, "s");
    assert_eq!(
        (state.sort, names(&state)),
        (
            Sort::Share,
            vec!["team".into(), "capp".into(), "idle".into()]
        )
    );
    press(&mut state, "S");
    assert_eq!(names(&state), ["idle", "capp", "team"]);
    press(&mut state, "/LOADER");
    assert_eq!(names(&state), ["team"]);
    key(&mut state, KeyCode::Enter);
    assert_eq!(state.selected, Some(RowKey::Vgpu("team-a".into())));
    assert_eq!(super::rows::rows(&state).len(), 5);
    key(&mut state, KeyCode::Enter);
    assert_eq!(super::rows::rows(&state).len(), 1);
    key(&mut state, KeyCode::Esc);
    assert_eq!(names(&state).len(), 3);
    press(&mut state, "/nothing at all");
    assert!(screen(&state, SMALL)[3].contains("nothing contains"));
}

#[test]
fn actions_are_done_after_a_yes_and_only_then() {
    let mut state = state();
    assert_eq!(press(&mut state, "z"), Effect::None);
    assert!(
        state.prompt.is_none() && state.message.as_ref().unwrap().1,
        "nothing selected"
    );
    press(&mut state, "jjjj");
    assert_eq!(state.selected, Some(RowKey::Vgpu("team-a".into())));
    press(&mut state, "z");
    assert_eq!(
        key(&mut state, KeyCode::Enter),
        Effect::None,
        "Enter is not yes"
    );
    assert_eq!(press(&mut state, "n"), Effect::None);
    press(&mut state, "z");
    assert_eq!(
        press(&mut state, "y"),
        Effect::Act(Action::Suspend("team-a".into()))
    );
    press(&mut state, "c");
    assert_eq!(
        press(&mut state, "y"),
        Effect::Act(Action::Cancel("team-a".into()))
    );
    press(&mut state, "x");
    let all = Action::End {
        vgpu: "team-a".into(),
        pids: vec![4711, 4712, 99],
        kill: false,
    };
    assert_eq!(press(&mut state, "y"), Effect::Act(all));
    key(&mut state, KeyCode::End);
    press(&mut state, "X");
    let one = Action::End {
        vgpu: "team-a".into(),
        pids: vec![4712],
        kill: true,
    };
    assert_eq!(press(&mut state, "y"), Effect::Act(one));
}

#[test]
fn new_limits_are_typed_and_wrong_ones_explained() {
    let mut state = state();
    key(&mut state, KeyCode::End);
    press(&mut state, "e");
    let Some(Prompt::Resize { text, .. }) = &state.prompt else {
        panic!("{:?}", state.prompt);
    };
    assert_eq!(text, "memory=8192MiB share=30");
    press(&mut state, "x");
    key(&mut state, KeyCode::Enter);
    assert!(matches!(
        &state.prompt,
        Some(Prompt::Resize { wrong: Some(_), .. })
    ));
    for _ in 0..3 {
        key(&mut state, KeyCode::Backspace);
    }
    press(&mut state, "45");
    key(&mut state, KeyCode::Enter);
    let change = Resize {
        memory_limit_bytes: Some(8 * GIB),
        share_percent: Some(45.into()),
        ..Resize::default()
    };
    assert_eq!(
        press(&mut state, "y"),
        Effect::Act(Action::Resize("team-a".into(), change))
    );
    assert!(parse_resize("").unwrap_err().contains("nothing"));
    assert!(parse_resize("speed=9").unwrap_err().contains("speed=9"));
    assert_eq!(parse_resize("nocap high").unwrap().cap, Some(false));
}

#[test]
fn time_is_zoomed_within_its_bounds() {
    let mut state = state();
    assert_eq!(press(&mut state, "+"), Effect::Zoomed);
    assert_eq!((press(&mut state, "+"), state.zoom), (Effect::None, 0));
    press(&mut state, "------");
    assert_eq!(
        (press(&mut state, "-"), state.span().1),
        (Effect::None, "1 month")
    );
}

#[test]
fn the_mouse_selects_sorts_and_presses() {
    let mut state = state();
    click(&mut state, 5, 5);
    assert_eq!(
        state.selected,
        Some(RowKey::Vgpu("idle-with-a-very-long-name".into()))
    );
    click(&mut state, 50, 2);
    assert_eq!((state.sort, state.reversed), (Sort::Memory, false));
    click(&mut state, 50, 2);
    assert!(state.reversed);
    assert_eq!(click(&mut state, 1, 23), Effect::Quit);
    let wheel = Event::Mouse(MouseEvent {
        kind: MouseEventKind::ScrollUp,
        column: 0,
        row: 0,
        modifiers: KeyModifiers::NONE,
    });
    on_event(&mut state, SMALL, &wheel);
    assert!(state.selected.is_some());
}

#[test]
fn a_new_daemon_is_told_of_and_its_counters_are_not_compared_with_the_old() {
    let mut state = state();
    state.link = Link::Down(0.0, "gone".into());
    let mut stats = state.stats.clone();
    stats.daemon.pid = 8;
    stats.vgpus[0].throttled_seconds = 500.0;
    let rates = state.rates.clone();
    state.take(stats.clone(), 1.0);
    assert_eq!((state.link.clone(), state.rates.clone()), (Link::Up, rates));
    assert!(
        state.message.clone().unwrap().0.contains("new daemon"),
        "{:?}",
        state.message
    );
    stats.vgpus[0].throttled_seconds = 500.5;
    stats.vgpus[0].launches_total += 40;
    state.take(stats, 2.0);
    let rate = state.rate("team-a");
    assert_eq!(
        (rate.waiting_percent, rate.launches_per_second),
        (25.0, 20.0)
    );
}
