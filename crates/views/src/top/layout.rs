//! Where everything is on the screen: one place for drawing and for the mouse.

use ratatui_core::layout::Rect;

use super::state::{Sort, State};

/// Rows of the detail below the table, where there is room for it.
const DETAIL_ROWS: u16 = 9;
/// Rows from which on there is room.
const TALL: u16 = 34;
/// Columns from which on more figures are shown.
pub(crate) const WIDE: u16 = 120;

/// Parts of the screen, from top to bottom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) header: Rect,
    pub(crate) gpus: Rect,
    pub(crate) titles: Rect,
    pub(crate) rows: Rect,
    pub(crate) detail: Option<Rect>,
    pub(crate) status: Rect,
    pub(crate) keys: Rect,
}

impl Places {
    pub(crate) fn of(state: &State, area: Rect) -> Self {
        let mut top = area.y;
        let mut take = |height: u16, left: u16| {
            let height = height.min(left);
            let rect = Rect::new(area.x, top, area.width, height);
            top += height;
            rect
        };
        let header = take(1, area.height);
        // No more GPUs than leave room for the table.
        let gpus = (state.stats.gpus.len() as u16).clamp(1, (area.height / 3).max(1));
        let gpus = take(gpus, area.height.saturating_sub(1));
        let used = 1 + gpus.height;
        let titles = take(1, area.height.saturating_sub(used));
        let below = 2;
        let detail = match area.height >= TALL {
            true => DETAIL_ROWS,
            false => 0,
        };
        let rows = area
            .height
            .saturating_sub(used + titles.height + below + detail);
        let rows = take(rows, rows);
        let detail = (detail > 0).then(|| take(detail, detail));
        let status = take(1, 1);
        let keys = take(1, 1);
        Self {
            header,
            gpus,
            titles,
            rows,
            detail,
            status,
            keys,
        }
    }
}

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Name,
    State,
    Share,
    Waiting,
    Memory,
    Peak,
    Launches,
    GpuTime,
    User,
    Priority,
    History,
}

impl Column {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Name => "NAME",
            Self::State => "STATE",
            Self::Share => "SHARE got/asked",
            Self::Waiting => "WAITS",
            Self::Memory => "MEMORY used/limit",
            Self::Peak => "PEAK",
            Self::Launches => "LAUNCH/s",
            Self::GpuTime => "GPU TIME",
            Self::User => "USER",
            Self::Priority => "PRIO",
            Self::History => "HISTORY",
        }
    }

    /// What a click on the title sorts by.
    pub(crate) fn sort(self) -> Option<Sort> {
        match self {
            Self::Name => Some(Sort::Name),
            Self::Share => Some(Sort::Share),
            Self::Waiting => Some(Sort::Waiting),
            Self::Memory => Some(Sort::Memory),
            Self::GpuTime => Some(Sort::GpuTime),
            _ => None,
        }
    }
}

/// The columns of a table so wide: where each begins, and its columns.
pub(crate) fn table(width: u16) -> Vec<(Column, u16, u16)> {
    let columns: &[(Column, u16)] = match width >= WIDE {
        true => &[
            (Column::Name, 22),
            (Column::State, 9),
            (Column::Share, 26),
            (Column::Waiting, 6),
            (Column::Memory, 30),
            (Column::Peak, 9),
            (Column::Launches, 9),
            (Column::GpuTime, 9),
            (Column::User, 8),
            (Column::Priority, 6),
        ],
        false => &[
            (Column::Name, 14),
            (Column::State, 9),
            (Column::Share, 16),
            (Column::Waiting, 6),
            (Column::Memory, 19),
        ],
    };
    let mut placed = Vec::new();
    let mut x = 0;
    for (column, wide) in columns {
        if x >= width {
            return placed;
        }
        placed.push((*column, x, (*wide).min(width - x)));
        x += wide + 1;
    }
    if x + 4 <= width {
        placed.push((Column::History, x, width - x));
    }
    placed
}

/// The keys of the last line: what is pressed, and what it does.
pub(crate) const KEYS: [(char, &str); 10] = [
    ('q', "Quit"),
    ('/', "Filter"),
    ('s', "Sort"),
    ('+', "In"),
    ('-', "Out"),
    ('z', "Suspend"),
    ('r', "Resume"),
    ('e', "Resize"),
    ('x', "End"),
    ('?', "Help"),
];

/// Where the keys of the last line are: the key, its column, its columns.
pub(crate) fn keys_line(width: u16) -> Vec<(char, u16, u16)> {
    let mut x = 0;
    let mut placed = Vec::new();
    for (key, words) in KEYS {
        let wide = 2 + words.len() as u16;
        if x + wide > width {
            break;
        }
        placed.push((key, x, wide));
        x += wide + 1;
    }
    placed
}

/// The first row that is shown, so that the selected one is.
pub(crate) fn first_row(selected: Option<usize>, count: usize, room: usize) -> usize {
    let selected = selected.unwrap_or(0);
    let most = count.saturating_sub(room);
    selected.saturating_sub(room.saturating_sub(1)).min(most)
}
