//! Ivshmem files: the memory of a virtual machine's shared-memory device, as the host keeps it.
//!
//! An ivshmem file is a file in memory, made before the machine starts, which QEMU shows to the machine as a PCI device
//! (ivshmem-plain). A session takes a whole ivshmem file; the lock on the file is the session's, and passes to the worker with the
//! descriptor, so no second session has the ivshmem file while anybody still uses it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mica_wire::session::{
    AREA_AT, CONTROL_BYTES, HEAP_AT, IVSHMEM_HEADER_BYTES, IvshmemId, IvshmemLayout,
    LEAST_IVSHMEM_BYTES, SessionArea, check_ivshmem, ivshmem_header, ivshmem_id,
};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;

use crate::GuestError;
use crate::bells::ProgramLife;

/// What is kept of an ivshmem file between sessions: the page with its header.
const KEPT_BYTES: u64 = 4096;
/// How long a worker may take to free what a session held; after that the next session empties the ivshmem file.
const WORKER_ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Makes an ivshmem file, or takes one that is there already: of this user, or of `owner`, and of this size.
///
/// # Errors
/// The file is somebody else's, of another size, or cannot be made.
pub fn prepare_ivshmem(path: &Path, bytes: u64, owner: Option<u32>) -> Result<(), GuestError> {
    let failed = |what: &str| GuestError::system(format!("{}: {what}", path.display()));
    if bytes < LEAST_IVSHMEM_BYTES || !bytes.is_power_of_two() {
        let text = format!(
            "{bytes} bytes is not a size of an ivshmem file: write a power of two from 32 MiB up"
        );
        return Err(GuestError::Protocol(text));
    }
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)
        .map_err(failed("cannot be opened"))?;
    let found = file.metadata().map_err(failed("cannot be examined"))?;
    let own = rustix::process::geteuid().as_raw();
    if ![Some(own), owner].contains(&Some(found.uid())) || found.nlink() != 1 {
        let text = format!("{} is another user's file", path.display());
        return Err(GuestError::Protocol(text));
    }
    match found.len() {
        0 => file
            .set_len(bytes)
            .map_err(failed("cannot be made so large"))?,
        len if len == bytes => {}
        len => {
            let text = format!(
                "{} has {len} bytes, not {bytes}: end the machine and remove the file (mica vm detach)",
                path.display()
            );
            return Err(GuestError::Protocol(text));
        }
    }
    check_ivshmem(&file).map_err(|error| failed("cannot be an ivshmem file")(error.into()))?;
    if let Some(owner) = owner {
        let changed = std::os::unix::fs::fchown(&file, Some(owner), None);
        changed.map_err(failed("cannot be given to the machine's user"))?;
    }
    if header_of(&mut file).is_none() {
        let mut id = IvshmemId::default();
        let random = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut id));
        random.map_err(failed("no random number"))?;
        file.rewind().map_err(failed("cannot be written"))?;
        file.write_all(&ivshmem_header(id))
            .map_err(failed("cannot be written"))?;
    }
    Ok(())
}

fn header_of(file: &mut File) -> Option<IvshmemId> {
    let mut header = [0; IVSHMEM_HEADER_BYTES];
    file.rewind().ok()?;
    file.read_exact(&mut header).ok()?;
    ivshmem_id(&header)
}

fn open(path: &Path) -> Option<File> {
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags);
    options.open(path).ok()
}

/// An ivshmem file that one session has; others can have it when this is dropped and the worker has closed the file too.
#[derive(Debug)]
pub(crate) struct IvshmemFile {
    path: PathBuf,
    pub(crate) file: File,
    pub(crate) bytes: u64,
}

impl IvshmemFile {
    /// Gives the ivshmem file back: empties it as soon as the worker has closed it, but for the memory of a program that may go
    /// on.
    pub(crate) fn give_back(self, has_windows: bool, life: ProgramLife) {
        let kept = match life {
            ProgramLife::Over => HEAP_AT..HEAP_AT,
            ProgramLife::Unknown => IvshmemLayout::new(self.bytes, has_windows).heap,
        };
        drop(self.file);
        let began = Instant::now();
        while !retire_unused(&self.path, &kept) && began.elapsed() < WORKER_ENDS_WITHIN {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Takes the ivshmem file with this name, if it is one of these and no session has it.
///
/// # Errors
/// A sentence for the guest.
pub(crate) fn take(ivshmem: &[PathBuf], id: IvshmemId) -> Result<IvshmemFile, &'static str> {
    // What the machine wrote over a header is its own affair: it finds none of its ivshmem files, or another one of them.
    let found = ivshmem.iter().find_map(|path| {
        let mut file = open(path)?;
        (header_of(&mut file)? == id).then(|| (path.clone(), file))
    });
    let (path, file) = found.ok_or("this machine has no such ivshmem file")?;
    let bytes = check_ivshmem(&file).map_err(|_| "the ivshmem file cannot be used")?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| "the ivshmem file is in use")?;
    clear(&file, bytes).map_err(|_| "the ivshmem file cannot be emptied")?;
    Ok(IvshmemFile { path, file, bytes })
}

/// Ends what a killed session left in all ivshmem files that no session has; how many there are. Programs that still have one
/// mapped find that their session has ended; their own memory stays until the next session begins.
pub fn clear_unused_ivshmem(ivshmem: &[PathBuf]) -> usize {
    let all = HEAP_AT..u64::MAX;
    (ivshmem.iter())
        .filter(|path| retire_unused(path, &all))
        .count()
}

/// Retires an ivshmem file, but for the bytes that are kept, if no session has it.
fn retire_unused(path: &Path, kept: &Range<u64>) -> bool {
    let Some(file) = open(path) else {
        return false;
    };
    match (
        check_ivshmem(&file),
        flock(&file, FlockOperation::NonBlockingLockExclusive),
    ) {
        (Ok(bytes), Ok(())) => retire(&file, bytes, kept).is_ok(),
        _ => false,
    }
}

/// Gives the memory of an ivshmem file back to the system, but for its header: for a new session.
fn clear(file: &File, bytes: u64) -> rustix::io::Result<()> {
    empty(file, KEPT_BYTES..bytes)
}

/// Gives the memory of an ivshmem file back to the system after a session, but for what is kept, its header and the words that say
/// that the session has ended: a machine that stood still has a program that believes in it. With zeros there, what that
/// program writes into the ring would seem to be on its way.
fn retire(file: &File, bytes: u64, kept: &Range<u64>) -> rustix::io::Result<()> {
    let copy = file.try_clone().map_err(|_| Errno::MFILE)?;
    SessionArea::in_ivshmem(copy.into())?.mark_ended("the host has ended it");
    empty(file, KEPT_BYTES..AREA_AT)?;
    empty(file, AREA_AT + CONTROL_BYTES as u64..kept.start)?;
    empty(file, kept.end.min(bytes)..bytes)
}

fn empty(file: &File, bytes: Range<u64>) -> rustix::io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, flags, bytes.start, bytes.end - bytes.start)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        PathBuf::from(format!("/dev/shm/mica-test-{}-{name}", std::process::id()))
    }

    struct Removed(PathBuf);
    impl Drop for Removed {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn id_of(path: &Path) -> IvshmemId {
        header_of(&mut open(path).unwrap()).unwrap()
    }

    #[test]
    fn an_ivshmem_file_is_one_sessions_and_empty_for_the_next() {
        let path = Removed(scratch("taken"));
        prepare_ivshmem(&path.0, LEAST_IVSHMEM_BYTES, None).unwrap();
        let (id, paths) = (id_of(&path.0), [path.0.clone()]);
        let ivshmem = take(&paths, id).unwrap();
        assert_eq!(take(&paths, id).unwrap_err(), "the ivshmem file is in use");
        ivshmem.file.write_all_at(&[7; 4096], 4096).unwrap();
        // A worker that still has the descriptor keeps the ivshmem file.
        let worker = ivshmem.file.try_clone().unwrap();
        drop(ivshmem);
        assert_eq!(take(&paths, id).unwrap_err(), "the ivshmem file is in use");
        assert_eq!(clear_unused_ivshmem(&paths), 0);
        // A machine can write over the header: the ivshmem file has lost its name then, until it is prepared again.
        worker.write_all_at(&[7; 64], 0).unwrap();
        drop(worker);
        assert!(take(&paths, id).is_err());
        prepare_ivshmem(&path.0, LEAST_IVSHMEM_BYTES, None).unwrap();
        let ivshmem = take(&paths, id_of(&path.0)).unwrap();
        let mut page = [1; 4096];
        ivshmem.file.read_exact_at(&mut page, 4096).unwrap();
        assert_eq!(page, [0; 4096]);
    }

    #[test]
    fn the_memory_of_a_program_that_may_go_on_is_kept() {
        let path = Removed(scratch("kept"));
        let bytes = 2 * LEAST_IVSHMEM_BYTES;
        prepare_ivshmem(&path.0, bytes, None).unwrap();
        let (id, paths) = (id_of(&path.0), [path.0.clone()]);
        let layout = IvshmemLayout::new(bytes, true);
        let (heap, window) = (layout.heap.start, layout.windows.start);
        for (life, expected) in [(ProgramLife::Unknown, 7), (ProgramLife::Over, 0)] {
            let ivshmem = take(&paths, id).unwrap();
            for at in [heap, layout.heap.end - 1, window] {
                ivshmem.file.write_all_at(&[7], at).unwrap();
            }
            ivshmem.give_back(true, life);
            // As after every stream of the machine.
            assert_eq!(clear_unused_ivshmem(&paths), 1);
            let file = open(&path.0).unwrap();
            let found = [heap, layout.heap.end - 1, window].map(|at| {
                let mut byte = [1];
                file.read_exact_at(&mut byte, at).unwrap();
                byte[0]
            });
            assert_eq!(found, [expected, expected, 0], "{life:?}");
        }
        // The next session finds nothing.
        let ivshmem = take(&paths, id).unwrap();
        let mut byte = [1];
        ivshmem.file.read_exact_at(&mut byte, heap).unwrap();
        assert_eq!(byte, [0]);
    }

    #[test]
    fn files_of_others_and_of_another_size_are_refused() {
        let path = Removed(scratch("refused"));
        assert!(prepare_ivshmem(&path.0, LEAST_IVSHMEM_BYTES + 4096, None).is_err());
        prepare_ivshmem(&path.0, LEAST_IVSHMEM_BYTES, None).unwrap();
        let said = prepare_ivshmem(&path.0, 2 * LEAST_IVSHMEM_BYTES, None).unwrap_err();
        assert!(said.to_string().contains("mica vm detach"), "{said}");
        let link = Removed(scratch("link"));
        std::os::unix::fs::symlink(&path.0, &link.0).unwrap();
        assert!(prepare_ivshmem(&link.0, LEAST_IVSHMEM_BYTES, None).is_err());
        assert!(take(std::slice::from_ref(&path.0), [9; 16]).is_err());
    }
}
