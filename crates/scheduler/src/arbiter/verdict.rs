//! What becomes of the lease in force: a pure decision from what is known of its holder.

use super::Settings;

/// Where work holds still by itself: how long whoever held a lease has to say what it used of it, before
/// the next one gets it.
const SAYS_SO_NS: u64 = 1_000_000;

/// What is known when a lease is looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation {
    pub(super) now_ns: u64,
    /// When the lease ends.
    pub(super) end_ns: u64,
    /// For how long others have wanted the lease after its end.
    pub(super) overdue_ns: u64,
    /// Whether the holder has submitted nothing and waited for nothing long enough to lose the lease.
    pub(super) idle: bool,
    /// Set where the lease is wanted elsewhere: by another tenant, or by the holder's own cap.
    pub(super) wanted: Option<Contest>,
}

/// How the tenant that would be next compares with the holder.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Contest {
    /// The holder would be picked again.
    pub(super) goes_on: bool,
    /// How long a further turn of the holder would be.
    pub(super) turn_ns: u64,
    /// The other tenant has a higher priority.
    pub(super) is_urgent: bool,
    /// The other tenant has only just come and is far behind.
    pub(super) is_owed: bool,
}

/// What becomes of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It goes on, with another end if one is given, and is looked at again then.
    GoOn { end_ns: Option<u64>, look_ns: u64 },
    /// It ends, and the time in which the holder only thought is not charged.
    EndIdle,
    /// It ends, and work that does not drain goes on as an overrun.
    EndOverrun,
    /// It ends although the holder has not said so.
    Revoke,
}

/// How long after its end a lease may be given back.
fn drain_limit_ns(settings: &Settings) -> u64 {
    match settings.ends_at_once {
        true => settings.drain_limit_ns.min(SAYS_SO_NS),
        false => settings.drain_limit_ns,
    }
}

/// Decides.
pub(super) fn verdict(settings: &Settings, seen: &Situation) -> Verdict {
    let Situation { now_ns, end_ns, .. } = *seen;
    // Prolonged a little before its end, so that a holder nobody waits for never has to drain.
    let margin_ns = settings.lease_ns / 8;
    let prolonged = |end_ns: u64| Verdict::GoOn {
        end_ns: Some(end_ns),
        look_ns: end_ns - margin_ns,
    };
    let Some(contest) = seen.wanted else {
        return match end_ns <= now_ns + margin_ns {
            true => prolonged(now_ns + settings.lease_ns),
            false => Verdict::GoOn {
                end_ns: None,
                look_ns: end_ns - margin_ns,
            },
        };
    };
    if seen.idle {
        return Verdict::EndIdle;
    }
    if contest.goes_on && end_ns > now_ns && end_ns < now_ns + 2 * margin_ns {
        // It would be picked again, so nothing has to drain.
        return prolonged(end_ns + contest.turn_ns);
    }
    let is_late = now_ns >= end_ns && seen.overdue_ns >= drain_limit_ns(settings);
    if is_late && !settings.ends_at_once {
        return Verdict::EndOverrun;
    }
    if settings.ends_at_once && (contest.is_urgent || is_late) {
        // Its work holds still by itself within microseconds: whoever is urgent need not wait for it
        // to say so, nor anybody for long: it may have no processor to say it with.
        return Verdict::Revoke;
    }
    let hurries = end_ns > now_ns && (contest.is_urgent || contest.is_owed);
    if !hurries && end_ns > now_ns + margin_ns && settings.idle_ns.is_none() {
        return Verdict::GoOn {
            end_ns: None,
            look_ns: end_ns - margin_ns,
        };
    }
    // A yield rings the doorbell; only idleness has to be looked for.
    let limit_ns = end_ns.max(now_ns) + drain_limit_ns(settings).saturating_sub(seen.overdue_ns);
    Verdict::GoOn {
        end_ns: hurries.then_some(now_ns),
        look_ns: match settings.idle_ns {
            Some(idle_ns) => now_ns + idle_ns / 4,
            None => limit_ns,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE_NS: u64 = 8_000_000;

    fn settings(ends_at_once: bool) -> Settings {
        Settings {
            lease_ns: LEASE_NS,
            idle_ns: None,
            drain_limit_ns: 100_000_000,
            ends_at_once,
            ..Settings::default()
        }
    }

    fn seen(now_ns: u64, wanted: Option<Contest>) -> Situation {
        Situation {
            now_ns,
            end_ns: LEASE_NS,
            overdue_ns: 0,
            idle: false,
            wanted,
        }
    }

    #[test]
    fn a_lease_that_nobody_wants_is_prolonged_before_its_end() {
        let margin_ns = LEASE_NS / 8;
        let early = verdict(&settings(false), &seen(0, None));
        let look_ns = LEASE_NS - margin_ns;
        let end_ns = None;
        assert_eq!(early, Verdict::GoOn { end_ns, look_ns });
        let near = verdict(&settings(false), &seen(look_ns, None));
        let end_ns = look_ns + LEASE_NS;
        let look_ns = end_ns - margin_ns;
        let end_ns = Some(end_ns);
        assert_eq!(near, Verdict::GoOn { end_ns, look_ns });
    }

    #[test]
    fn an_idle_holder_loses_the_lease_only_if_others_want_it() {
        let idle = |wanted| Situation {
            idle: true,
            ..seen(1, wanted)
        };
        let settings = settings(false);
        let wanted = Some(Contest::default());
        assert_eq!(verdict(&settings, &idle(wanted)), Verdict::EndIdle);
        assert_ne!(verdict(&settings, &idle(None)), Verdict::EndIdle);
    }

    #[test]
    fn work_that_does_not_drain_overruns_or_is_revoked() {
        let late = |overdue_ns| Situation {
            overdue_ns,
            ..seen(LEASE_NS + overdue_ns, Some(Contest::default()))
        };
        let of = |at_once, overdue_ns| verdict(&settings(at_once), &late(overdue_ns));
        assert_eq!(of(false, 100_000_000), Verdict::EndOverrun);
        assert!(matches!(of(false, 99_999_999), Verdict::GoOn { .. }));
        assert_eq!(of(true, SAYS_SO_NS), Verdict::Revoke);
        assert!(matches!(of(true, SAYS_SO_NS - 1), Verdict::GoOn { .. }));
    }

    #[test]
    fn an_urgent_tenant_shortens_a_lease_or_ends_it() {
        let urgent = Some(Contest {
            is_urgent: true,
            ..Contest::default()
        });
        let end_ns = Some(1);
        let shortened = verdict(&settings(false), &seen(1, urgent));
        assert!(matches!(shortened, Verdict::GoOn { end_ns: at, .. } if at == end_ns));
        assert_eq!(verdict(&settings(true), &seen(1, urgent)), Verdict::Revoke);
    }
}
