use super::*;

fn store() -> (tempfile::TempDir, DiskCodeCache) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = DiskCodeCache::open(&dir.path().join("code"), 1 << 20).expect("opens");
    (dir, store)
}

fn files(store: &DiskCodeCache) -> usize {
    std::fs::read_dir(&store.dir).expect("lists").count()
}

#[test]
fn what_is_saved_is_loaded() {
    let (_dir, s) = store();
    assert_eq!(s.load("a"), None);
    s.save("a", b"one");
    s.save("a", b"two");
    assert_eq!(s.load("a").as_deref(), Some(&b"two"[..]));
    assert_eq!(s.load("b"), None);
    assert_eq!(files(&s), 1, "no temporary files stay");
}

#[test]
fn damaged_files_are_not_used_and_are_replaced() {
    let (_dir, s) = store();
    s.save("a", b"some bytes");
    let path = s.path("a");
    let good = std::fs::read(&path).expect("reads");
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        std::fs::write(&path, &bad).expect("writes");
        assert_eq!(s.load("a"), None, "byte {at}");
    }
    for length in 0..good.len() {
        std::fs::write(&path, &good[..length]).expect("writes");
        assert_eq!(s.load("a"), None, "cut to {length} bytes");
    }
    s.save("a", b"some bytes");
    assert_eq!(s.load("a").as_deref(), Some(&b"some bytes"[..]));
}

#[test]
fn a_file_is_used_for_its_own_key_only() {
    let (_dir, s) = store();
    s.save("a", b"code of a");
    s.save("b", b"code of b");
    std::fs::rename(s.path("a"), s.path("b")).expect("renames");
    assert_eq!(s.load("b"), None, "whole, but of another kernel");
    std::fs::copy(s.path("b"), s.path("a")).expect("copies");
    assert_eq!(s.load("a").as_deref(), Some(&b"code of a"[..]));
    s.save("b", b"code of b");
    assert_eq!(s.load("b").as_deref(), Some(&b"code of b"[..]));
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let (_dir, s) = store();
    let path = std::ffi::CString::new(s.path("a").as_os_str().as_encoded_bytes());
    let path = path.expect("a path");
    // SAFETY: a path that ends with 0.
    let made = unsafe { libc::mkfifo(path.as_ptr(), 0o600) };
    assert_eq!(made, 0);
    assert_eq!(s.load("a"), None, "a pipe");
    std::fs::remove_file(s.path("a")).expect("removes");
    std::fs::create_dir(s.path("a")).expect("makes");
    assert_eq!(s.load("a"), None, "a directory");
}

#[test]
fn files_are_readable_by_their_owner_only() {
    let (_dir, s) = store();
    s.save("a", b"one");
    let mode = std::fs::metadata(s.path("a")).expect("its mode").mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn directories_and_files_of_others_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).expect("chmod");
    assert!(DiskCodeCache::open(dir.path(), 1 << 20).is_err());

    let (_dir, s) = store();
    s.save("a", b"one");
    std::fs::set_permissions(s.path("a"), PermissionsExt::from_mode(0o666)).expect("chmod");
    assert_eq!(s.load("a"), None);
    s.save("b", b"two");
    std::fs::remove_file(s.path("a")).expect("removes");
    // Only root can give a file away.
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } == 0 {
        s.save("a", b"one");
        std::os::unix::fs::chown(s.path("a"), Some(65534), None).expect("chown");
        assert_eq!(s.load("a"), None, "another user's");
        std::fs::remove_file(s.path("a")).expect("removes");
    }
    std::os::unix::fs::symlink(s.path("b"), s.path("a")).expect("links");
    assert_eq!(s.load("a"), None, "a link is not followed");
}

#[test]
fn writers_of_one_key_never_mix() {
    let (_dir, s) = store();
    let value = |who: u8| vec![who; 3000 + usize::from(who)];
    std::thread::scope(|scope| {
        for who in 0..4 {
            let (s, value) = (&s, &value);
            scope.spawn(move || {
                for _ in 0..50 {
                    s.save("a", &value(who));
                    let found = s.load("a").expect("someone's");
                    assert_eq!(found, value(found[0]));
                }
            });
        }
    });
    assert_eq!(files(&s), 1);
}

#[test]
fn a_disk_that_fills_up_leaves_nothing_behind() {
    let (_dir, s) = store();
    let full = s.put(&s.path("a"), |file| {
        file.write_all(b"the beginning")?;
        Err(io::ErrorKind::StorageFull.into())
    });
    assert!(full.is_err());
    assert_eq!((files(&s), s.load("a")), (0, None));
}

#[test]
fn a_directory_that_cannot_be_had_is_an_error_and_one_that_vanishes_is_none() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file");
    std::fs::write(&file, b"").expect("writes");
    assert!(DiskCodeCache::open(&file.join("code"), 1 << 20).is_err());

    let (_dir, s) = store();
    std::fs::remove_dir(&s.dir).expect("removes");
    s.save("a", b"one");
    assert_eq!(s.load("a"), None);
}

#[test]
fn the_directory_stays_within_its_size() {
    let dir = tempfile::tempdir().expect("a directory");
    let s = DiskCodeCache::open(&dir.path().join("code"), 80_000).expect("opens");
    for i in 0..100 {
        s.save(&i.to_string(), &[0; 1000]);
    }
    let total: u64 = std::fs::read_dir(&s.dir)
        .expect("lists")
        .map(|f| f.expect("an entry").metadata().expect("its size").len())
        .sum();
    assert!(total <= 80_000, "{total} bytes");
    assert!(files(&s) > 5, "not everything goes");
    assert!(s.load("99").is_some(), "the newest stays");
}

#[test]
fn a_hit_counts_as_use() {
    let (_dir, s) = store();
    s.save("a", b"one");
    let old = SystemTime::now() - 2 * USED_AGAIN_AFTER;
    let file = File::options()
        .append(true)
        .open(s.path("a"))
        .expect("opens");
    file.set_modified(old).expect("sets");
    assert!(s.load("a").is_some());
    let now = std::fs::metadata(s.path("a")).and_then(|m| m.modified());
    assert!(now.expect("a time") > old + USED_AGAIN_AFTER);
}

#[test]
fn tables_survive_and_nonsense_does_not() {
    let bytes = encode(&[1, 2, 3], &[(0, 2, 7), (2, 3, 8)]);
    assert_eq!(
        decode(&bytes),
        Some((&[1u8, 2, 3][..], vec![(0, 2, 7), (2, 3, 8)]))
    );
    assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
    assert_eq!(decode(&[0xff; 8]), None);
    assert_eq!(decode(&[]), None);
}
