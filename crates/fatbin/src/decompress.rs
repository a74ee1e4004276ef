//! LZ4 blocks and zstd frames, within a limit.

use std::io::Read;

use crate::error::{Error, Result};

fn failed(method: &'static str, data: &[u8], reason: impl ToString) -> Error {
    Error::Decompress {
        method,
        compressed: data.len(),
        reason: reason.to_string(),
    }
}

/// A raw LZ4 block that holds exactly `size` bytes.
pub(crate) fn lz4(data: &[u8], size: u64, limit: u64) -> Result<Vec<u8>> {
    check(size, limit)?;
    // No block expands more than 255 times: a larger claim would only waste memory.
    if size > (data.len() as u64 + 1).saturating_mul(255) {
        return Err(failed(
            "LZ4",
            data,
            format!("{size} bytes cannot come out of it"),
        ));
    }
    let mut out = vec![0; size as usize];
    match lz4_flex::block::decompress_into(data, &mut out) {
        Ok(n) if n as u64 == size => Ok(out),
        Ok(n) => Err(failed(
            "LZ4",
            data,
            format!("it holds {n} bytes, not {size}"),
        )),
        Err(e) => Err(failed("LZ4", data, e)),
    }
}

/// A zstd frame that holds exactly `size` bytes.
pub(crate) fn zstd(data: &[u8], size: u64, limit: u64) -> Result<Vec<u8>> {
    check(size, limit)?;
    let mut decoder =
        ruzstd::decoding::StreamingDecoder::new(data).map_err(|e| failed("zstd", data, e))?;
    // The vector grows with what really comes out, whatever the header claims.
    let mut out = Vec::new();
    let read = decoder
        .by_ref()
        .take(size.saturating_add(1))
        .read_to_end(&mut out);
    read.map_err(|e| failed("zstd", data, e))?;
    if out.len() as u64 != size {
        let reason = format!("it holds {} bytes, not {size}", out.len());
        return Err(failed("zstd", data, reason));
    }
    Ok(out)
}

fn check(size: u64, limit: u64) -> Result<()> {
    if size > limit {
        return Err(Error::Limit {
            what: "decompressed size",
            value: size,
            limit,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lz4_round_trip_and_lies() {
        let text = b"aaaaaaaaaaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbbbbbb";
        let block = lz4_flex::block::compress(text);
        assert_eq!(lz4(&block, text.len() as u64, 1000).unwrap(), text);
        assert!(matches!(
            lz4(&block, 10, 1000),
            Err(Error::Decompress { .. })
        ));
        assert!(matches!(lz4(&block, 100, 10), Err(Error::Limit { .. })));
        assert!(matches!(
            lz4(&block, 1 << 40, u64::MAX),
            Err(Error::Decompress { .. })
        ));
        assert!(lz4(b"\xff\xff\xff", 3, 1000).is_err());
    }

    #[test]
    fn zstd_refuses_garbage() {
        assert!(matches!(
            zstd(b"not zstd", 8, 1000),
            Err(Error::Decompress { .. })
        ));
        assert!(zstd(b"", 0, 1000).is_err());
    }
}
