//! Archives whose bytes depend on their contents alone: tar, ar, gzip, and SHA-256.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::files::{Files, Node};

const BLOCK: usize = 512;

/// A tar archive (ustar) of files that belong to root.
pub(super) fn tar(files: &Files, date: u64) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    for (path, node) in files.iter() {
        let (kind, mode, content) = match node {
            Node::Folder => (b'5', 0o755, &[][..]),
            Node::OpenFolder => (b'5', 0o1777, &[][..]),
            Node::File(content) => (b'0', 0o644, &content[..]),
            Node::Program(content) => (b'0', 0o755, &content[..]),
        };
        let name = if kind == b'5' {
            format!("{path}/")
        } else {
            path.to_owned()
        };
        out.extend(header(&name, kind, mode, content.len(), date)?);
        out.extend(content);
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
    // Two empty blocks end an archive.
    out.resize(out.len() + 2 * BLOCK, 0);
    Ok(out)
}

fn header(name: &str, kind: u8, mode: u32, size: usize, date: u64) -> Result<[u8; BLOCK]> {
    let (prefix, name) = split(name).with_context(|| format!("{name} is too long for tar"))?;
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name.as_bytes());
    put(100, format!("{mode:07o}\0").as_bytes());
    put(108, b"0000000\x000000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, format!("{date:011o}\0").as_bytes());
    put(156, &[kind]);
    put(257, b"ustar\x0000root");
    put(297, b"root");
    put(345, prefix.as_bytes());
    // The sum is taken with blanks in its own place.
    put(148, b"        ");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(block)
}

/// A path in the two fields that tar has for it: at most 155 and 100 bytes, parted at a slash.
fn split(path: &str) -> Option<(&str, &str)> {
    if path.len() <= 100 {
        return Some(("", path));
    }
    let slashes = path.match_indices('/').map(|(at, _)| at);
    let mut parts = slashes.map(|at| (&path[..at], &path[at + 1..]));
    parts.find(|(prefix, name)| prefix.len() <= 155 && name.len() <= 100 && !name.is_empty())
}

/// An ar archive, as a Debian package is.
pub(super) fn ar(members: &[(&str, &[u8])], date: u64) -> Vec<u8> {
    let mut out = b"!<arch>\n".to_vec();
    for (name, content) in members {
        let size = content.len();
        out.extend(format!("{name:<16}{date:<12}0     0     100644  {size:<10}`\n").as_bytes());
        out.extend(*content);
        if size % 2 == 1 {
            out.push(b'\n');
        }
    }
    out
}

/// Compressed by gzip, without a name and a time.
pub(super) fn gzip(content: &[u8]) -> Result<Vec<u8>> {
    filter(Command::new("gzip").arg("-9n"), content)
}

/// What a program prints when it reads `input`.
pub(super) fn filter(command: &mut Command, input: &[u8]) -> Result<Vec<u8>> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{:?} cannot start", command.get_program()))?;
    let stdin = child.stdin.take();
    let output = std::thread::scope(|threads| {
        // The program prints before it has read everything. One that does not read on says why by its status.
        threads.spawn(|| stdin.map(|mut stdin| stdin.write_all(input)));
        child.wait_with_output()
    })?;
    if !output.status.success() {
        bail!("{command:?} failed ({})", output.status);
    }
    Ok(output.stdout)
}

/// SHA-256 in hexadecimal.
pub(super) fn sha256(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(archive: &[u8]) -> String {
        let mut tar = Command::new("tar");
        tar.args([
            "--list",
            "--verbose",
            "--numeric-owner",
            "--utc",
            "--file=-",
        ]);
        String::from_utf8(filter(&mut tar, archive).unwrap()).unwrap()
    }

    #[test]
    fn tar_reads_what_was_written() {
        let mut files = Files::default();
        let long = format!("share/{}/{}", "a".repeat(90), "b".repeat(60));
        files.add(&long, Node::File(b"long".to_vec()));
        files.add("/bin/mica", Node::Program(vec![7; 700]));
        files.add("tmp", Node::OpenFolder);
        let archive = tar(&files, 86_400).unwrap();
        let text = listing(&archive);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 6, "{text}");
        assert!(lines[0].starts_with("drwxr-xr-x 0/0"), "{text}");
        assert!(lines[0].ends_with("1970-01-02 00:00 bin/"), "{text}");
        assert!(lines[1].starts_with("-rwxr-xr-x 0/0"), "{text}");
        assert!(lines[1].contains("700 1970-01-02"), "{text}");
        assert!(lines[4].ends_with(&long), "{text}");
        assert!(lines[5].starts_with("drwxrwxrwt"), "{text}");
        assert_eq!(archive, tar(&files, 86_400).unwrap());
    }

    #[test]
    fn a_name_past_tars_fields_is_refused() {
        let mut files = Files::default();
        files.add(&"x".repeat(101), Node::Folder);
        assert!(tar(&files, 0).is_err());
    }

    #[test]
    fn compressed_bytes_come_back() {
        let content = vec![42; 1 << 20];
        let compressed = gzip(&content).unwrap();
        assert!(compressed.len() < content.len() / 100);
        let back = filter(Command::new("gzip").arg("-dc"), &compressed).unwrap();
        assert_eq!(back, content);
    }

    #[test]
    fn ar_pads_members_to_even_sizes() {
        let archive = ar(&[("odd", b"abc"), ("even", b"de")], 5);
        assert_eq!(archive.len(), 8 + 60 + 4 + 60 + 2);
        assert_eq!(&archive[8 + 60 + 3..8 + 60 + 8], b"\neven");
    }

    #[test]
    fn sha256_of_nothing_is_the_known_one() {
        let expected = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sha256(b""), expected);
    }
}
