//! `mica memory`: where the memory of a virtual GPU is, piece by piece.

use anyhow::Result;
use mica_command::refusal::explain;
use mica_command::size::show_bytes;
use mica_command::table::Table;
use mica_control::api::{MemoryMap, MemoryPiece, ProgramMemory};
use mica_wire::host::printable::printable;

use super::print_json;
use crate::args::MemoryArgs;
use crate::control::connect;

/// Cells of the drawing.
const CELLS: u64 = 64;
/// Rows of the table; the rest is summed up.
const ROWS: usize = 20;

pub(crate) fn memory(args: &MemoryArgs) -> Result<()> {
    let client = connect()?;
    let before = client.memory(&args.vgpu.name).map_err(explain)?;
    let map = match args.compact {
        true => client.compact(&args.vgpu.name).map_err(explain)?,
        false => before.clone(),
    };
    if args.vgpu.json {
        return print_json(&map);
    }
    if args.compact {
        outln!("{}", given_back(&before, &map));
    }
    out!("{}", words(&map));
    Ok(())
}

/// What a compaction gave back.
fn given_back(before: &MemoryMap, after: &MemoryMap) -> String {
    let less = |bytes: fn(&ProgramMemory) -> u64| {
        let sum = |map: &MemoryMap| map.programs.iter().map(bytes).sum::<u64>();
        sum(before).saturating_sub(sum(after))
    };
    let device = less(|program| program.pool.held_bytes);
    let host = less(|program| program.arena_bytes);
    match (device, host) {
        (0, 0) => "nothing is kept for later".to_owned(),
        (device, 0) => format!("{} of the GPU given back", show_bytes(device)),
        (device, host) => format!(
            "{} of the GPU and {} of host memory given back",
            show_bytes(device),
            show_bytes(host)
        ),
    }
}

fn words(map: &MemoryMap) -> String {
    let mut text = format!(
        "{}: {} of {} in use",
        printable(&map.name),
        show_bytes(map.used_bytes),
        show_bytes(map.limit_bytes)
    );
    if let Some(bytes) = map.largest_free_bytes {
        text += &format!(", {} can still be had in one piece", show_bytes(bytes));
    }
    text.push('\n');
    if map.programs.is_empty() {
        text += "no programs\n";
    }
    for program in &map.programs {
        text.push('\n');
        text += &program_words(program);
    }
    text
}

fn program_words(program: &ProgramMemory) -> String {
    let ProgramMemory { pid, name, .. } = program;
    let title = format!("program {pid} {}", printable(name));
    let title = title.trim_end();
    if program.unanswered {
        return format!("{title}: its worker does not answer\n");
    }
    let count = match program.pieces_total {
        1 => "1 piece".to_owned(),
        count => format!("{count} pieces"),
    };
    let mut text = format!(
        "{title}: {count}, {} asked for",
        show_bytes(program.asked_bytes)
    );
    for (bytes, what) in [
        (program.away_bytes, "in host memory"),
        (program.pinned_bytes, "cannot leave the GPU"),
        (program.arena_bytes, "of host memory stand ready"),
    ] {
        if bytes > 0 {
            text += &format!(", {} {what}", show_bytes(bytes));
        }
    }
    text.push('\n');
    let pool = &program.pool;
    if pool.held_bytes > 0 {
        text += &format!(
            "  pool  {} held for {} in {} pieces, waste {:.1} %; largest free piece {} (fragmentation {:.1} %)\n",
            show_bytes(pool.held_bytes),
            show_bytes(pool.asked_bytes),
            pool.pieces,
            pool.waste_percent,
            show_bytes(pool.largest_free_bytes),
            pool.fragmentation_percent,
        );
    }
    if !program.pieces.is_empty() {
        text += &format!("  map   {}\n", drawing(&program.pieces));
        text += "        █ on the GPU  ▒ in host memory  ◆ cannot leave\n";
        text += &table(program);
    }
    text
}

/// The pieces in the order of their addresses, each as long as its part of all of them.
fn drawing(pieces: &[MemoryPiece]) -> String {
    let all: u64 = pieces.iter().map(|piece| piece.asked_bytes.max(1)).sum();
    let mut text = String::new();
    let (mut seen, mut drawn) = (0_u64, 0_u64);
    for piece in pieces {
        seen += piece.asked_bytes.max(1);
        let until = (u128::from(seen) * u128::from(CELLS) / u128::from(all)) as u64;
        let cell = match (piece.away, &piece.pinned) {
            (_, Some(_)) => '◆',
            (true, None) => '▒',
            (false, None) => '█',
        };
        text.extend((drawn..until).map(|_| cell));
        drawn = until;
    }
    text
}

fn table(program: &ProgramMemory) -> String {
    let mut largest: Vec<&MemoryPiece> = program.pieces.iter().collect();
    largest.sort_by_key(|piece| std::cmp::Reverse(piece.asked_bytes));
    largest.truncate(ROWS);
    let shown: u64 = largest.iter().map(|piece| piece.asked_bytes).sum();
    let rest = program.pieces_total.saturating_sub(largest.len() as u64);
    let mut table = Table::new(&["ADDRESS", "WHAT", "ASKED FOR", "HELD", "WHERE"]);
    for piece in largest {
        let held = match piece.held_bytes {
            0 => "with others".to_owned(),
            bytes => show_bytes(bytes),
        };
        let place = match (piece.away, &piece.pinned) {
            (_, Some(why)) => format!("GPU: {}", printable(why)),
            (true, None) => "host".to_owned(),
            (false, None) => "GPU".to_owned(),
        };
        table.row(vec![
            format!("{:#x}", piece.address),
            piece.kind.to_string(),
            show_bytes(piece.asked_bytes),
            held,
            place,
        ]);
    }
    let mut text = String::new();
    for line in table.render().lines() {
        text += &format!("  {line}\n");
    }
    if rest > 0 {
        let bytes = show_bytes(program.asked_bytes.saturating_sub(shown));
        text += &format!("  and {rest} more of {bytes} together (--json shows up to 512)\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(bytes: u64, away: bool, pinned: Option<&str>) -> MemoryPiece {
        MemoryPiece {
            asked_bytes: bytes,
            held_bytes: bytes,
            away,
            pinned: pinned.map(str::to_owned),
            ..MemoryPiece::default()
        }
    }

    #[test]
    fn a_map_is_as_long_as_it_should_be_and_shows_where_pieces_are() {
        let pieces = [
            piece(512, false, None),
            piece(256, true, None),
            piece(256, false, Some("shared")),
        ];
        let map = drawing(&pieces);
        assert_eq!(map, "█".repeat(32) + &"▒".repeat(16) + &"◆".repeat(16));
        let many: Vec<MemoryPiece> = (0..1000).map(|_| piece(1, false, None)).collect();
        assert_eq!(drawing(&many).chars().count(), 64);
    }

    #[test]
    fn the_words_say_what_is_away_and_why_something_stays() {
        let map = MemoryMap {
            name: "a".into(),
            limit_bytes: 16 << 20,
            used_bytes: 6 << 20,
            largest_free_bytes: Some(10 << 20),
            programs: vec![ProgramMemory {
                pid: 7,
                name: "python".into(),
                pieces_total: 30,
                asked_bytes: 6 << 20,
                away_bytes: 4 << 20,
                pinned_bytes: 2 << 20,
                pieces: vec![
                    piece(4 << 20, true, None),
                    piece(2 << 20, false, Some("shared with another process")),
                ],
                ..ProgramMemory::default()
            }],
        };
        let text = words(&map);
        for part in [
            "a: 6 MiB of 16 MiB in use, 10 MiB can still be had in one piece",
            "program 7 python: 30 pieces, 6 MiB asked for, 4 MiB in host memory, 2 MiB cannot leave the GPU",
            "GPU: shared with another process",
            "and 28 more of 0 B together",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
    }
}
