//! Addresses on the PCI bus, in all spellings that the driver and NVML take.

/// The domain of software GPUs. No machine has it, so that no address is one of a real device.
pub const SOFTWARE_PCI_DOMAIN: u32 = 0xffff;

/// Where a device is on the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciAddress {
    /// `None` where the text names none.
    pub domain: Option<u32>,
    /// The bus.
    pub bus: u32,
    /// The device, also called slot.
    pub device: u32,
}

impl PciAddress {
    /// Reads `[domain:]bus:device[.function]`, hexadecimal, with or without leading zeros. GPUs are function 0.
    pub fn parse(text: &str) -> Option<Self> {
        let (place, function) = text.split_once('.').unwrap_or((text, "0"));
        let number = |part: &str| {
            let is_plain = !part.is_empty() && part.bytes().all(|b| b.is_ascii_hexdigit());
            let value = u32::from_str_radix(part, 16).ok();
            value.filter(|_| is_plain)
        };
        if number(function)? != 0 {
            return None;
        }
        let mut parts = place.rsplit(':');
        let (device, bus) = (number(parts.next()?)?, number(parts.next()?)?);
        let domain = match parts.next() {
            Some(part) => Some(number(part)?),
            None => None,
        };
        if parts.next().is_some() {
            return None;
        }
        Some(Self {
            domain,
            bus,
            device,
        })
    }

    /// Whether a program that writes this means the device at that place. A missing domain is any.
    pub fn means(&self, domain: u32, bus: u32, device: u32) -> bool {
        self.domain.is_none_or(|named| named == domain) && (self.bus, self.device) == (bus, device)
    }
}

#[cfg(test)]
mod tests {
    use super::PciAddress;

    #[test]
    fn every_spelling_means_the_same_device() {
        let spellings = [
            "0000ffff:1a:10.0",
            "FFFF:1A:10.0",
            "ffff:1a:10",
            "1a:10.0",
            "1A:10",
        ];
        for text in spellings {
            let parsed = PciAddress::parse(text).expect(text);
            assert!(parsed.means(0xffff, 0x1a, 0x10), "{text}");
            assert!(!parsed.means(0xffff, 0x1a, 0x11), "{text}");
        }
        assert!(
            !PciAddress::parse("0:1a:10.0")
                .expect("parses")
                .means(0xffff, 0x1a, 0x10)
        );
    }

    #[test]
    fn what_is_no_address_is_none() {
        for text in [
            "",
            "nonsense",
            "1a",
            "1a:",
            ":::",
            "1:2:3:4.0",
            "1a:10.1",
            "+1:10.0",
            "1a:10.0.0",
        ] {
            assert_eq!(PciAddress::parse(text), None, "{text}");
        }
    }
}
