//! Device-side `printf`: formatting, and the buffer that is emptied at synchronization.
//!
//! Format and arguments come from a kernel and are read with checks; whatever they say, the result
//! is bounded text, no more bytes are read than the text has room for, and whoever formats is asked before every
//! conversion whether it may go on.

mod fifo;

use crate::arena::PAGE;
use crate::memory::DeviceMemory;

pub(crate) use fifo::Fifo;

/// Bounds on one conversion and one call, so that a kernel cannot ask for gigabytes.
const MOST_WIDTH: usize = 8192;
const MOST_TEXT: usize = 64 << 10;

/// Formats one call. `None` for a format that cannot be read; else the text and how many arguments
/// it used, which is what device-side `printf` returns. `None` too if `may_go_on` says no, which is asked before
/// every conversion and may wait.
pub(crate) fn format(
    memory: &DeviceMemory,
    format: u64,
    args: u64,
    may_go_on: &dyn Fn() -> bool,
) -> Option<(Vec<u8>, i32)> {
    let text = read_c_string(memory, format, MOST_TEXT)?;
    let mut arguments = Arguments {
        memory,
        at: args,
        used: 0,
    };
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_slice();
    while let Some(percent) = rest.iter().position(|b| *b == b'%') {
        if !may_go_on() {
            return None;
        }
        out.extend_from_slice(&rest[..percent]);
        rest = &rest[percent..];
        let (spec, len) = Spec::parse(rest, &mut arguments);
        match spec {
            Some(spec) => spec.print(&mut arguments, &mut out),
            None => out.extend_from_slice(&rest[..len]),
        }
        rest = &rest[len..];
        if out.len() > MOST_TEXT {
            out.truncate(MOST_TEXT);
            return Some((out, arguments.used));
        }
    }
    out.extend_from_slice(rest);
    Some((out, arguments.used))
}

/// A C string of the arena, cut at `most` bytes, and at 64 KiB.
pub(crate) fn read_c_string(memory: &DeviceMemory, address: u64, most: usize) -> Option<Vec<u8>> {
    let most = most.min(MOST_TEXT);
    let mut text = Vec::new();
    let mut at = address;
    let mut piece = [0; PAGE as usize];
    // Short at first: most strings are.
    let mut step = 64;
    while text.len() < most {
        // A piece never crosses a page, so a string that ends before a hole is readable.
        let len = ((step - at % step) as usize).min(most - text.len());
        step = PAGE;
        let piece = &mut piece[..len];
        memory.read(at, piece)?;
        if let Some(end) = piece.iter().position(|b| *b == 0) {
            text.extend_from_slice(&piece[..end]);
            return Some(text);
        }
        text.extend_from_slice(piece);
        at += len as u64;
    }
    Some(text)
}

/// The variadic arguments as the compiler packs them: each at its natural alignment.
struct Arguments<'a> {
    memory: &'a DeviceMemory,
    at: u64,
    used: i32,
}

impl Arguments<'_> {
    fn four(&mut self) -> u32 {
        let mut bytes = [0; 4];
        self.take(&mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn eight(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.take(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// An unreadable argument stays zero.
    fn take(&mut self, bytes: &mut [u8]) {
        let size = bytes.len() as u64;
        // The pointer is the program's: it may be the last one there is.
        self.at = self.at.wrapping_add(size - 1) & !(size - 1);
        let _unreadable = self.memory.read(self.at, bytes);
        self.at = self.at.wrapping_add(size);
        self.used += 1;
    }
}

/// One conversion.
struct Spec {
    flags: Vec<u8>,
    width: Option<usize>,
    precision: Option<usize>,
    wide: bool,
    narrow: u32,
    conversion: u8,
}

impl Spec {
    /// Parses from a `%`; gives the length consumed, and no spec for what is no conversion.
    fn parse(text: &[u8], arguments: &mut Arguments<'_>) -> (Option<Self>, usize) {
        let mut at = 1;
        let peek = |at: usize| text.get(at).copied().unwrap_or(0);
        let mut spec = Self {
            flags: Vec::new(),
            width: None,
            precision: None,
            wide: false,
            narrow: 0,
            conversion: 0,
        };
        while b"-+ #0".contains(&peek(at)) && peek(at) != 0 {
            if !spec.flags.contains(&peek(at)) {
                spec.flags.push(peek(at));
            }
            at += 1;
        }
        let mut number = |at: &mut usize| -> Option<i64> {
            if peek(*at) == b'*' {
                *at += 1;
                return Some(i64::from(arguments.four() as i32));
            }
            let mut value = None;
            while peek(*at).is_ascii_digit() {
                let digit = i64::from(peek(*at) - b'0');
                value = Some((value.unwrap_or(0_i64) * 10 + digit).min(MOST_WIDTH as i64));
                *at += 1;
            }
            value
        };
        if let Some(width) = number(&mut at) {
            if width < 0 {
                spec.flags.push(b'-');
            }
            spec.width = Some((width.unsigned_abs() as usize).min(MOST_WIDTH));
        }
        if peek(at) == b'.' {
            at += 1;
            let precision = number(&mut at).unwrap_or(0);
            spec.precision = usize::try_from(precision).ok().map(|p| p.min(MOST_WIDTH));
        }
        loop {
            match peek(at) {
                b'h' => spec.narrow += 1,
                b'l' | b'z' | b'j' | b't' | b'L' => spec.wide = true,
                _ => break,
            }
            at += 1;
        }
        spec.conversion = peek(at);
        if b"diouxXeEfFgGaAcsp%".contains(&spec.conversion) && spec.conversion != 0 {
            (Some(spec), at + 1)
        } else {
            (None, at.min(text.len()))
        }
    }

    fn print(&self, arguments: &mut Arguments<'_>, out: &mut Vec<u8>) {
        match self.conversion {
            b'%' => out.push(b'%'),
            b'd' | b'i' => {
                let value = match (self.wide, self.narrow) {
                    (true, _) => arguments.eight() as i64,
                    (false, 0) => i64::from(arguments.four() as i32),
                    (false, 1) => i64::from(arguments.four() as i16),
                    (false, _) => i64::from(arguments.four() as i8),
                };
                self.with_c(b"ll", out, |buffer, len, format| {
                    // SAFETY: the format has one `ll` integer conversion and nothing else.
                    unsafe { libc::snprintf(buffer, len, format, value) }
                });
            }
            b'o' | b'u' | b'x' | b'X' => {
                let value = match (self.wide, self.narrow) {
                    (true, _) => arguments.eight(),
                    (false, 0) => u64::from(arguments.four()),
                    (false, 1) => u64::from(arguments.four() as u16),
                    (false, _) => u64::from(arguments.four() as u8),
                };
                self.with_c(b"ll", out, |buffer, len, format| {
                    // SAFETY: as above.
                    unsafe { libc::snprintf(buffer, len, format, value) }
                });
            }
            b'p' => {
                let value = arguments.eight();
                self.with_c(b"", out, |buffer, len, format| {
                    // SAFETY: one `p` conversion; the value is printed, never followed.
                    unsafe { libc::snprintf(buffer, len, format, value as *const libc::c_void) }
                });
            }
            b'c' => self.pad(&[arguments.four() as u8], out),
            b's' => {
                let address = arguments.eight();
                // No more than what can be shown.
                let most = self.precision.unwrap_or(MOST_TEXT);
                let mut text = match read_c_string(arguments.memory, address, most) {
                    Some(text) => text,
                    None if address == 0 => b"(null)".to_vec(),
                    None => format!("<bad string {address:#x}>").into_bytes(),
                };
                text.truncate(most);
                self.pad(&text, out);
            }
            _ => {
                let value = f64::from_bits(arguments.eight());
                self.with_c(b"", out, |buffer, len, format| {
                    // SAFETY: one floating conversion and nothing else.
                    unsafe { libc::snprintf(buffer, len, format, value) }
                });
            }
        }
    }

    fn pad(&self, text: &[u8], out: &mut Vec<u8>) {
        let fill = self.width.unwrap_or(0).saturating_sub(text.len());
        let left = self.flags.contains(&b'-');
        if !left {
            out.resize(out.len() + fill, b' ');
        }
        out.extend_from_slice(text);
        if left {
            out.resize(out.len() + fill, b' ');
        }
    }

    /// Lets the C library do the digits: it is what programs compare with.
    fn with_c(
        &self,
        length: &[u8],
        out: &mut Vec<u8>,
        print: impl Fn(*mut libc::c_char, usize, *const libc::c_char) -> i32,
    ) {
        let mut format = vec![b'%'];
        format.extend_from_slice(&self.flags);
        if let Some(width) = self.width {
            format.extend_from_slice(width.to_string().as_bytes());
        }
        if let Some(precision) = self.precision {
            format.push(b'.');
            format.extend_from_slice(precision.to_string().as_bytes());
        }
        format.extend_from_slice(length);
        format.push(self.conversion);
        format.push(0);
        // 310 digits before the point for the greatest double, then what was asked for.
        let room = 512 + self.width.unwrap_or(0) + self.precision.unwrap_or(0);
        let mut buffer = vec![0_u8; room];
        let len = print(buffer.as_mut_ptr().cast(), room, format.as_ptr().cast());
        let len = usize::try_from(len).unwrap_or(0).min(room - 1);
        out.extend_from_slice(&buffer[..len]);
    }
}

#[cfg(test)]
mod work_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Purpose;

    fn case(text: &str, args: &[u8]) -> (String, i32) {
        let memory = DeviceMemory::new(16 << 20, 1 << 30).unwrap();
        let at = memory.alloc(1, 4096, Purpose::Program).unwrap();
        let string = memory.alloc(1, 4096, Purpose::Program).unwrap();
        let put = |at: u64, bytes: &[u8]| {
            // SAFETY: 4096 bytes were allocated, the tests use fewer.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
        };
        put(at, text.as_bytes());
        put(at + 2048, args);
        put(string, b"device\0");
        // A `%s` argument of all ones stands for the string.
        let args: Vec<u8> = args
            .chunks(8)
            .flat_map(|c| {
                if c == [0xff; 8] {
                    string.to_le_bytes().to_vec()
                } else {
                    c.to_vec()
                }
            })
            .collect();
        put(at + 2048, &args);
        let (text, used) = format(&memory, at, at + 2048, &|| true).unwrap();
        (String::from_utf8_lossy(&text).into_owned(), used)
    }

    fn i(v: i32) -> [u8; 4] {
        v.to_le_bytes()
    }

    #[test]
    fn arguments_and_formats_at_the_end_of_all_addresses_are_unreadable_and_no_more() {
        let memory = DeviceMemory::new(16 << 20, 1 << 30).unwrap();
        let at = memory.alloc(1, 4096, Purpose::Program).unwrap();
        let text = b"%d %f %s %c %lld|\0";
        // SAFETY: 4096 bytes were allocated.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), at as *mut u8, text.len()) };
        for pointer in [u64::MAX, u64::MAX - 3, u64::MAX - 7, u64::MAX - 8] {
            let (_, used) = format(&memory, at, pointer, &|| true).unwrap();
            assert_eq!(used, 5, "{pointer:#x}");
            assert!(format(&memory, pointer, at, &|| true).is_none());
        }
    }

    #[test]
    fn integers_of_all_widths() {
        let args = [&i(-5)[..], &i(255), &(-7_i64).to_le_bytes()].concat();
        assert_eq!(case("%d %x %lld|", &args), ("-5 ff -7|".into(), 3));
        let args = [&i(3)[..], &[0; 4], &9_u64.to_le_bytes()].concat();
        assert_eq!(case("%05d %-4lu|", &args).0, "00003 9   |");
        assert_eq!(case("%hhd %hu", &[i(511), i(65_537)].concat()).0, "-1 1");
        assert_eq!(
            case(
                "%*d|%.*f",
                &[&i(4)[..], &i(7), &i(2), &[0; 4], &1.5_f64.to_le_bytes()].concat()
            )
            .0,
            "   7|1.50"
        );
    }

    #[test]
    fn floats_strings_and_characters() {
        let args = [&1.5_f64.to_le_bytes()[..], &[0xff; 8], &i(65)].concat();
        assert_eq!(
            case("%8.3f|%s|%c|%%", &args),
            ("   1.500|device|A|%".into(), 3)
        );
        assert_eq!(
            case("%.3s|%9s|", &[[0xff; 8], [0xff; 8]].concat()).0,
            "dev|   device|"
        );
        assert_eq!(
            case(
                "%g %e",
                &[0.1_f64.to_le_bytes(), 1e10_f64.to_le_bytes()].concat()
            )
            .0,
            "0.1 1.000000e+10"
        );
    }

    #[test]
    fn bad_formats_and_pointers_are_text_not_faults() {
        assert_eq!(case("%s", &8_u64.to_le_bytes()).0, "<bad string 0x8>");
        assert_eq!(case("%s", &[0; 8]).0, "(null)");
        assert_eq!(case("100%", &[]).0, "100%");
        assert_eq!(case("%y%k", &[]).0, "%y%k");
        assert_eq!(case("%99999999d|", &i(1)).0.len(), MOST_WIDTH + 1);
        let memory = DeviceMemory::new(16 << 20, 1 << 30).unwrap();
        assert!(format(&memory, 12, 0, &|| true).is_none());
    }
}
