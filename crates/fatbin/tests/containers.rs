//! Containers made by nvcc from `data/kernels.cu` (see `data/make.sh`).

use mica_fatbin::{
    Compression, Cubin, CubinParam, DEFAULT_PAYLOAD_LIMIT, EntryKind, Error, Format, Image,
};

fn data(name: &str) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn ptx_of(image: &Image<'_>, cc: u32) -> String {
    let entry = image.select_ptx(cc).expect("PTX for the device");
    let bytes = entry.payload(DEFAULT_PAYLOAD_LIMIT).unwrap();
    String::from_utf8(bytes.into_owned()).unwrap()
}

#[test]
fn every_compression_gives_the_same_ptx() {
    let mut texts = Vec::new();
    for (name, compression) in [
        ("plain.fatbin", Compression::None),
        ("lz4.fatbin", Compression::Lz4),
        ("zstd.fatbin", Compression::Zstd),
    ] {
        let bytes = data(name);
        let image = Image::parse(&bytes).unwrap();
        assert_eq!(image.format, Format::Fatbin);
        assert_eq!(image.entries[0].compression, compression, "{name}");
        assert_eq!(image.entries[0].kind, EntryKind::Ptx);
        assert_eq!((image.entries[0].sm, image.entries[0].suffix), (80, None));
        texts.push(ptx_of(&image, 80).trim().to_string());
    }
    assert!(texts[0].contains(".entry mixed("), "{}", texts[0]);
    assert_eq!(texts[0], texts[1]);
    assert_eq!(texts[0], texts[2]);
}

#[test]
fn payload_limit_is_kept() {
    let bytes = data("zstd.fatbin");
    let image = Image::parse(&bytes).unwrap();
    let result = image.entries[0].payload(100);
    assert!(
        matches!(result, Err(Error::Limit { limit: 100, .. })),
        "{result:?}"
    );
}

#[test]
fn the_highest_architecture_not_above_the_device_is_chosen() {
    let bytes = data("several.fatbin");
    let image = Image::parse(&bytes).unwrap();
    assert_eq!(image.select_ptx(90).map(|e| e.sm), Some(90));
    assert_eq!(image.select_ptx(120).map(|e| e.sm), Some(90));
    assert_eq!(image.select_ptx(80).map(|e| e.sm), Some(75));
    assert!(image.select_ptx(70).is_none());
    assert_eq!(image.select_cubin(86).map(|e| e.sm), Some(80));
    assert!(image.select_cubin(90).is_none());
    assert_eq!(
        image.describe(),
        "a fatbin with PTX for compute_90, compute_75; machine code for sm_80"
    );
}

#[test]
fn architecture_specific_code_runs_only_there() {
    let bytes = data("arch.fatbin");
    let image = Image::parse(&bytes).unwrap();
    assert_eq!(image.entries[0].arch(), "compute_90a");
    assert!(image.select_ptx(90).is_some());
    assert!(image.select_ptx(100).is_none());

    let bytes = data("family.fatbin");
    let image = Image::parse(&bytes).unwrap();
    assert_eq!(image.entries[0].arch(), "compute_100f");
    assert!(image.select_ptx(103).is_some());
    assert!(image.select_ptx(120).is_none());
}

#[test]
fn groups_hold_whole_cubins() {
    let bytes = data("group.fatbin");
    let image = Image::parse(&bytes).unwrap();
    let archs: Vec<String> = image.entries.iter().map(|e| e.arch()).collect();
    assert_eq!(archs, ["compute_90", "sm_90", "sm_80"]);
    for (entry, sm) in image.entries[1..].iter().zip([90, 80]) {
        let cubin = entry.payload(DEFAULT_PAYLOAD_LIMIT).unwrap();
        let cubin = Cubin::parse(&cubin).unwrap();
        assert_eq!(cubin.sm, sm);
        assert_eq!(cubin.kernels.len(), 3);
    }
}

#[test]
fn link_time_code_is_recognized_and_not_ptx() {
    let bytes = data("lto.fatbin");
    let image = Image::parse(&bytes).unwrap();
    assert_eq!(image.entries[0].kind, EntryKind::LtoIr);
    assert_eq!(
        image.describe(),
        "a fatbin with link-time intermediate code for compute_90; no PTX"
    );
}

#[test]
fn cubin_tells_kernels_and_parameters() {
    let bytes = data("sm_90.cubin");
    let image = Image::parse(&bytes).unwrap();
    assert_eq!(image.format, Format::Cubin);
    assert_eq!(
        image.describe(),
        "a cubin with machine code for sm_90; no PTX"
    );

    let cubin = Cubin::parse(&bytes).unwrap();
    let param = |ordinal, offset, size| CubinParam {
        ordinal,
        offset,
        size,
    };
    let mixed = cubin.kernel("mixed").unwrap();
    let expected = [
        param(0, 0, 4),
        param(1, 8, 24),
        param(2, 32, 1),
        param(3, 40, 8),
    ];
    assert_eq!(mixed.params, expected);
    assert_eq!(mixed.param_bytes, 48);
    let large = cubin.kernel("large").unwrap();
    let expected = [
        param(0, 0, 4),
        param(1, 4, 5000),
        param(2, 5008, 8),
        param(3, 5016, 8),
    ];
    assert_eq!(large.params, expected);
    assert_eq!(large.param_bytes, 5024);
    let bounded = cubin.kernel("bounded").unwrap();
    assert_eq!(bounded.max_threads, Some(192));
    assert!(
        bounded.registers.is_some_and(|r| (4..=255).contains(&r)),
        "{bounded:?}"
    );
    assert!(bounded.shared_bytes >= 768, "{bounded:?}");
    assert_eq!(mixed.max_threads, None);
}

#[test]
fn host_objects_and_archives_are_searched() {
    let bytes = data("kernels.obj");
    let image = Image::parse(&bytes).unwrap();
    assert_eq!(image.format, Format::HostElf);
    assert!(ptx_of(&image, 80).contains(".entry large("));

    let bytes = data("kernels.a");
    let image = Image::parse(&bytes).unwrap();
    assert_eq!(image.format, Format::Archive);
    let archs: Vec<String> = image.entries.iter().map(|e| e.arch()).collect();
    assert_eq!(archs, ["sm_90", "compute_80"]);
}

#[test]
fn plain_ptx_names_its_target() {
    for (text, arch) in [
        ("// c\n.version 8.0\n.target sm_90a, debug\n", "compute_90a"),
        (".version 6.3\n\t.target  sm_75\n\0rest", "compute_75"),
        (".version 6.3\n", "compute_?"),
    ] {
        let image = Image::parse(text.as_bytes()).unwrap();
        assert_eq!(image.format, Format::Ptx);
        assert_eq!(image.entries[0].arch(), arch);
    }
    let image = Image::parse(b".version 6.3\n.target sm_75\n\0rest").unwrap();
    assert_eq!(
        &*image.entries[0].payload(100).unwrap(),
        b".version 6.3\n.target sm_75\n"
    );
}

#[test]
fn refusals_say_why() {
    let message = |bytes: &[u8]| Image::parse(bytes).unwrap_err().to_string();
    assert_eq!(
        message(b"garbage!!"),
        "9 bytes that are not a fatbin, ELF, archive or PTX (they begin with [67, 61, 72, 62, 61, 67, 65, 21])"
    );
    assert_eq!(
        message(b""),
        "0 bytes that are not a fatbin, ELF, archive or PTX (they begin with [])"
    );
    let mut cut = data("zstd.fatbin");
    cut.truncate(100);
    assert_eq!(
        message(&cut),
        "a fatbin's entries needs 704 bytes at offset 16, past the end of the image"
    );
    let wrapper = [0xb1, 0x43, 0x62, 0x46, 1, 0, 0, 0];
    assert_eq!(Image::parse(&wrapper).unwrap_err(), Error::Wrapper);
}

#[test]
fn ptx_for_later_devices_is_taken_where_there_is_no_other() {
    let text = b".version 8.7\n.target sm_100\n.address_size 64\n";
    let image = Image::parse(text).unwrap();
    assert_eq!(image.select_ptx(80).map(|e| e.sm), None);
    assert_eq!(image.select_ptx_or_newer(80).map(|e| e.sm), Some(100));
}
