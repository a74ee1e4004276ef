use super::*;

fn piece(number: u8) -> (Hash, Vec<u8>) {
    let bytes: Vec<u8> = (0..PIECE_BYTES).map(|i| (i / 7) as u8 ^ number).collect();
    (hash_of(&bytes), bytes)
}

fn store(folder: &Path, places: u64) -> PieceStore {
    let most_bytes = places * PIECE_BYTES as u64 + 5;
    PieceFolder::new(folder.join("pieces"), most_bytes)
        .open()
        .unwrap()
}

fn has(store: &PieceStore, number: u8) -> Found {
    let (hash, bytes) = piece(number);
    let mut buffer = vec![0; PIECE_BYTES];
    let found = store.get(&hash, &mut buffer);
    assert_eq!(found == Found::Here, buffer == bytes);
    found
}

fn put(store: &PieceStore, number: u8) -> bool {
    let (hash, bytes) = piece(number);
    store.put(&hash, &bytes).unwrap()
}

#[test]
fn pieces_come_back_and_the_files_stay_within_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let first = store(folder.path(), 3);
    assert!((0..3).all(|number| put(&first, number)));
    first.note(&piece(0).0, Found::Here).unwrap();
    assert!(!put(&first, 3), "a session writes each place once");
    drop(first);
    let second = store(folder.path(), 3);
    assert_eq!(second.prefixes().len(), 3);
    assert!(put(&second, 3), "takes the place of 1");
    let found = [0, 1, 2, 3].map(|number| has(&second, number));
    use Found::{Here, Nowhere};
    assert_eq!(found, [Here, Nowhere, Here, Here]);
    assert!(put(&second, 4) && put(&second, 5));
    assert_eq!(has(&second, 0), Here, "it was found once");
    let bytes = |name: &str| {
        let path = folder.path().join("pieces").join(name);
        std::fs::metadata(path).unwrap().len()
    };
    assert_eq!(bytes("pieces"), 3 * PIECE_BYTES as u64);
    assert_eq!(bytes("index"), 3 * RECORD_BYTES as u64);
    drop(second);
    let smaller = store(folder.path(), 1);
    assert_eq!(bytes("pieces"), PIECE_BYTES as u64);
    assert_eq!(has(&smaller, 0), Here);
    assert!(!put(&store(folder.path(), 0), 1), "no room at all");
}

#[test]
fn two_sessions_at_once_see_what_the_other_displaced() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (store(folder.path(), 2), store(folder.path(), 2));
    assert!(put(&one, 1) && put(&other, 2));
    // It looks before it writes: the first place is not free any more.
    assert_eq!((has(&one, 1), has(&other, 2)), (Found::Here, Found::Here));
    assert!(put(&other, 3), "displaces 1");
    assert_eq!(has(&one, 1), Found::Damaged);
    one.note(&piece(1).0, Found::Damaged).unwrap();
    assert_eq!(has(&one, 1), Found::Nowhere);
    assert_eq!(has(&other, 3), Found::Here, "the other's piece is left");
    // The lock is another process's for long: nothing is kept, nobody waits for ever.
    flock(&other.index_file, FlockOperation::LockExclusive).unwrap();
    let (hash, bytes) = piece(4);
    let refused = one.put(&hash, &bytes).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn damaged_pieces_and_indexes_are_never_used() {
    let folder = tempfile::tempdir().unwrap();
    let first = store(folder.path(), 4);
    assert!((1..4).all(|number| put(&first, number)));
    // One byte of a piece; the end of the file.
    let at = PIECE_BYTES as u64 + 1000;
    first.pieces.write_all_at(&[0xee], at).unwrap();
    first.pieces.set_len(3 * PIECE_BYTES as u64 - 1).unwrap();
    let found = [1, 2, 3].map(|number| has(&first, number));
    assert_eq!(found, [Found::Here, Found::Damaged, Found::Damaged]);
    for number in [2, 3] {
        first.note(&piece(number).0, Found::Damaged).unwrap();
        assert_eq!(has(&first, number), Found::Nowhere);
        assert!(put(&first, number) || number == 3);
    }
    drop(first);
    // The records of two pieces are exchanged, one is nonsense.
    let path = folder.path().join("pieces/index");
    let mut bytes = std::fs::read(&path).unwrap();
    let (one, two) = bytes.split_at_mut(RECORD_BYTES);
    one.swap_with_slice(&mut two[..RECORD_BYTES]);
    bytes[2 * RECORD_BYTES..].fill(0xff);
    bytes.extend([1; 1000]);
    std::fs::write(&path, &bytes).unwrap();
    let second = store(folder.path(), 4);
    for number in [1, 2] {
        assert_eq!(has(&second, number), Found::Damaged);
        second.note(&piece(number).0, Found::Damaged).unwrap();
    }
    assert!(put(&second, 9));
    assert_eq!(has(&second, 9), Found::Here);
}
