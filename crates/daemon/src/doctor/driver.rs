//! What is known of the driver on this host.

use mica_control::api::{Check, Verdict};

/// Facts about the driver on this host, as checks; none where there is no driver. Reads files, so the
/// registry's lock must not be held.
pub(crate) fn driver_checks() -> Vec<Check> {
    let mut checks = Vec::new();
    let mut check = |what: &str, verdict, evidence| {
        checks.push(Check {
            what: what.into(),
            vgpu: None,
            verdict,
            evidence,
        });
    };
    if let Ok(text) = std::fs::read_to_string("/proc/driver/nvidia/version") {
        let (verdict, evidence) = kernel_module(&text);
        check("kernel module", verdict, evidence);
    }
    let entry_points = mica_backend_cuda::symbols::unknown_entry_points();
    if let Some(why) = crate::nvidia::absent() {
        // Without a driver, nobody expects a card.
        let verdict = match entry_points {
            Some(_) => Verdict::Warning,
            None => Verdict::Ok,
        };
        check("NVIDIA GPUs", verdict, format!("none: {why}"));
    }
    if let Some((path, unknown)) = entry_points {
        let path = path.display();
        if unknown.is_empty() {
            let text =
                format!("{path} exports nothing that allocates or launches and is not known");
            check("entry points of the driver", Verdict::Ok, text);
        } else {
            let text = format!(
                "{path} exports {} that may allocate or launch and that this Mica does not know: {}",
                unknown.len(),
                unknown.join(", ")
            );
            check("entry points of the driver", Verdict::Warning, text);
        }
    }
    checks
}

fn kernel_module(text: &str) -> (Verdict, String) {
    let line = text.lines().next().unwrap_or_default().trim();
    let line = line.split_once(':').map_or(line, |(_, rest)| rest.trim());
    let words: Vec<&str> = line.split_whitespace().collect();
    if line.contains("Open Kernel Module") {
        (Verdict::Ok, format!("open: {}", words.join(" ")))
    } else {
        let text = format!(
            "closed: {} (slices are proven on the open one)",
            words.join(" ")
        );
        (Verdict::Warning, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_and_closed_modules_are_distinguished() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release\nGCC version: 12\n";
        let (verdict, text) = kernel_module(open);
        assert_eq!(verdict, Verdict::Ok);
        assert!(text.starts_with("open: NVIDIA UNIX"), "{text}");
        assert!(text.contains("580.95.05"), "{text}");
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n";
        assert_eq!(kernel_module(closed).0, Verdict::Warning);
    }
}
