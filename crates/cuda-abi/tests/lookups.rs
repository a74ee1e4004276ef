//! Everything the runtime looks up when it starts is in the table, in the version it asks for.

use mica_cuda_abi::{DefaultStream, ENTRY_POINTS, resolve};

#[test]
fn cudart_13_finds_every_entry_point_it_asks_for() {
    let mut checked = 0;
    for line in include_str!("cudart13.tsv")
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        let mut fields = line.split('\t');
        let name = fields.next().unwrap();
        let version: u32 = fields.next().unwrap().parse().unwrap();
        let stream = match fields.next().unwrap() {
            "2" => DefaultStream::PerThread,
            _ => DefaultStream::Legacy,
        };
        let number = resolve(name, version, stream).unwrap_or_else(|| panic!("{line} is missing"));
        let entry = &ENTRY_POINTS[number];
        assert_eq!(
            (entry.base, entry.version),
            (name, version),
            "{line}: {}",
            entry.symbol
        );
        checked += 1;
    }
    assert!(checked > 400, "only {checked} lines");
}
