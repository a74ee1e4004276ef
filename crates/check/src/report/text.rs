//! Findings for people.

use std::fmt::Write as _;

use crate::finding::{Allocation, AllocationState, Finding, Party, Place, Severity};

/// Calls of the host program that are shown of an allocation.
const FRAMES: usize = 8;

/// A finding in a few lines, the first of which says what it is.
pub fn text(finding: &Finding) -> String {
    let mut out = String::new();
    let name = finding.tool.name();
    let word = match finding.severity {
        Severity::Error => "",
        Severity::Warning => "warning: ",
        Severity::Note => "note: ",
    };
    let _ = writeln!(out, "{name}: {word}{} [{}]", finding.message, finding.kind);
    for (i, party) in finding.parties.iter().enumerate() {
        let _ = writeln!(
            out,
            "    {}",
            said(party, finding.address.filter(|_| i == 0))
        );
    }
    if !finding.kernel.is_empty() {
        let _ = writeln!(out, "    in kernel {}", finding.kernel);
    }
    if let Some(allocation) = &finding.allocation {
        allocation_lines(&mut out, allocation);
    }
    if finding.count > 1 {
        let _ = writeln!(out, "    seen {} times", finding.count);
    }
    out
}

fn said(party: &Party, address: Option<u64>) -> String {
    let [bx, by, bz] = party.block;
    let [x, y, z] = party.thread;
    let mut line = match party.access.as_str() {
        "" => "reached".to_owned(),
        access => format!("{access} of {} bytes", party.bytes),
    };
    if let Some(address) = address {
        let _ = write!(line, " at {address:#x}");
    }
    let _ = write!(line, " by thread ({x},{y},{z}) of block ({bx},{by},{bz})");
    match place(&party.place).as_str() {
        "" => {}
        place => {
            let _ = write!(line, ", {place}");
        }
    }
    line
}

/// A place, as short as it can be said; nothing where none is known.
pub(crate) fn place(place: &Place) -> String {
    match (&place.file, place.line, place.ptx_line) {
        (Some(file), 1.., _) => format!("{file}:{}", place.line),
        (_, _, 0) => String::new(),
        (_, _, ptx) => format!("PTX line {ptx} (build with -lineinfo for source lines)"),
    }
}

fn allocation_lines(out: &mut String, allocation: &Allocation) {
    let state = match allocation.state {
        AllocationState::Live => "",
        AllocationState::Freed => "freed ",
    };
    let bytes = allocation.bytes;
    let at = allocation.address;
    let where_ = match allocation.distance {
        0 => "inside".to_owned(),
        1 => "directly behind".to_owned(),
        d if d > 0 => format!("{} bytes behind", d - 1),
        d => format!("{} bytes before", d.unsigned_abs()),
    };
    let _ = writeln!(
        out,
        "    {where_} the {state}allocation of {bytes} bytes at {at:#x}"
    );
    if !allocation.stack.is_empty() {
        let _ = writeln!(out, "    which was made by");
    }
    for frame in allocation.stack.iter().take(FRAMES) {
        let _ = writeln!(out, "        {frame}");
    }
}

/// The last line: how many mistakes and warnings, and how many were suppressed.
pub fn summary(findings: &[Finding], suppressed: usize) -> String {
    let count = |severity| findings.iter().filter(|f| f.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let plural = |n: usize, word: &str| match n {
        1 => format!("1 {word}"),
        n => format!("{n} {word}s"),
    };
    let mut line = match (errors, warnings) {
        (0, 0) => "no mistakes found".to_owned(),
        (errors, 0) => plural(errors, "mistake"),
        (errors, warnings) => {
            format!(
                "{}, {}",
                plural(errors, "mistake"),
                plural(warnings, "warning")
            )
        }
    };
    if suppressed > 0 {
        let _ = write!(line, " ({suppressed} suppressed)");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Tool;

    #[test]
    fn a_finding_names_thread_line_and_allocation() {
        let finding = Finding {
            tool: Tool::Memcheck,
            kind: "out-of-bounds".into(),
            severity: Severity::Error,
            message: "write outside of any allocation".into(),
            kernel: "saxpy(int, float*)".into(),
            space: "global".into(),
            address: Some(0x1400),
            parties: vec![Party {
                access: "write".into(),
                bytes: 4,
                block: [1, 0, 0],
                thread: [33, 0, 0],
                place: Place {
                    file: Some("saxpy.cu".into()),
                    line: 12,
                    ptx_line: 40,
                },
            }],
            allocation: Some(Allocation {
                address: 0x1000,
                bytes: 1024,
                state: AllocationState::Live,
                what: String::new(),
                made_ms: None,
                distance: 1,
                stack: vec!["main (saxpy)".into()],
            }),
            count: 2,
        };
        assert_eq!(
            text(&finding),
            "memcheck: write outside of any allocation [out-of-bounds]\n    \
             write of 4 bytes at 0x1400 by thread (33,0,0) of block (1,0,0), saxpy.cu:12\n    \
             in kernel saxpy(int, float*)\n    \
             directly behind the allocation of 1024 bytes at 0x1000\n    \
             which was made by\n        main (saxpy)\n    \
             seen 2 times\n"
        );
        assert_eq!(summary(&[finding], 1), "1 mistake (1 suppressed)");
        assert_eq!(summary(&[], 0), "no mistakes found");
    }
}
