//! What keys and the mouse do to the state.

use ratatui_core::layout::Rect;
use ratatui_crossterm::crossterm::event::{
    Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};

use super::act::{Action, parse_resize};
use super::layout::{Places, first_row, keys_line, table};
use super::rows::rows;
use super::state::{Prompt, RowKey, SPANS, State};

/// What the screen must do besides drawing.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Effect {
    None,
    Quit,
    /// Another span of time was chosen.
    Zoomed,
    Act(Action),
    /// Stop this program as Ctrl-Z does.
    Stop,
    /// Draw everything again.
    Redraw,
    /// Stop or go on asking.
    Pause,
}

/// Takes an event.
pub(crate) fn on_event(state: &mut State, area: Rect, event: &Event) -> Effect {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => on_key(state, area, *key),
        Event::Mouse(mouse) => on_mouse(state, area, *mouse),
        Event::Paste(text) => {
            for letter in text.chars().filter(|c| !c.is_control()) {
                type_letter(state, letter);
            }
            Effect::None
        }
        _ => Effect::None,
    }
}

fn on_key(state: &mut State, area: Rect, key: KeyEvent) -> Effect {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Effect::Quit,
            KeyCode::Char('z') => Effect::Stop,
            KeyCode::Char('l') => Effect::Redraw,
            _ => Effect::None,
        };
    }
    match state.prompt.clone() {
        Some(Prompt::Help) => {
            state.prompt = None;
            Effect::None
        }
        Some(Prompt::Confirm(action)) => answer(state, action, key.code),
        Some(Prompt::Filter | Prompt::Resize { .. }) => typed(state, key.code),
        None => command(state, area, key.code),
    }
}

fn answer(state: &mut State, action: Action, key: KeyCode) -> Effect {
    match key {
        KeyCode::Char('y' | 'Y') => {
            state.prompt = None;
            state.message = None;
            Effect::Act(action)
        }
        KeyCode::Char('n' | 'N' | 'q') | KeyCode::Esc => {
            state.prompt = None;
            state.message = Some(("nothing was done".to_owned(), false));
            Effect::None
        }
        // Enter and letters that were meant for something else do nothing.
        _ => Effect::None,
    }
}

fn type_letter(state: &mut State, letter: char) {
    match &mut state.prompt {
        Some(Prompt::Filter) => state.filter.push(letter),
        Some(Prompt::Resize { text, wrong, .. }) => {
            text.push(letter);
            *wrong = None;
        }
        _ => {}
    }
}

fn typed(state: &mut State, key: KeyCode) -> Effect {
    match key {
        KeyCode::Char(letter) => type_letter(state, letter),
        KeyCode::Backspace => match &mut state.prompt {
            Some(Prompt::Filter) => drop(state.filter.pop()),
            Some(Prompt::Resize { text, .. }) => drop(text.pop()),
            _ => {}
        },
        KeyCode::Esc => {
            if state.prompt == Some(Prompt::Filter) {
                state.filter.clear();
            }
            state.prompt = None;
        }
        KeyCode::Enter => match state.prompt.take() {
            Some(Prompt::Resize { vgpu, text, .. }) => {
                state.prompt = Some(match parse_resize(&text) {
                    Ok(change) => Prompt::Confirm(Action::Resize(vgpu, change)),
                    Err(why) => Prompt::Resize {
                        vgpu,
                        text,
                        wrong: Some(why),
                    },
                });
            }
            _ => select_visible(state),
        },
        _ => {}
    }
    Effect::None
}

/// Selects a row that the filter lets through.
fn select_visible(state: &mut State) {
    let keys: Vec<RowKey> = rows(state).iter().map(|row| row.key()).collect();
    if !state
        .selected
        .as_ref()
        .is_some_and(|key| keys.contains(key))
    {
        state.selected = keys.first().cloned();
    }
}

fn command(state: &mut State, area: Rect, key: KeyCode) -> Effect {
    let page = i32::from(Places::of(state, area).rows.height.max(2)) - 1;
    state.message = None;
    match key {
        KeyCode::Char('q') => return Effect::Quit,
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => state.prompt = Some(Prompt::Help),
        KeyCode::Char('/') => state.prompt = Some(Prompt::Filter),
        KeyCode::Esc => state.filter.clear(),
        KeyCode::Char('s') => state.sort_next(),
        KeyCode::Char('S') => state.reversed = !state.reversed,
        KeyCode::Char('+' | '=') => return zoom(state, -1),
        KeyCode::Char('-' | '_') => return zoom(state, 1),
        KeyCode::Char(' ') => return Effect::Pause,
        KeyCode::Down | KeyCode::Char('j') => select(state, 1),
        KeyCode::Up | KeyCode::Char('k') => select(state, -1),
        KeyCode::PageDown => select(state, page),
        KeyCode::PageUp => select(state, -page),
        KeyCode::Home => select(state, i32::MIN),
        KeyCode::End => select(state, i32::MAX),
        KeyCode::Enter => fold(state),
        KeyCode::Char('z') => ask(state, |name| Some(Action::Suspend(name))),
        KeyCode::Char('r') => ask(state, |name| Some(Action::Resume(name))),
        KeyCode::Char('c') => ask(state, |name| Some(Action::Cancel(name))),
        KeyCode::Char('e') => resize(state),
        KeyCode::Char('x') => end(state, false),
        KeyCode::Char('X') => end(state, true),
        _ => {}
    }
    Effect::None
}

fn zoom(state: &mut State, by: i32) -> Effect {
    let most = SPANS.len() as i32 - 1;
    let zoom = (state.zoom as i32 + by).clamp(0, most) as usize;
    if zoom == state.zoom {
        return Effect::None;
    }
    state.zoom = zoom;
    Effect::Zoomed
}

/// Moves the selection by a number of rows, within the table.
pub(crate) fn select(state: &mut State, by: i32) {
    let keys: Vec<RowKey> = rows(state).iter().map(|row| row.key()).collect();
    let place = state
        .selected
        .as_ref()
        .and_then(|key| keys.iter().position(|k| k == key));
    let last = keys.len().saturating_sub(1) as i64;
    let place = match place {
        Some(place) => (place as i64 + i64::from(by)).clamp(0, last),
        None if by == i32::MAX => last,
        None => 0,
    };
    state.selected = keys.get(place as usize).cloned();
}

fn fold(state: &mut State) {
    let Some(name) = state.selected.as_ref().map(|key| key.vgpu().to_owned()) else {
        return;
    };
    if !state.folded.remove(&name) {
        state.folded.insert(name.clone());
        state.selected = Some(RowKey::Vgpu(name));
    }
}

fn ask(state: &mut State, action: impl Fn(String) -> Option<Action>) {
    let name = state.selected_vgpu().map(|vgpu| vgpu.name.clone());
    match name.and_then(action) {
        Some(action) => state.prompt = Some(Prompt::Confirm(action)),
        None => state.message = Some(("select a virtual GPU first".to_owned(), true)),
    }
}

fn resize(state: &mut State) {
    let Some(vgpu) = state.selected_vgpu() else {
        return ask(state, |_| None);
    };
    let mebibytes = vgpu.memory_limit_bytes >> 20;
    let share = match vgpu.share_reserved {
        true => format!(" share={}", vgpu.share_percent),
        false => String::new(),
    };
    state.prompt = Some(Prompt::Resize {
        vgpu: vgpu.name.clone(),
        text: format!("memory={mebibytes}MiB{share}"),
        wrong: None,
    });
}

fn end(state: &mut State, kill: bool) {
    let key = state.selected.clone();
    let Some((key, vgpu)) = key.and_then(|key| Some((key, state.selected_vgpu()?))) else {
        return ask(state, |_| None);
    };
    let programs = vgpu.processes.iter();
    let wanted = programs.filter(|process| match &key {
        RowKey::Vgpu(_) => true,
        RowKey::Container(_, name) => process.container.as_ref() == Some(name),
        RowKey::Process(_, pid) => process.pid == *pid,
    });
    let pids: Vec<u32> = wanted.map(|process| process.pid).collect();
    let vgpu = vgpu.name.clone();
    match pids.is_empty() {
        true => state.message = Some((format!("no program runs in {vgpu}"), true)),
        false => state.prompt = Some(Prompt::Confirm(Action::End { vgpu, pids, kill })),
    }
}

fn on_mouse(state: &mut State, area: Rect, mouse: MouseEvent) -> Effect {
    match mouse.kind {
        MouseEventKind::ScrollDown if state.prompt.is_none() => select(state, 3),
        MouseEventKind::ScrollUp if state.prompt.is_none() => select(state, -3),
        MouseEventKind::Down(MouseButton::Left) => {
            return click(state, area, mouse.column, mouse.row);
        }
        _ => {}
    }
    Effect::None
}

fn click(state: &mut State, area: Rect, x: u16, y: u16) -> Effect {
    if state.prompt == Some(Prompt::Help) {
        state.prompt = None;
        return Effect::None;
    }
    let places = Places::of(state, area);
    let within = |begin: u16, wide: u16| (begin..begin + wide).contains(&x);
    if y == places.keys.y && state.prompt.is_none() {
        let keys = keys_line(places.keys.width);
        let key = keys.iter().find(|(_, begin, wide)| within(*begin, *wide));
        return match key {
            Some((key, ..)) => command(state, area, KeyCode::Char(*key)),
            None => Effect::None,
        };
    }
    if y == places.titles.y {
        let columns = table(places.titles.width);
        let column = columns
            .iter()
            .find(|(_, begin, wide)| within(*begin, *wide));
        if let Some(sort) = column.and_then(|(column, ..)| column.sort()) {
            state.sort_by(sort);
        }
    } else if (places.rows.y..places.rows.y + places.rows.height).contains(&y)
        && state.prompt.is_none()
    {
        let keys: Vec<RowKey> = rows(state).iter().map(|row| row.key()).collect();
        let selected = state.selected.as_ref();
        let selected = selected.and_then(|key| keys.iter().position(|k| k == key));
        let first = first_row(selected, keys.len(), places.rows.height.into());
        if let Some(key) = keys.get(first + usize::from(y - places.rows.y)) {
            state.selected = Some(key.clone());
        }
    }
    Effect::None
}
