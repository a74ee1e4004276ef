//! Accounts: what users, virtual GPUs or containers used in a span of time.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Result;

use mica_control::api::{AccountBy, Point, Subject, UsageAccount, UsageReport};

use super::query::Picture;
use super::record::Identity;

const SECONDS_PER_HOUR: f64 = 3600.0;
const GIB: f64 = (1_u64 << 30) as f64;

/// An account while it is added up.
#[derive(Default)]
struct Sum {
    account: UsageAccount,
    names: BTreeSet<String>,
    /// Hours of the share in force that were used.
    used_of_share: f64,
}

impl Sum {
    fn add(&mut self, name: &str, point: &Point) {
        let hours = f64::from(point.measured_seconds) / SECONDS_PER_HOUR;
        let part = |percent: f32| f64::from(percent) / 100.0 * hours;
        let account = &mut self.account;
        account.measured_hours += hours;
        account.gpu_hours += part(point.share_got_percent);
        account.share_hours += part(point.share_asked_percent);
        account.share_unreserved_hours += part(point.share_unreserved_percent);
        account.memory_gib_hours += point.memory_used_bytes as f64 / GIB * hours;
        account.memory_limit_gib_hours += point.memory_limit_bytes as f64 / GIB * hours;
        account.waiting_hours += part(point.waiting_percent);
        account.alloc_denied = account.alloc_denied.saturating_add(point.alloc_denied);
        account.launches = account.launches.saturating_add(point.launches);
        self.used_of_share += part(point.share_got_percent.min(point.share_asked_percent));
        if !self.names.contains(name) {
            self.names.insert(name.to_owned());
        }
    }

    fn account(mut self, key: String) -> UsageAccount {
        let share = self.account.share_hours;
        self.account.key = key;
        self.account.vgpus = self.names.len() as u32;
        self.account.idle_percent = match share > 0.0 {
            true => (1.0 - self.used_of_share / share).max(0.0) * 100.0,
            false => 0.0,
        };
        self.account
    }
}

fn key(identity: &Identity, by: AccountBy) -> String {
    match by {
        AccountBy::User => identity.owner_uid.to_string(),
        AccountBy::Vgpu => identity.name.clone(),
        AccountBy::Container => identity.container.clone(),
    }
}

impl Picture {
    /// What the wanted virtual GPUs used between two times.
    pub(crate) fn usage(&self, since: u64, until: u64, by: AccountBy) -> Result<UsageReport> {
        let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
        self.each(since, until, |place, point| {
            let identity = &self.identities[place];
            if identity.subject == Subject::Vgpu {
                let sum = sums.entry(key(identity, by)).or_default();
                sum.add(&identity.name, &point);
            }
        })?;
        let accounts = sums.into_iter().map(|(key, sum)| sum.account(key));
        let mut accounts: Vec<UsageAccount> = accounts.collect();
        accounts.sort_by(|a, b| b.gpu_hours.total_cmp(&a.gpu_hours));
        Ok(UsageReport {
            since_seconds: since,
            until_seconds: until,
            oldest_seconds: self.oldest()?,
            by,
            accounts,
        })
    }
}
