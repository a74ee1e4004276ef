//! Errors of posted calls, kept until somebody is told.

use std::collections::BTreeMap;
use std::sync::Mutex;

use mica_cuda_abi::CuResult;

use super::lock;

/// Errors kept for one context; more would say nothing new.
const KEPT: usize = 16;
/// Most bytes of a sentence: it may name a kernel whose name is as long as its program likes.
const MOST_BYTES: usize = 4096;

fn shortened(message: String) -> String {
    let end = (0..=MOST_BYTES.min(message.len())).rev();
    let end = end.into_iter().find(|end| message.is_char_boundary(*end));
    match end {
        Some(end) if end < message.len() => message[..end].to_owned(),
        _ => message,
    }
}

/// Late errors by context. One that killed its context is told again and again; others once.
#[derive(Debug, Default)]
pub struct LateErrors {
    by_context: Mutex<BTreeMap<u64, Vec<(CuResult, String)>>>,
}

impl LateErrors {
    /// Keeps an error; context 0 is for errors that belong to none.
    pub fn note(&self, context: u64, code: CuResult, message: String) {
        let mut by_context = lock(&self.by_context);
        let errors = by_context.entry(context).or_default();
        let dead = errors.iter().any(|(code, _)| code.is_sticky());
        if !dead && errors.len() < KEPT {
            errors.push((code, shortened(message)));
        }
    }

    /// The oldest error of a context (0: of any, those of no context first).
    pub fn take(&self, context: u64) -> Option<(CuResult, String)> {
        let mut by_context = lock(&self.by_context);
        let key = match context {
            0 => *by_context.keys().next()?,
            // What belongs to no context must be told to somebody.
            other if by_context.contains_key(&other) => other,
            _ => by_context.contains_key(&0).then_some(0)?,
        };
        let errors = by_context.get_mut(&key)?;
        let first = errors.first().cloned()?;
        if !first.0.is_sticky() {
            errors.remove(0);
        }
        if errors.is_empty() {
            by_context.remove(&key);
        }
        Some(first)
    }

    /// All of them, with their contexts.
    pub(super) fn all(&self) -> Vec<(u64, CuResult, String)> {
        let by_context = lock(&self.by_context);
        let each = |(context, errors): (&u64, &Vec<(CuResult, String)>)| {
            let context = *context;
            let errors = errors.clone().into_iter();
            errors
                .map(move |(code, message)| (context, code, message))
                .collect::<Vec<_>>()
        };
        by_context.iter().flat_map(each).collect()
    }

    /// Forgets a context that was destroyed.
    pub fn forget(&self, context: u64) {
        lock(&self.by_context).remove(&context);
    }

    /// How many errors wait.
    pub fn count(&self) -> u32 {
        lock(&self.by_context).values().map(Vec::len).sum::<usize>() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_errors_are_told_once_and_fatal_ones_for_ever() {
        let late = LateErrors::default();
        late.note(5, CuResult::InvalidValue, "first".into());
        late.note(5, CuResult::IllegalAddress, "second".into());
        late.note(5, CuResult::InvalidValue, "after death".into());
        assert_eq!(late.count(), 2);
        assert_eq!(late.take(5).unwrap().0, CuResult::InvalidValue);
        assert_eq!(late.take(5).unwrap().1, "second");
        assert_eq!(late.take(0).unwrap().1, "second");
        late.forget(5);
        assert_eq!((late.take(5), late.count()), (None, 0));
    }

    #[test]
    fn a_sentence_of_any_length_is_kept_short() {
        let late = LateErrors::default();
        late.note(5, CuResult::InvalidValue, "ü".repeat(1 << 20));
        let (_, message) = late.take(5).unwrap();
        assert!(message.len() <= MOST_BYTES && message.capacity() <= 2 * MOST_BYTES);
    }

    #[test]
    fn an_error_of_no_context_reaches_the_next_who_asks() {
        let late = LateErrors::default();
        late.note(0, CuResult::InvalidHandle, "forged".into());
        assert_eq!(late.take(9).unwrap().0, CuResult::InvalidHandle);
        assert_eq!(late.take(9), None);
    }
}
