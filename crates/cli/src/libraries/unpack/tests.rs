use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use super::*;

const ONE: Embedded = Embedded {
    hash: "0000000000000001",
    files: [b"the driver", b"the monitor"],
    musl: None,
};
const TWO: Embedded = Embedded {
    hash: "0000000000000002",
    files: [b"a newer driver", b"a newer monitor"],
    musl: None,
};

fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("cache/libraries");
    (folder, place)
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn age(folder: &Path) {
    let long_ago = SystemTime::now() - UNUSED - Duration::from_secs(60);
    File::open(folder).unwrap().set_modified(long_ago).unwrap();
}

#[test]
fn libraries_are_unpacked_under_both_names_in_a_private_folder() {
    let (_guard, place) = place();
    let folder = unpack(&ONE, std::slice::from_ref(&place)).unwrap();
    assert_eq!(folder, place.canonicalize().unwrap().join(ONE.hash));
    for name in ["libmica_shim.so", "libcuda.so.1", "libcuda.so"] {
        assert_eq!(std::fs::read(folder.join(name)).unwrap(), ONE.files[0]);
    }
    assert_eq!(
        std::fs::read(folder.join("libnvidia-ml.so.1")).unwrap(),
        ONE.files[1]
    );
    assert_eq!(folder.metadata().unwrap().mode() & 0o022, 0);
    // The names and nothing else: no file of an unfinished write.
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 6);
}

#[test]
fn whole_libraries_are_used_as_they_are() {
    let (_guard, place) = place();
    let folder = unpack(&ONE, std::slice::from_ref(&place)).unwrap();
    let inode = || folder.join("libmica_shim.so").metadata().unwrap().ino();
    let before = inode();
    unpack(&ONE, &[place]).unwrap();
    assert_eq!(inode(), before);
}

#[test]
fn damaged_and_exchanged_libraries_are_written_again() {
    let (guard, place) = place();
    let folder = unpack(&ONE, std::slice::from_ref(&place)).unwrap();
    let shim = folder.join("libmica_shim.so");
    let elsewhere = guard.path().join("elsewhere");
    std::fs::write(&elsewhere, ONE.files[0]).unwrap();
    std::fs::remove_file(&shim).unwrap();
    symlink(&elsewhere, &shim).unwrap();
    std::fs::remove_file(folder.join("libcuda.so.1")).unwrap();
    symlink(&elsewhere, folder.join("libcuda.so.1")).unwrap();
    let monitor = folder.join("libmica_nvml_shim.so");
    std::fs::remove_file(&monitor).unwrap();
    std::fs::write(&monitor, "the mon").unwrap();

    unpack(&ONE, &[place]).unwrap();

    assert!(shim.symlink_metadata().unwrap().is_file());
    assert_eq!(
        std::fs::read_link(folder.join("libcuda.so.1")).unwrap(),
        shim
    );
    assert_eq!(std::fs::read(&monitor).unwrap(), ONE.files[1]);
}

#[test]
fn a_file_is_compared_to_its_last_byte() {
    let (guard, _) = place();
    let path = guard.path().join("file");
    // Longer than a piece, and not a whole number of pieces.
    let content: Vec<u8> = (0..200_000u32).map(|at| at.to_le_bytes()[0]).collect();
    std::fs::write(&path, &content).unwrap();
    assert!(has_content(&path, &content).unwrap());
    let mut other = content.clone();
    other[199_999] ^= 1;
    assert!(!has_content(&path, &other).unwrap());
    assert!(!has_content(&path, &content[..content.len() - 1]).unwrap());
    other.push(0);
    assert!(has_content(&path, &other).is_err(), "the file is shorter");
}

#[test]
fn a_place_that_others_can_write_is_passed_over() {
    let (guard, place) = place();
    std::fs::create_dir_all(&place).unwrap();
    set_mode(place.parent().unwrap(), 0o777);
    let second = guard.path().join("second");
    let folder = unpack(&ONE, &[place.clone(), second.clone()]).unwrap();
    assert!(folder.starts_with(second.canonicalize().unwrap()));

    let error = unpack(&ONE, std::slice::from_ref(&place))
        .unwrap_err()
        .to_string();
    assert!(error.contains("can be changed by other users"), "{error}");
    // What others put there once must not be used later either.
    assert!(!place.join(ONE.hash).exists());
}

#[test]
fn owners_outside_a_user_namespace_are_trusted_in_it() {
    let namespace = "         0       1000          1\n";
    let subordinate = "0 1000 1\n1 100000 65536\n";
    for users in [ALL_USERS, namespace, subordinate] {
        assert!(is_trusted(1000, 1000, users) && is_trusted(0, 1000, users));
        assert!(!is_trusted(1001, 1000, users));
    }
    assert!(!is_trusted(65534, 1000, ALL_USERS));
    assert!(is_trusted(65534, 0, namespace));
}

#[test]
fn a_place_behind_a_link_is_judged_by_where_it_leads() {
    let (guard, place) = place();
    let open = guard.path().join("open");
    std::fs::create_dir(&open).unwrap();
    set_mode(&open, 0o777);
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    symlink(&open, &place).unwrap();
    let error = unpack(&ONE, &[place]).unwrap_err().to_string();
    assert!(error.contains("can be changed by other users"), "{error}");
}

#[test]
fn a_place_that_cannot_be_made_or_filled_is_named_with_its_reason() {
    let (guard, _) = place();
    let file = guard.path().join("file");
    std::fs::write(&file, "").unwrap();
    // No user can make files in /proc.
    let places = [file.join("libraries"), PathBuf::from("/proc/libraries")];
    let error = unpack(&ONE, &places).unwrap_err().to_string();
    for place in places {
        assert!(error.contains(&place.display().to_string()), "{error}");
    }
    assert!(error.contains("XDG_CACHE_HOME"), "{error}");
}

#[test]
fn a_place_where_no_code_may_be_mapped_is_refused() {
    let folder = Path::new("/run/mica/libraries");
    let usual = StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV;
    allows_code(folder, usual).unwrap();
    let error = allows_code(folder, usual | StatVfsMountFlags::NOEXEC).unwrap_err();
    assert_eq!(
        error.to_string(),
        "/run/mica/libraries is mounted with noexec"
    );
}

#[test]
fn many_starts_at_once_all_find_whole_libraries() {
    let (_guard, place) = place();
    let places = [place];
    std::thread::scope(|threads| {
        let starts: Vec<_> = (0..16)
            .map(|_| {
                threads.spawn(|| {
                    let folder = unpack(&ONE, &places).unwrap();
                    std::fs::read(folder.join("libcuda.so.1")).unwrap()
                })
            })
            .collect();
        for start in starts {
            assert_eq!(start.join().unwrap(), ONE.files[0]);
        }
    });
}

#[test]
fn a_version_unused_for_a_week_is_removed_by_the_next_one() {
    let (_guard, place) = place();
    let places = [place];
    let old = unpack(&ONE, &places).unwrap();
    unpack(&TWO, &places).unwrap();
    assert!(old.exists(), "a version that was just used stays");
    let new = unpack(&TWO, &places).unwrap();
    age(&old);
    std::fs::remove_dir_all(&new).unwrap();
    unpack(&TWO, &places).unwrap();
    assert!(!old.exists());
}

#[test]
fn a_version_that_a_process_has_mapped_stays() {
    let (_guard, place) = place();
    let places = [place];
    let old = unpack(&ONE, &places).unwrap();
    // A program that runs from the folder maps its own file, as it would a library.
    let program = old.join("sleep");
    std::fs::copy("/bin/sleep", &program).unwrap();
    let mut child = Command::new(&program)
        .arg("100")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    age(&old);
    unpack(&TWO, &places).unwrap();
    let stayed = old.exists();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(stayed);
}

#[test]
fn use_keeps_a_version_young() {
    let (_guard, place) = place();
    let places = [place];
    let folder = unpack(&ONE, &places).unwrap();
    age(&folder);
    unpack(&ONE, &places).unwrap();
    assert!(idle_for(&folder).unwrap() < USE_STEP);
}
