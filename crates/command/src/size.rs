//! Sizes and shares as people write them.

use std::str::FromStr;

use mica_control::api::Percent;

/// A number of bytes: `8GiB`, `8G`, `8192MiB`, `512M`, `1073741824`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let trimmed = text.trim();
        let split = trimmed
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        if number.is_empty() {
            return Err(format!("{text:?} is not a size: write 8GiB or 512MiB"));
        }
        let shift = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kib" => 10,
            "m" | "mib" => 20,
            "g" | "gib" => 30,
            "t" | "tib" => 40,
            "kb" | "mb" | "gb" | "tb" => {
                let binary = format!("{}iB", unit.trim()[..1].to_ascii_uppercase());
                return Err(format!("write {number}{binary}: sizes are powers of 1024"));
            }
            other => return Err(format!("unknown unit {other:?}: use KiB, MiB, GiB or TiB")),
        };
        let value: f64 = number
            .parse()
            .map_err(|_| format!("{text:?} is not a size: write 8GiB or 512MiB"))?;
        let bytes = value * (1_u64 << shift) as f64;
        if !(1.0..=(1_u64 << 50) as f64).contains(&bytes) {
            return Err(format!("{text:?} is not between one byte and 1024 TiB"));
        }
        Ok(Self(bytes.round() as u64))
    }
}

/// A memory limit: a size, or a part of the GPU's memory such as `50%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// A number of bytes.
    Bytes(u64),
    /// A part of the memory of the GPU.
    Part(Percent),
}

impl Memory {
    /// The bytes, where they were given.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Part(_) => None,
        }
    }

    /// The part of the GPU, where one was given.
    pub fn part(self) -> Option<Percent> {
        match self {
            Self::Bytes(_) => None,
            Self::Part(part) => Some(part),
        }
    }
}

/// A limit below this is refused by the daemon: a number without a unit was not meant as bytes.
const LEAST_LIMIT_BYTES: u64 = 1 << 20;

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.ends_with('%') {
            let part = percent(text);
            let part = part.ok_or_else(|| {
                format!("{text:?} is not from 1 to 100 percent of the GPU's memory")
            })?;
            return Ok(Self::Part(part));
        }
        let Size(bytes) = text.parse()?;
        let has_unit = text.ends_with(|c: char| c.is_ascii_alphabetic());
        if !has_unit && bytes < LEAST_LIMIT_BYTES {
            let unit = if bytes <= 1024 { "GiB" } else { "MiB" };
            return Err(format!(
                "{text:?} is a number of bytes; did you mean {text}{unit}?"
            ));
        }
        Ok(Self::Bytes(bytes))
    }
}

/// Percent of one GPU: `30`, `33.3` or `30%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(pub Percent);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = percent(text).map(Self);
        share.ok_or_else(|| format!("{text:?} is not from 1 to 100 percent of one GPU"))
    }
}

/// A percentage from 1 to 100, with or without its sign.
fn percent(text: &str) -> Option<Percent> {
    let number = text.trim().trim_end_matches('%').trim_end();
    let percent: Percent = number.parse().ok()?;
    (Percent::from(1)..=Percent::WHOLE)
        .contains(&percent)
        .then_some(percent)
}

/// Bytes with the largest unit that keeps them readable.
pub fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() < 0.05 || unit == 0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_people_write_are_understood() {
        for (text, bytes) in [
            ("8GiB", 8 << 30),
            ("8G", 8 << 30),
            ("8192MiB", 8 << 30),
            ("1.5GiB", 3 << 29),
            ("512m", 512 << 20),
            ("4096", 4096),
        ] {
            assert_eq!(text.parse::<Size>(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn wrong_sizes_say_what_to_write() {
        assert_eq!(
            "8GB".parse::<Size>().unwrap_err(),
            "write 8GiB: sizes are powers of 1024"
        );
        assert!("".parse::<Size>().is_err());
        assert!("-1GiB".parse::<Size>().is_err());
        assert!("0".parse::<Size>().is_err());
        assert!("99999999TiB".parse::<Size>().is_err());
        assert!("8 apples".parse::<Size>().unwrap_err().contains("apples"));
        let no_number = "GiB".parse::<Size>().unwrap_err();
        assert_eq!(no_number, "\"GiB\" is not a size: write 8GiB or 512MiB");
    }

    #[test]
    fn a_limit_may_be_a_part_of_the_gpu_and_a_bare_number_is_asked_about() {
        let limit = |text: &str| text.parse::<Memory>();
        assert_eq!(limit("50%"), Ok(Memory::Part(50.into())));
        assert_eq!(limit("12.5 %").unwrap().part().unwrap().to_string(), "12.5");
        assert_eq!(limit("8GiB"), Ok(Memory::Bytes(8 << 30)));
        assert_eq!(limit("1073741824"), Ok(Memory::Bytes(1 << 30)));
        let bare = |text| limit(text).unwrap_err();
        assert_eq!(bare("8"), "\"8\" is a number of bytes; did you mean 8GiB?");
        assert_eq!(
            bare("4096"),
            "\"4096\" is a number of bytes; did you mean 4096MiB?"
        );
        for wrong in ["0%", "101%", "%", "x%"] {
            assert!(limit(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shares_are_percent_of_one_gpu() {
        assert_eq!("30%".parse::<Share>(), Ok(Share(30.into())));
        assert_eq!("33.3".parse::<Share>().unwrap().0.to_string(), "33.3");
        for wrong in ["0", "0.5", "101", "100.1", "NaN", "-5", ""] {
            let refusal = wrong.parse::<Share>().unwrap_err();
            assert!(refusal.contains("not from 1 to 100 percent"), "{refusal}");
        }
    }
}
