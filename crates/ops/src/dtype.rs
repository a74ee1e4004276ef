//! Element types, and what a host needs to read and write them.

/// The type of a tensor's elements. The numbers are those of `kernels/ops.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum DType {
    /// 32-bit floats.
    F32 = 0,
    /// 16-bit floats of IEEE 754.
    F16 = 1,
    /// 16-bit floats with the exponent of 32-bit floats.
    BF16 = 2,
    /// 8-bit integers.
    I8 = 3,
    /// 32-bit integers.
    I32 = 4,
    /// 4-bit integers with a sign, two in a byte, the first in its lower half. Products and casts take them.
    I4 = 5,
}

impl DType {
    /// Bytes of the memory unit that an element is in. Two elements of `i4` share a byte: [`DType::bytes_of`] counts them.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::I8 | Self::I4 => 1,
        }
    }

    /// Elements in such a unit.
    pub(crate) fn per_unit(self) -> usize {
        if self == Self::I4 { 2 } else { 1 }
    }

    /// Bytes of so many elements that follow each other.
    pub fn bytes_of(self, count: usize) -> usize {
        count.div_ceil(self.per_unit()) * self.size_bytes()
    }

    /// Whether elements are floats.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// The name, as messages and kernel files have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I8 => "i8",
            Self::I32 => "i32",
            Self::I4 => "i4",
        }
    }

    /// The bytes of values, each rounded to the nearest even of this type.
    pub(crate) fn encode_all(self, values: &[f32]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes_of(values.len()));
        match self {
            Self::I4 => {
                let nibble =
                    |value: &f32| value.round_ties_even().clamp(-8.0, 7.0) as i8 as u8 & 15;
                let pairs = values.chunks(2);
                bytes.extend(pairs.map(|pair| {
                    nibble(&pair[0]) | pair.get(1).map_or(0, |second| nibble(second) << 4)
                }));
            }
            _ => (values.iter()).for_each(|value| self.encode(*value, &mut bytes)),
        }
        bytes
    }

    /// The values of the first `count` elements.
    pub(crate) fn decode_all(self, bytes: &[u8], count: usize) -> Vec<f32> {
        match self {
            Self::I4 => {
                let both = |byte: &u8| [(byte << 4) as i8 >> 4, *byte as i8 >> 4];
                let all = bytes.iter().flat_map(both).map(f32::from);
                all.take(count).collect()
            }
            _ => {
                let elements = bytes.chunks_exact(self.size_bytes());
                elements.map(|element| self.decode(element)).collect()
            }
        }
    }

    /// Appends a value that has whole bytes.
    fn encode(self, value: f32, bytes: &mut Vec<u8>) {
        match self {
            Self::F32 => bytes.extend_from_slice(&value.to_le_bytes()),
            Self::F16 => bytes.extend_from_slice(&f16_from_f32(value).to_le_bytes()),
            Self::BF16 => bytes.extend_from_slice(&bf16_from_f32(value).to_le_bytes()),
            Self::I8 | Self::I4 => bytes.push(value.round_ties_even() as i8 as u8),
            Self::I32 => bytes.extend_from_slice(&(value.round_ties_even() as i32).to_le_bytes()),
        }
    }

    /// The value of an element's bytes; integers past 24 bits lose their last ones.
    fn decode(self, bytes: &[u8]) -> f32 {
        let word = |n: usize| {
            let mut word = [0; 4];
            word[..n].copy_from_slice(&bytes[..n]);
            u32::from_le_bytes(word)
        };
        match self {
            Self::F32 => f32::from_bits(word(4)),
            Self::F16 => f32_from_f16(word(2) as u16),
            Self::BF16 => f32::from_bits(word(2) << 16),
            Self::I8 | Self::I4 => f32::from(word(1) as u8 as i8),
            Self::I32 => word(4) as i32 as f32,
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The nearest `bf16`, ties to even; a NaN stays one.
pub fn bf16_from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return 0x7fff;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// The nearest `f16`, ties to even; past the largest it is infinite.
pub fn f16_from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7fff;
    }
    // 65520 and more round to infinity.
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    // Below 2^-14 the result is subnormal: in units of 2^-24, which the addition of 0.5 rounds.
    if magnitude < 0x3880_0000 {
        let units = f32::from_bits(magnitude) + 0.5;
        return sign | (units.to_bits() - 0.5_f32.to_bits()) as u16;
    }
    let rounded = magnitude - 0x3800_0000 + 0xfff + ((magnitude >> 13) & 1);
    sign | (rounded >> 13) as u16
}

/// The value of an `f16`.
pub fn f32_from_f16(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let (exponent, fraction) = ((bits >> 10) & 31, u32::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => (fraction as f32 / 16_777_216.0).to_bits(),
        31 => 0x7f80_0000 | (fraction << 13),
        _ => ((u32::from(exponent) + 112) << 23) | (fraction << 13),
    };
    f32::from_bits(sign | magnitude)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_survives_the_way_to_f32_and_back() {
        for bits in 0..=u16::MAX {
            let value = f32_from_f16(bits);
            if value.is_nan() {
                assert!(f32_from_f16(f16_from_f32(value)).is_nan());
            } else {
                assert_eq!(f16_from_f32(value), bits, "{value}");
            }
        }
    }

    #[test]
    fn integers_are_rounded_to_the_nearest_even_and_saturate() {
        let values = [1.7, -1.7, 2.5, 300.0, -300.0, f32::NAN];
        for (dtype, want) in [
            (DType::I8, [2.0, -2.0, 2.0, 127.0, -128.0, 0.0]),
            (DType::I32, [2.0, -2.0, 2.0, 300.0, -300.0, 0.0]),
            (DType::I4, [2.0, -2.0, 2.0, 7.0, -8.0, 0.0]),
        ] {
            for count in [values.len(), values.len() - 1] {
                let bytes = dtype.encode_all(&values[..count]);
                assert_eq!(bytes.len(), dtype.bytes_of(count), "{dtype}");
                assert_eq!(dtype.decode_all(&bytes, count), want[..count], "{dtype}");
            }
        }
    }

    #[test]
    fn halves_are_rounded_to_the_nearest_even() {
        for (value, bits) in [
            (65504.0, 0x7bff),
            (65519.9, 0x7bff),
            (65520.0, 0x7c00),
            (1.0 + 1.0 / 2048.0, 0x3c00),
            (1.0 + 3.0 / 2048.0, 0x3c02),
            (2.0_f32.powi(-25), 0),
            (2.0_f32.powi(-25) * 1.5, 1),
            (-0.0, 0x8000),
        ] {
            assert_eq!(f16_from_f32(value), bits, "{value}");
        }
        assert_eq!(bf16_from_f32(1.0 + 1.0 / 256.0), 0x3f80);
        assert_eq!(bf16_from_f32(f32::MAX), 0x7f80);
    }
}
