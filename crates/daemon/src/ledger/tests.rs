//! The ledger under every order of events.

use super::*;

const LIMIT: u64 = 1 << 30;

fn ledger(dir: &std::path::Path) -> Ledger {
    let (journal, _) = Journal::open(&dir.join("grants")).unwrap();
    Ledger::new(LIMIT, true, Arc::new(journal))
}

fn entry(client: u64) -> Entry {
    Entry {
        client,
        pid: std::process::id(),
        role: 1,
        start: 0,
        token: [0; 16],
        granted_bytes: 0,
        uid: Some(7),
        account: page::Account::Device,
    }
}

/// A process takes from its credit as `PageQuota` does.
fn take(page: &SharedPage, bytes: u64) -> bool {
    let take = |have: u64| have.checked_sub(bytes);
    let credit = &page.memory.credit_bytes;
    credit.fetch_update(AcqRel, Acquire, take).is_ok()
}

#[test]
fn no_order_of_grants_recalls_releases_deaths_and_resizes_exceeds_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = ledger(dir.path());
    let mut processes: BTreeMap<u64, (Arc<SharedPage>, u64)> = BTreeMap::new();
    let mut seed = 99_u64;
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    for step in 1..20_000 {
        let chosen = processes.keys().nth(random(4) as usize).copied();
        match (random(8), chosen) {
            (0, _) if processes.len() < 4 => {
                let page = Arc::new(SharedPage::create().unwrap());
                ledger.open(entry(step), page.clone());
                processes.insert(step, (page, 0));
            }
            (1, Some(id)) if random(10) == 0 => {
                ledger.close(id);
                processes.remove(&id);
            }
            (2..=4, Some(id)) => {
                let bytes = 1 + random(200 << 20);
                let (page, held) = processes.get_mut(&id).unwrap();
                let have = page.memory.credit_bytes.load(Acquire);
                if take(page, bytes) {
                    *held += bytes;
                } else if ledger.grant(id, bytes - have).is_ok() {
                    assert!(take(page, bytes), "a grant must be enough");
                    *held += bytes;
                }
            }
            (5..=6, Some(id)) => {
                let (page, held) = processes.get_mut(&id).unwrap();
                let bytes = random(*held + 1);
                *held -= bytes;
                page.memory.credit_bytes.fetch_add(bytes, AcqRel);
            }
            (7, _) => {
                let limit = LIMIT / 2 + random(LIMIT / 2);
                let _ = ledger.resize(limit, false);
            }
            _ => {}
        }
        let held: u64 = processes.values().map(|(_, held)| held).sum();
        assert_eq!(ledger.used_bytes(), held);
        assert!(ledger.granted_bytes() <= ledger.limit_bytes());
    }
}

#[test]
fn what_fits_only_without_the_siblings_credit_is_granted() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = ledger(dir.path());
    let pages = [1, 2].map(|client| {
        let page = Arc::new(SharedPage::create().unwrap());
        ledger.open(entry(client), page.clone());
        page
    });
    assert_eq!(ledger.grant(1, 1), Ok(STEPS[0]));
    assert!(take(&pages[0], 1));
    assert_eq!(ledger.grant(2, LIMIT - 1), Ok(LIMIT - 1));
    assert_eq!(pages[0].memory.credit_bytes.load(Acquire), 0);
    assert!(take(&pages[1], LIMIT - 1));
    assert!(ledger.grant(1, 1).is_err());
}

#[test]
fn memory_nobody_was_charged_for_cannot_be_granted() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = ledger(dir.path());
    ledger.open(entry(1), Arc::new(SharedPage::create().unwrap()));
    ledger.begin_look();
    ledger.end_look(1, LIMIT / 2);
    assert!(ledger.grant(1, LIMIT / 2 + 1).is_err());
    assert!(ledger.grant(1, LIMIT / 2).is_ok());
}

#[test]
fn a_removed_virtual_gpu_leaves_nothing_in_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = ledger(dir.path());
    ledger.open(entry(1), Arc::new(SharedPage::create().unwrap()));
    ledger.grant(1, 5).unwrap();
    let kept = Journal::open(&dir.path().join("grants")).unwrap().1;
    assert_eq!(kept[0].1.granted_bytes, STEPS[0]);
    ledger.close_all();
    assert!(
        Journal::open(&dir.path().join("grants"))
            .unwrap()
            .1
            .is_empty()
    );
}

#[test]
fn memory_freed_while_the_driver_was_asked_is_not_unattributed() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = ledger(dir.path());
    let page = Arc::new(SharedPage::create().unwrap());
    ledger.open(entry(1), page.clone());
    ledger.grant(1, LIMIT / 2).unwrap();
    let charge = |bytes: u64| {
        assert!(take(&page, bytes));
        let used = page.memory.used_bytes.fetch_add(bytes, AcqRel) + bytes;
        page.memory.window_peak_bytes.fetch_max(used, AcqRel);
    };
    let release = |bytes: u64| {
        page.memory.used_bytes.fetch_sub(bytes, AcqRel);
        page.memory.credit_bytes.fetch_add(bytes, AcqRel);
    };
    // Held when the driver answered, not before and not after.
    ledger.begin_look();
    charge(LIMIT / 4);
    release(LIMIT / 4);
    ledger.end_look(1, LIMIT / 4 + 1000);
    assert_eq!(ledger.unattributed_by(1), 1000);
    // Nothing changes: exact.
    ledger.begin_look();
    ledger.end_look(1, 3000);
    assert_eq!(ledger.unattributed_by(1), 3000);
    // Restless again: the earlier figure stands as long as it is possible.
    ledger.begin_look();
    charge(LIMIT / 4);
    ledger.end_look(1, 5000);
    assert_eq!(ledger.unattributed_by(1), 3000);
    release(LIMIT / 4);
    ledger.begin_look();
    ledger.end_look(1, 0);
    assert_eq!(ledger.unattributed_by(1), 0);
    assert_eq!(ledger.driver_bytes(1), Some(0));
}

#[test]
fn one_that_ended_its_contexts_is_held_to_nothing_the_driver_said_before() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = ledger(dir.path());
    for client in 1..=2 {
        ledger.open(entry(client), Arc::new(SharedPage::create().unwrap()));
    }
    let look = |ledger: &mut Ledger, listed: bool| {
        ledger.begin_look();
        match listed {
            true => ledger.end_look(1, LIMIT / 2),
            false => ledger.not_listed(1),
        }
        ledger.not_listed(2);
    };
    look(&mut ledger, true);
    assert_eq!(ledger.unattributed_bytes(), LIMIT / 2);
    look(&mut ledger, false);
    assert_eq!(ledger.unattributed_bytes(), LIMIT / 2, "it may be chance");
    look(&mut ledger, true);
    look(&mut ledger, false);
    assert_eq!(ledger.unattributed_bytes(), LIMIT / 2);
    look(&mut ledger, false);
    assert_eq!(ledger.unattributed_bytes(), 0);
    assert!(ledger.grant(2, LIMIT).is_ok());
    assert_eq!(
        ledger.driver_bytes(2),
        None,
        "never named, nothing is known"
    );
}

#[test]
fn a_grant_is_given_back_to_the_process_of_the_journal_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = ledger(dir.path());
    let granted = Entry {
        granted_bytes: LIMIT,
        ..entry(5)
    };
    let process = crate::watched::Watched::open(granted.pid).unwrap();
    ledger.expect(0, granted, process);
    let claims = [
        Entry {
            client: 6,
            ..granted
        },
        Entry { pid: 1, ..granted },
        Entry {
            start: 1,
            ..granted
        },
        Entry { role: 2, ..granted },
        Entry {
            uid: Some(8),
            ..granted
        },
    ];
    for claim in claims {
        assert_eq!(ledger.returned(&claim), None, "{claim:?}");
        assert_eq!(ledger.available_bytes(), 0, "{claim:?}");
    }
    assert_eq!(ledger.returned(&granted), Some(LIMIT));
    assert_eq!(ledger.available_bytes(), LIMIT);
}
