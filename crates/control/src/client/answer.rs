//! An HTTP answer: its head, and its body however it is framed.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;

use super::ControlError;
use crate::api::ApiError;

/// Longest answer that is read.
pub(super) const ANSWER_LIMIT: u64 = 64 << 20;

pub(super) fn read_answer(stream: UnixStream) -> Result<Body, ControlError> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    let mut next_line = |reader: &mut BufReader<UnixStream>| -> Result<String, ControlError> {
        line.clear();
        reader
            .by_ref()
            .take(16 << 10)
            .read_line(&mut line)
            .map_err(ControlError::Broken)?;
        Ok(line.trim_end().to_owned())
    };
    let status_line = next_line(&mut reader)?;
    let status: u16 = status_line
        .split(' ')
        .nth(1)
        .and_then(|word| word.parse().ok())
        .ok_or_else(|| ControlError::Malformed(format!("status line {status_line:?}")))?;
    let mut framing = Framing::UntilClosed;
    loop {
        let header = next_line(&mut reader)?;
        if header.is_empty() {
            break;
        }
        let Some((key, value)) = header.split_once(':') else {
            return Err(ControlError::Malformed(format!("header {header:?}")));
        };
        let value = value.trim();
        if key.eq_ignore_ascii_case("content-length") {
            let length = value
                .parse()
                .map_err(|_| ControlError::Malformed(format!("length {value:?}")))?;
            framing = Framing::Length(length);
        } else if key.eq_ignore_ascii_case("transfer-encoding")
            && value.eq_ignore_ascii_case("chunked")
        {
            framing = Framing::Chunked(0);
        }
    }
    let mut body = Body { reader, framing };
    if (200..300).contains(&status) {
        return Ok(body);
    }
    let mut text = String::new();
    let _ = body.by_ref().take(1 << 20).read_to_string(&mut text);
    Err(ControlError::Refused(
        serde_json::from_str(&text).unwrap_or_else(|_| ApiError {
            error: format!("the daemon answered {status}: {text}"),
            reason: "internal".into(),
            hint: None,
        }),
    ))
}

/// How the end of an answer is found.
#[derive(Debug)]
pub(super) enum Framing {
    UntilClosed,
    Length(u64),
    /// Bytes left in the current chunk.
    Chunked(u64),
}

/// The body of an answer.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) reader: BufReader<UnixStream>,
    pub(super) framing: Framing,
}

/// Reads some of the bytes that are left; an end before the last of them is an error.
fn read_of(reader: &mut impl Read, left: &mut u64, buffer: &mut [u8]) -> std::io::Result<usize> {
    let most = buffer
        .len()
        .min(usize::try_from(*left).unwrap_or(usize::MAX));
    let count = reader.read(&mut buffer[..most])?;
    if count == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    *left -= count as u64;
    Ok(count)
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        match &mut self.framing {
            Framing::UntilClosed => self.reader.read(buffer),
            Framing::Length(0) => Ok(0),
            Framing::Length(left) => read_of(&mut self.reader, left, buffer),
            Framing::Chunked(left) => {
                if *left == 0 {
                    let mut line = String::new();
                    self.reader.by_ref().take(64).read_line(&mut line)?;
                    let size = u64::from_str_radix(line.trim(), 16)
                        .map_err(|_| std::io::Error::from(std::io::ErrorKind::InvalidData))?;
                    if size == 0 {
                        self.framing = Framing::Length(0);
                        return Ok(0);
                    }
                    *left = size;
                }
                let count = read_of(&mut self.reader, left, buffer)?;
                if *left == 0 {
                    let mut end = [0; 2];
                    self.reader.read_exact(&mut end)?;
                }
                Ok(count)
            }
        }
    }
}
