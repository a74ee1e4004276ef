//! Sizes and shares as people write them.

use std::str::FromStr;

/// A number of bytes: `8GiB`, `8G`, `8192MiB`, `512M`, `1073741824`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let trimmed = text.trim();
        let split = trimmed
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        if number.is_empty() {
            return Err(format!("{text:?} is no size; write 8GiB or 512MiB"));
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
            .map_err(|_| format!("{text:?} is no size; write 8GiB or 512MiB"))?;
        let bytes = value * (1_u64 << shift) as f64;
        if !(1.0..=(1_u64 << 50) as f64).contains(&bytes) {
            return Err(format!("{text:?} is not between one byte and 1024 TiB"));
        }
        Ok(Self(bytes.round() as u64))
    }
}

/// Percent of one GPU: `30` or `30%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share(pub(crate) u32);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.trim().trim_end_matches('%');
        let value: u32 = number
            .parse()
            .map_err(|_| format!("{text:?} is no whole number of percent"))?;
        if !(1..=100).contains(&value) {
            return Err(format!("{text:?} is not from 1 to 100 percent of one GPU"));
        }
        Ok(Self(value))
    }
}

/// Bytes with the largest unit that keeps them readable.
pub(crate) fn show_bytes(bytes: u64) -> String {
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
        assert_eq!(no_number, "\"GiB\" is no size; write 8GiB or 512MiB");
    }

    #[test]
    fn shares_are_percent_of_one_gpu() {
        assert_eq!("30%".parse::<Share>(), Ok(Share(30)));
        assert!("0".parse::<Share>().is_err());
        assert!("101".parse::<Share>().is_err());
        assert!("NaN".parse::<Share>().is_err());
    }
}
