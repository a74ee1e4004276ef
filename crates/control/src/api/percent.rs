//! Percent of one GPU, exact to a hundredth.

use std::fmt;
use std::iter::Sum;
use std::ops::Add;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A share of one GPU in percent, such as `30` or `33.3`.
///
/// Kept in hundredths, so that sums are exact: 33.3, 33.3 and 33.4 fill a GPU and do not exceed it.
/// JSON shows it as a number.
///
/// ```
/// use mica_control::api::Percent;
///
/// let third: Percent = "33.3".parse()?;
/// assert_eq!(third + third + "33.4".parse()?, Percent::from(100));
/// assert_eq!(serde_json::to_string(&third)?, "33.3");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent {
    hundredths: u32,
}

/// The largest percentage that can be written: far more than a host's GPUs together.
const MOST: f64 = 1_000_000.0;

impl Percent {
    /// All of one GPU.
    pub const WHOLE: Self = Self { hundredths: 10_000 };

    /// The nearest hundredth of a percent; `None` for what is negative, too large or no number.
    pub fn from_f64(value: f64) -> Option<Self> {
        (0.0..=MOST).contains(&value).then(|| Self {
            hundredths: (value * 100.0).round() as u32,
        })
    }

    /// The same as a floating-point number.
    pub fn as_f64(self) -> f64 {
        f64::from(self.hundredths) / 100.0
    }

    /// The same as a part of one.
    pub fn as_ratio(self) -> f64 {
        f64::from(self.hundredths) / 10_000.0
    }

    /// What is left after `other` is taken away, at least zero.
    pub fn saturating_sub(self, other: Self) -> Self {
        Self {
            hundredths: self.hundredths.saturating_sub(other.hundredths),
        }
    }

    /// One of a number of even parts.
    pub fn divided_by(self, parts: u32) -> Self {
        Self {
            hundredths: self.hundredths / parts.max(1),
        }
    }

    /// This part of a number of bytes.
    pub fn of_bytes(self, bytes: u64) -> u64 {
        let part = u128::from(bytes) * u128::from(self.hundredths) / 10_000;
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

impl From<u32> for Percent {
    fn from(whole: u32) -> Self {
        Self {
            hundredths: whole.saturating_mul(100),
        }
    }
}

impl From<Percent> for f64 {
    fn from(percent: Percent) -> Self {
        percent.as_f64()
    }
}

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.trim().parse().ok();
        number
            .and_then(Self::from_f64)
            .ok_or_else(|| format!("{text:?} is not a percentage: write 30 or 33.3"))
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.as_f64(), f)
    }
}

impl Add for Percent {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            hundredths: self.hundredths.saturating_add(other.hundredths),
        }
    }
}

impl Sum for Percent {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

impl PartialEq<u32> for Percent {
    fn eq(&self, whole: &u32) -> bool {
        *self == Self::from(*whole)
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for Percent {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        f64::schema()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Percent {}

impl Serialize for Percent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.hundredths % 100 {
            0 => serializer.serialize_u32(self.hundredths / 100),
            _ => serializer.serialize_f64(self.as_f64()),
        }
    }
}

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom(format!("{value} is not a percentage"));
        Self::from_f64(value).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_whole_percents_as_integers_and_others_as_fractions() {
        for (text, json) in [("30", "30"), ("33.3", "33.3"), ("12.34", "12.34")] {
            let percent: Percent = text.parse().unwrap();
            assert_eq!(serde_json::to_string(&percent).unwrap(), json);
            assert_eq!(serde_json::from_str::<Percent>(json).unwrap(), percent);
            assert_eq!(percent.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_percentage_is_refused() {
        for text in ["-1", "NaN", "1e300", "many"] {
            assert!(text.parse::<Percent>().is_err(), "{text}");
        }
        assert!(serde_json::from_str::<Percent>("-1").is_err());
    }

    #[test]
    fn a_part_of_many_bytes_is_exact() {
        let half = Percent::from(50);
        assert_eq!(half.of_bytes(u64::MAX), u64::MAX / 2);
        assert_eq!(Percent::WHOLE.of_bytes(u64::MAX), u64::MAX);
    }
}
