//! What the driver of an NVIDIA card needs of the file system: for whoever confines a process that uses it.

use std::path::{Path, PathBuf};

/// Where the kernel module describes its cards.
const CARDS: &str = "/proc/driver/nvidia/gpus";

/// Device nodes for the card with this UUID: the card's own, and those every card needs. All cards' nodes where
/// the kernel module does not tell which is which.
pub fn nodes_of(uuid: &str) -> Vec<PathBuf> {
    nodes(Path::new(CARDS), Path::new("/dev"), uuid)
}

fn nodes(cards: &Path, dev: &Path, uuid: &str) -> Vec<PathBuf> {
    let minor = minor_of(cards, uuid);
    let is_wanted = |name: &str| match name {
        "nvidiactl" | "nvidia-uvm" => true,
        _ => name.strip_prefix("nvidia").is_some_and(|number| {
            let is_card = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
            is_card && minor.as_deref().is_none_or(|minor| minor == number)
        }),
    };
    let mut nodes: Vec<PathBuf> = std::fs::read_dir(dev)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(is_wanted))
        .map(|entry| entry.path())
        .collect();
    nodes.sort();
    nodes
}

/// The number in the name of the device node of a card.
fn minor_of(cards: &Path, uuid: &str) -> Option<String> {
    let texts = std::fs::read_dir(cards)
        .ok()?
        .flatten()
        .filter_map(|card| std::fs::read_to_string(card.path().join("information")).ok());
    let value = |text: &str, key: &str| {
        text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim().to_owned())
        })
    };
    texts
        .filter(|text| value(text, "GPU UUID").is_some_and(|u| u == uuid))
        .find_map(|text| value(&text, "Device Minor"))
}

/// Folders and files from which the driver loads code and settings.
pub fn driver_libraries() -> Vec<PathBuf> {
    let fixed = [
        "/lib",
        "/lib64",
        "/usr/lib",
        "/usr/lib64",
        "/usr/local/nvidia",
        "/usr/local/cuda",
        "/etc/ld.so.cache",
        "/run/nvidia",
    ];
    let named = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let named = std::env::split_paths(&named).filter(|path| path.is_absolute());
    let mut all: Vec<PathBuf> = fixed.into_iter().map(PathBuf::from).chain(named).collect();
    // A link is replaced by its target's own path too, so that both names lead to the file.
    let targets: Vec<PathBuf> = all.iter().filter_map(|p| p.canonicalize().ok()).collect();
    all.extend(targets);
    all.retain(|path| path.exists());
    all.sort();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_nodes_of_one_card_and_of_the_driver_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let (cards, dev) = (dir.path().join("gpus"), dir.path().join("dev"));
        for (slot, uuid, minor) in [("0000:01", "GPU-a", 0), ("0000:02", "GPU-b", 10)] {
            let card = cards.join(slot);
            std::fs::create_dir_all(&card).unwrap();
            let text = format!("Model: \t X\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n");
            std::fs::write(card.join("information"), text).unwrap();
        }
        std::fs::create_dir(&dev).unwrap();
        let files =
            "nvidia0 nvidia1 nvidia10 nvidiactl nvidia-uvm nvidia-uvm-tools nvidia-modeset null";
        for name in files.split(' ') {
            std::fs::write(dev.join(name), "").unwrap();
        }
        let names = |uuid: &str| -> Vec<String> {
            let nodes = nodes(&cards, &dev, uuid).into_iter();
            nodes
                .map(|n| n.file_name().unwrap().to_string_lossy().into_owned())
                .collect()
        };
        assert_eq!(names("GPU-b"), ["nvidia-uvm", "nvidia10", "nvidiactl"]);
        assert_eq!(names("GPU-a"), ["nvidia-uvm", "nvidia0", "nvidiactl"]);
        assert_eq!(names("?").len(), 5, "unknown: every card's");
    }
}
