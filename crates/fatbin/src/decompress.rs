//! LZ4 blocks and zstd frames, within a limit.

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

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

/// The largest window of a zstd frame whatever its content: what every decoder should accept (RFC 8878, 3.1.1.1.2).
const USUAL_WINDOW: u64 = 8 << 20;

/// A zstd frame that holds exactly `size` bytes.
pub(crate) fn zstd(data: &[u8], size: u64, limit: u64) -> Result<Vec<u8>> {
    check(size, limit)?;
    let mut source = data;
    let mut decoder = FrameDecoder::new();
    // The decoder keeps a whole window before it gives anything away, so the window bounds what a frame that lies
    // makes it hold. An honest frame needs no more than its content, rounded up as encoders do.
    decoder.set_max_window_size(
        size.checked_next_power_of_two()
            .unwrap_or(size)
            .max(USUAL_WINDOW),
    );
    decoder
        .init(&mut source)
        .map_err(|e| failed("zstd", data, e))?;
    let mut out = Vec::new();
    while !decoder.is_finished() {
        // A block is 128 KiB at most.
        decoder
            .decode_blocks(&mut source, BlockDecodingStrategy::UptoBlocks(1))
            .map_err(|e| failed("zstd", data, e))?;
        if (out.len() + decoder.can_collect()) as u64 > size {
            return Err(failed(
                "zstd",
                data,
                format!("it holds more than {size} bytes"),
            ));
        }
        decoder
            .collect_to_writer(&mut out)
            .map_err(|e| failed("zstd", data, e))?;
    }
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
