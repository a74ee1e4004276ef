//! Names of this host's users, for labels.

use std::collections::HashMap;

/// Names by user number, from `/etc/passwd`; users of a directory service have numbers only.
#[derive(Debug, Default)]
pub(crate) struct UserNames(HashMap<u32, String>);

impl UserNames {
    /// As they are now.
    pub(crate) fn read() -> Self {
        Self::parse(&std::fs::read_to_string("/etc/passwd").unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?;
            let uid = fields.nth(1)?.parse().ok()?;
            Some((uid, name.to_owned()))
        };
        let mut names = HashMap::new();
        for (uid, name) in text.lines().filter_map(line) {
            // The first line counts, as it does for the system.
            names.entry(uid).or_insert(name);
        }
        Self(names)
    }

    /// A user's name, or the number.
    pub(crate) fn name_of(&self, uid: u32) -> String {
        self.0.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_first_line_of_a_number() {
        let names =
            UserNames::parse("root:x:0:0::/root:/bin/sh\ntoor:x:0:0:::\nbad\n:x:5:\nann:x:1000:\n");
        assert_eq!(names.name_of(0), "root");
        assert_eq!(names.name_of(1000), "ann");
        assert_eq!(names.name_of(5), "5");
    }
}
