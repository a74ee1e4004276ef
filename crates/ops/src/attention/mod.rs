//! Attention: `softmax(scale · q kᵀ) v` for each head.
//!
//! Two ways to compute it. The *flash* kernels keep scores in registers or shared memory and need no
//! memory beside their result; the plain way makes the whole matrix of scores. [`Ops::attention`] uses
//! a flash kernel wherever there is one for the tensors, the plain way otherwise, and
//! [`Ops::attention_memory`] says what each needs.

mod backward;
mod flash;
mod flash_back;
mod plain;
#[cfg(test)]
mod tests;

pub use backward::AttentionGradients;

use crate::pack::MOST_BLOCKS;
use crate::rows::float;
use crate::{DType, Error, Ops, Result, Tensor};

/// Which keys each query sees, and how scores are scaled.
#[derive(Clone, Debug, Default)]
pub struct Attention<'a> {
    /// A query sees keys up to its own place only; the last query is beside the last key.
    pub causal: bool,
    /// The most keys that a query sees, at least 1: the nearest ones up to its own place. `None` for no
    /// limit. Only for causal attention.
    pub window: Option<usize>,
    /// Factor of the scores; by default `1 / √size`.
    pub scale: Option<f32>,
    /// For keys and values in pages.
    pub pages: Option<Pages<'a>>,
    /// For sequences of different lengths in one tensor: sequence `b` has rows
    /// `starts[b]..starts[b + 1]`, of queries and of keys.
    pub starts: Option<Starts<'a>>,
}

/// Where sequences of different lengths begin; one number more than there are sequences.
#[derive(Clone, Copy, Debug)]
pub struct Starts<'a> {
    /// Of the queries.
    pub queries: &'a [usize],
    /// Of the keys and values.
    pub keys: &'a [usize],
}

/// Keys and values in pages, as servers of models keep those of many sequences that grow. The keys and the values are
/// `[pages, kv heads, rows of a page, size]` then, the queries `[sequences, heads, queries, size]`. Row `r` of sequence `b` is
/// row `r % rows` of page `table[b][r / rows]`. With `causal` the last query is beside the last row of its sequence.
#[derive(Clone, Copy, Debug)]
pub struct Pages<'a> {
    /// Page numbers, i32 `[sequences, most pages of a sequence]`. Only those of rows that a sequence has are read. They are
    /// not checked: a number that no page has reads other memory of the virtual GPU, or is a fault.
    pub table: &'a Tensor,
    /// Rows of each sequence, i32 `[sequences]`.
    pub lengths: &'a Tensor,
}

/// Device memory that attention needs beside its inputs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionMemory {
    /// The result: the output, and the logarithms of sums where they are computed.
    pub result: u64,
    /// What the flash kernel needs while it runs.
    pub flash: u64,
    /// What the plain way needs while it runs.
    pub plain: u64,
}

/// Result of attention.
#[derive(Clone, Debug)]
pub struct Attended {
    /// `[batch, heads, queries, size]`.
    pub output: Tensor,
    /// The logarithm of the sum of each query's weights in f32, `[batch, heads, queries]`. Only the flash
    /// kernels compute it, and not for sequences of different lengths.
    pub log_sums: Option<Tensor>,
}

/// Sizes of one call that fit each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    pub(crate) size: usize,
    pub(crate) scale: f32,
    /// The most keys that a query sees; 0 for no limit.
    pub(crate) window: i32,
    pub(crate) is_causal: bool,
    /// Whether sequences of different lengths are in one tensor.
    pub(crate) is_ragged: bool,
    /// Rows of a page; 0 where keys and values are not in pages.
    pub(crate) page_rows: usize,
    pub(crate) dtype: DType,
}

impl Sizes {
    /// Multiplications and additions of so many products of queries and keys. How many keys there are in pages only the device
    /// knows: these are not counted.
    fn flops(&self, spec: &Attention, products: u64) -> u64 {
        let window = if self.window > 0 {
            self.window as usize
        } else {
            usize::MAX
        };
        let pairs = |queries: usize, keys: usize| -> u64 {
            if !self.is_causal {
                return queries as u64 * keys as u64;
            }
            let seen = |query: usize| (query + 1 + keys).saturating_sub(queries).min(window);
            (0..queries).map(|query| seen(query) as u64).sum()
        };
        let all = match (&spec.pages, &spec.starts) {
            (Some(_), _) => 0,
            (None, None) => self.batch as u64 * pairs(self.queries, self.keys),
            (None, Some(starts)) => {
                let sequences = starts.queries.windows(2).zip(starts.keys.windows(2));
                sequences
                    .map(|(q, k)| pairs(q[1] - q[0], k[1] - k[0]))
                    .sum()
            }
        };
        all * self.heads as u64 * 2 * products * self.size as u64
    }
}

fn mismatch(
    left: (&'static str, &Tensor),
    right: (&'static str, &Tensor),
    rule: &'static str,
) -> Error {
    Error::Shape {
        operation: "attention",
        left_name: left.0,
        left: left.1.shape().to_vec(),
        right_name: right.0,
        right: right.1.shape().to_vec(),
        rule,
    }
}

/// Refuses options that do not go together.
fn check_window(spec: &Attention) -> Result<()> {
    let wrong = if spec.pages.is_some() && spec.starts.is_some() {
        "sequences have pages or starts, not both"
    } else if spec.window.is_some() && !spec.causal {
        "a window is for causal attention only"
    } else if spec.window == Some(0) {
        "a window of 0 keys"
    } else {
        return Ok(());
    };
    Err(Error::argument("attention", wrong))
}

fn check(q: &Tensor, k: &Tensor, v: &Tensor, spec: &Attention) -> Result<Sizes> {
    float("attention", q)?;
    for other in [k, v] {
        if other.dtype() != q.dtype() {
            return Err(Error::Types {
                operation: "attention",
                left: q.dtype(),
                right: other.dtype(),
                rule: "queries, keys and values have the same type",
            });
        }
    }
    let ([batch, heads, queries, size], [mut k_batch, kv_heads, mut keys, k_size]) =
        (four(q)?, four(k)?);
    let mut page_rows = 0;
    if let Some(pages) = &spec.pages {
        page_rows = keys;
        keys = check_pages(pages, batch, page_rows)?;
        k_batch = batch;
    }
    if k.shape() != v.shape() {
        return Err(mismatch(
            ("the keys", k),
            ("the values", v),
            "both are equal",
        ));
    }
    let unlike = |rule| Err(mismatch(("the queries", q), ("the keys", k), rule));
    if (batch, size) != (k_batch, k_size) || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        return unlike(
            "[batch, heads, rows, size] with equal batch and size, and heads a multiple of the keys' heads",
        );
    }
    check_window(spec)?;
    let most = 1 << 30;
    let axes = [queries, keys, size, heads, batch];
    if axes.iter().any(|n| *n > most) {
        return unlike("no axis is longer than 2^30");
    }
    if let Some(starts) = &spec.starts {
        check_starts(starts, batch, queries, keys)?;
    }
    Ok(Sizes {
        batch,
        heads,
        kv_heads,
        queries,
        keys,
        size,
        scale: spec.scale.unwrap_or(1.0 / (size as f32).sqrt()),
        window: spec.window.map_or(0, |window| window.min(most) as i32),
        is_causal: spec.causal,
        is_ragged: spec.starts.is_some(),
        page_rows,
        dtype: q.dtype(),
    })
}

fn four(tensor: &Tensor) -> Result<[usize; 4]> {
    tensor.shape().try_into().map_err(|_| {
        let message = format!(
            "shape {:?} is not [batch, heads, rows, size]",
            tensor.shape()
        );
        Error::argument("attention", message)
    })
}

/// The most rows of a sequence.
fn check_pages(pages: &Pages, batch: usize, page_rows: usize) -> Result<usize> {
    let (table, lengths) = (pages.table, pages.lengths);
    let types = [table.dtype(), lengths.dtype()];
    if types != [DType::I32; 2] {
        let [table, lengths] = types;
        let message = format!("a table of {table} and lengths of {lengths}; both are i32");
        return Err(Error::argument("attention", message));
    }
    match (table.shape(), lengths.shape()) {
        (&[sequences, most], &[count]) if sequences == batch && count == batch => {
            match most.checked_mul(page_rows) {
                Some(rows) if page_rows > 0 => Ok(rows),
                _ => {
                    let message = format!("{most} pages of {page_rows} rows for a sequence");
                    Err(Error::argument("attention", message))
                }
            }
        }
        _ => Err(mismatch(
            ("the table", table),
            ("the lengths", lengths),
            "[sequences, pages] and [sequences], with as many sequences as the queries have",
        )),
    }
}

fn check_starts(starts: &Starts, batch: usize, queries: usize, keys: usize) -> Result<()> {
    if batch != 1 {
        let message =
            format!("sequences of different lengths are rows of a batch of 1, not of {batch}");
        return Err(Error::argument("attention", message));
    }
    for (name, starts, rows) in [
        ("queries", starts.queries, queries),
        ("keys", starts.keys, keys),
    ] {
        let grows = starts.windows(2).all(|pair| pair[0] <= pair[1]);
        let ends = (starts.first().copied(), starts.last().copied());
        if starts.len() < 2 || !grows || ends != (Some(0), Some(rows)) {
            let message = format!("starts of {name} {starts:?} do not grow from 0 to {rows}");
            return Err(Error::argument("attention", message));
        }
    }
    if starts.queries.len() - 1 > MOST_BLOCKS {
        let message = format!(
            "{} sequences; at most {MOST_BLOCKS} are possible",
            starts.queries.len() - 1
        );
        return Err(Error::argument("attention", message));
    }
    if starts.queries.len() != starts.keys.len() {
        let message = format!(
            "{} starts of queries and {} of keys",
            starts.queries.len(),
            starts.keys.len()
        );
        return Err(Error::argument("attention", message));
    }
    Ok(())
}

impl Ops {
    /// Attention of queries `[batch, heads, queries, size]` to keys and values
    /// `[batch, kv heads, keys, size]`; several heads of queries may share one of keys and values.
    /// A query that sees no key gets zeros.
    ///
    /// # Errors
    /// If shapes or types do not fit; both are in the message.
    pub fn attention(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        spec: &Attention,
    ) -> Result<Attended> {
        let sizes = check(q, k, v, spec)?;
        let timed = match spec.pages {
            None => self.begin("attention", &[q, k, v]),
            Some(pages) => self.begin("attention", &[q, pages.table, pages.lengths]),
        };
        timed.computes(|| sizes.flops(spec, 2));
        let attended = self.result_of(self, &sizes, spec)?;
        timed.moves(&[&attended.output]);
        if attended.output.is_empty() {
            return Ok(attended);
        }
        match self.flash_kernel(&sizes)? {
            Some(kernel) => self.flash(kernel, &sizes, [q, k, v], spec, &attended)?,
            None if spec.pages.is_some() => {
                let message = format!(
                    "keys in pages need a head size that is a multiple of 8 and at most 256, not {}",
                    sizes.size
                );
                return Err(Error::argument("attention", message));
            }
            None => self.plain(&sizes, [q, k, v], spec, &attended)?,
        }
        Ok(attended)
    }

    /// Memory for the result, of `ops`.
    fn result_of(&self, ops: &Self, sizes: &Sizes, spec: &Attention) -> Result<Attended> {
        let shape = [sizes.batch, sizes.heads, sizes.queries, sizes.size];
        let has_log_sums = self.flash_kernel(sizes)?.is_some() && spec.starts.is_none();
        Ok(Attended {
            output: ops.unset(&shape, sizes.dtype)?,
            log_sums: match has_log_sums {
                true => Some(ops.unset(&shape[..3], DType::F32)?),
                false => None,
            },
        })
    }

    /// The memory that attention of these tensors needs by each way, to the byte, when it begins without memory that is kept
    /// for later tensors ([`Ops::memory_of`]). 0 for a way that cannot compute it.
    ///
    /// # Errors
    /// If shapes or types do not fit.
    pub fn attention_memory(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        spec: &Attention,
    ) -> Result<AttentionMemory> {
        let sizes = check(q, k, v, spec)?;
        let inputs = [q, k, v];
        let result = |ops: &Self| self.result_of(ops, &sizes, spec);
        let all_of = |way: &dyn Fn(&Self, &Attended) -> Result<()>| {
            self.memory_of(|ops| {
                let attended = result(ops)?;
                way(ops, &attended).map(|()| attended)
            })
        };
        let result_bytes = self.memory_of(result)?;
        if q.is_empty() {
            return Ok(AttentionMemory {
                result: result_bytes,
                flash: 0,
                plain: 0,
            });
        }
        let flash = match self.flash_kernel(&sizes)? {
            Some(kernel) => all_of(&|ops, to| ops.flash(kernel, &sizes, inputs, spec, to))?,
            None => result_bytes,
        };
        let is_plain = spec.starts.is_none() && spec.pages.is_none();
        let plain = match is_plain {
            true => all_of(&|ops, to| ops.plain(&sizes, inputs, spec, to))?,
            false => result_bytes,
        };
        Ok(AttentionMemory {
            result: result_bytes,
            flash: flash - result_bytes,
            plain: plain - result_bytes,
        })
    }
}
