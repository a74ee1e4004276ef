//! `mica top`: GPUs, virtual GPUs and their programs, live.
//!
//! ```text
//!   poll (thread) ── answers ──► state ──► draw (pure) ──► terminal
//!        ▲                         ▲
//!        └── wishes, actions ── input ◄── keys, mouse
//! ```

mod act;
mod detail;
mod draw;
mod help;
mod input;
mod layout;
mod paint;
mod poll;
mod rows;
mod screen;
mod state;
#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use mica_command::output::{shows_colours, terminal_columns};
use mica_command::refusal::explain;
use mica_command::users::user_name;
use mica_command::when::date_and_time;
use mica_control::client::{ControlClient, Span};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_crossterm::crossterm::event;

use crate::args::{SortArg, TopArgs};
use input::Effect;
use poll::{News, Wish};
use screen::Screen;
use state::{Link, Sort, State};

/// How long a frame waits for a key.
const FRAME: Duration = Duration::from_millis(100);
/// The span that is shown first: ten minutes.
const FIRST_ZOOM: usize = 1;

/// Shows everything until the person quits.
///
/// # Errors
/// The terminal cannot be used, or, for one picture, the daemon does not answer.
pub fn run(client: &ControlClient, args: &TopArgs) -> Result<()> {
    let mut state = State {
        host: match &args.socket {
            Some(socket) => socket.display().to_string(),
            None => host_name(),
        },
        zoom: FIRST_ZOOM,
        sort: sort(args.sort),
        filter: args.filter.clone().unwrap_or_default(),
        colours: shows_colours(),
        unicode: shows_unicode(),
        ..State::default()
    };
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    let terminals = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if args.once || is_dumb || !terminals {
        return once(client, &mut state);
    }
    ask_for_signals();
    let (wishes, news) = poll::start(client.clone(), state.zoom);
    let mut screen = Screen::enter().context("the terminal cannot be used")?;
    watch(&mut screen, &mut state, &wishes, &news)
}

/// One picture as text.
fn once(client: &ControlClient, state: &mut State) -> Result<()> {
    let before = client.stats().map_err(explain)?;
    state.take(before, 0.0);
    // What happens in a second cannot be known at once.
    std::thread::sleep(Duration::from_secs(1));
    state.take(client.stats().map_err(explain)?, 1.0);
    tick(state);
    let (span, _, step) = state.span();
    let asked = Span {
        since_seconds: (state.now as u64).saturating_sub(span),
        until_seconds: None,
        step_seconds: Some(step),
    };
    state.history = client.timelines(&asked, None).map_err(explain)?;
    look_up_users(state);
    let width = terminal_columns().unwrap_or(80).clamp(40, 300) as u16;
    let rows = rows::rows(state).len() + state.stats.gpus.len();
    let height = (rows as u16).saturating_add(5);
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    draw::draw(state, buffer.area, &mut buffer);
    for line in lines(&buffer).iter().take(usize::from(height) - 2) {
        outln!("{line}");
    }
    Ok(())
}

/// The text of a buffer, without spaces at the ends.
fn lines(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width.max(1));
    let line = |cells: &[ratatui_core::buffer::Cell]| {
        let text: String = cells
            .iter()
            .map(ratatui_core::buffer::Cell::symbol)
            .collect();
        text.trim_end().to_owned()
    };
    buffer.content().chunks(width).map(line).collect()
}

fn watch(
    screen: &mut Screen,
    state: &mut State,
    wishes: &Sender<Wish>,
    news: &Receiver<News>,
) -> Result<()> {
    let mut paused = false;
    let mut is_new = true;
    let mut clock = String::new();
    while !ENDED.load(Relaxed) {
        tick(state);
        let taken = take_news(state, news, paused)?;
        is_new |= taken.any;
        if taken.acted {
            // What was done shows at once.
            let _ = wishes.send(Wish::Now);
        }
        if is_new || clock != state.clock {
            clock.clone_from(&state.clock);
            screen
                .terminal
                .draw(|frame| draw::draw(state, frame.area(), frame.buffer_mut()))?;
            is_new = false;
        }
        if !event::poll(FRAME).context("keys cannot be read")? {
            continue;
        }
        is_new = true;
        let size = screen.terminal.size()?;
        let area = Rect::new(0, 0, size.width, size.height);
        let event = event::read().context("keys cannot be read")?;
        match input::on_event(state, area, &event) {
            Effect::None => {}
            Effect::Quit => return Ok(()),
            Effect::Zoomed => drop(wishes.send(Wish::Zoom(state.zoom))),
            Effect::Act(action) => drop(wishes.send(Wish::Act(action))),
            Effect::Stop => screen.stop()?,
            Effect::Redraw => screen.terminal.clear()?,
            Effect::Pause => {
                paused = !paused;
                let text = "stopped: Space goes on".to_owned();
                state.message = paused.then_some((text, false));
                let _ = wishes.send(Wish::Now);
            }
        }
    }
    Ok(())
}

/// What has come.
#[derive(Default)]
struct Taken {
    any: bool,
    /// An action is done.
    acted: bool,
}

/// Takes what has come.
fn take_news(state: &mut State, news: &Receiver<News>, paused: bool) -> Result<Taken> {
    let mut taken = Taken::default();
    loop {
        let new = match news.try_recv() {
            Ok(new) => new,
            Err(TryRecvError::Empty) => return Ok(taken),
            Err(TryRecvError::Disconnected) => {
                anyhow::bail!("the thread that asks the daemon has ended")
            }
        };
        taken.any = true;
        taken.acted |= matches!(new, News::Done(_));
        match new {
            News::Stats(..) | News::History(_) if paused => {}
            News::Stats(stats, seconds) => {
                state.take(*stats, seconds);
                look_up_users(state);
            }
            News::History(history) => state.history = history,
            News::Lost(why) => {
                if !matches!(state.link, Link::Down(..)) {
                    state.link = Link::Down(state.now, why);
                }
            }
            News::Done(text) => state.message = Some((text, false)),
            News::Failed(text) => state.message = Some((text, true)),
        }
    }
}

fn tick(state: &mut State) {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    state.now = now.as_secs_f64();
    let clock = date_and_time(state.now);
    state.clock = clock.split(' ').next_back().unwrap_or_default().to_owned();
}

fn look_up_users(state: &mut State) {
    let owners = state.stats.vgpus.iter().map(|vgpu| vgpu.owner_uid);
    let all = state.stats.vgpus.iter().flat_map(|vgpu| &vgpu.processes);
    let all: Vec<u32> = owners
        .chain(all.filter_map(|process| process.uid))
        .collect();
    for uid in all {
        state.users.entry(uid).or_insert_with(|| user_name(uid));
    }
}

fn sort(sort: SortArg) -> Sort {
    match sort {
        SortArg::Name => Sort::Name,
        SortArg::Share => Sort::Share,
        SortArg::Waiting => Sort::Waiting,
        SortArg::Memory => Sort::Memory,
        SortArg::Time => Sort::GpuTime,
    }
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim_end().to_owned()
}

/// Whether the locale says that the terminal takes UTF-8; where nothing is said, most do.
fn shows_unicode() -> bool {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
    let is_utf8 = |locale: String| locale.to_uppercase().replace('-', "").contains("UTF8");
    locale.is_none_or(is_utf8)
}

/// Set by a signal that asks for the end, so that the terminal is given back first.
static ENDED: AtomicBool = AtomicBool::new(false);

extern "C" fn end(_: libc::c_int) {
    ENDED.store(true, Relaxed);
}

fn ask_for_signals() {
    // SIGHUP keeps its default action: a closed terminal needs no restoring, and reading keys from a closed terminal
    // never returns.
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, end as *const () as libc::sighandler_t) };
    }
}
