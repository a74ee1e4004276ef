//! Virtual GPUs that are made for each container: `8GiB-30`, a memory limit and a share.

use std::str::FromStr;

use mica_control::api::{Mode, VgpuSpec};

use mica_command::size::{Memory, Share};

/// A kind of virtual GPU, and the name of its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    name: String,
    memory_bytes: u64,
    share: Option<Share>,
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("{text:?} is not a size and a share: write 8GiB-30, or 8GiB without a share")
        };
        let (memory, share) = match text.split_once('-') {
            Some((memory, share)) => (memory, Some(share)),
            None => (text, None),
        };
        let Memory::Bytes(memory_bytes) = memory
            .parse()
            .map_err(|why| format!("{} ({why})", wrong()))?
        else {
            return Err(wrong());
        };
        let is_number = |share: &str| share.chars().all(|c| c.is_ascii_digit() || c == '.');
        let share = match share {
            Some(share) if is_number(share) => Some(share.parse()?),
            Some(_) => return Err(wrong()),
            None => None,
        };
        Ok(Self {
            name: text.into(),
            memory_bytes,
            share,
        })
    }
}

impl Kind {
    /// The name of its device.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its memory limit.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// What is made for each container.
    pub(crate) fn spec(&self, mode: Mode) -> VgpuSpec {
        VgpuSpec {
            name: Some(self.name.clone()),
            memory_limit_bytes: Some(self.memory_bytes),
            share_percent: self.share.map(|share| share.0),
            mode: Some(mode),
            ephemeral: true,
            ..VgpuSpec::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_a_size_and_perhaps_a_share() {
        let kind: Kind = "8GiB-30".parse().unwrap();
        let spec = kind.spec(Mode::Isolated);
        assert_eq!(spec.memory_limit_bytes, Some(8 << 30));
        assert_eq!(spec.share_percent, Some(30.into()));
        assert_eq!(spec.name.as_deref(), Some("8GiB-30"));
        assert_eq!("512MiB".parse::<Kind>().unwrap().share, None);
        for wrong in [
            "",
            "30",
            "8GiB-",
            "8GiB-x",
            "8GiB-30-2",
            "50%-30",
            "8GB-30",
            "8GiB-101",
        ] {
            assert!(wrong.parse::<Kind>().is_err(), "{wrong}");
        }
    }
}
