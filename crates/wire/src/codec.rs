//! Little-endian encoding with bounds checks.
//!
//! A [`Field`] writes itself into a [`Sink`] and reads itself back from a [`Reader`]. Reading never
//! panics and never allocates more than the input could fill.

/// Input that is not what it claims to be.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Malformed {
    /// The record ends inside a field.
    #[error("the record ends {missing} bytes early")]
    Short {
        /// Bytes that are missing.
        missing: usize,
    },
    /// Bytes are left after the last field.
    #[error("{0} bytes are left over")]
    Trailing(usize),
    /// A tag or truth value has no meaning.
    #[error("{value} is no {what}")]
    Value {
        /// What was to be read.
        what: &'static str,
        /// What was there.
        value: u64,
    },
    /// No call has this number.
    #[error("no call has number {0}")]
    Call(u16),
    /// No message that may come here has this number.
    #[error("no message that may come here has number {0}")]
    Message(u32),
    /// Text that is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
    /// The values take more memory than the reader allows.
    #[error("what is read takes more memory than its length allows")]
    Room,
}

/// Where bytes go.
pub trait Sink {
    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A sink on the stack for the fixed part of a call; 256 bytes hold every call's fields.
#[derive(Debug)]
pub struct FixedBuffer {
    bytes: [u8; 256],
    len: usize,
}

impl Default for FixedBuffer {
    fn default() -> Self {
        Self {
            bytes: [0; 256],
            len: 0,
        }
    }
}

impl FixedBuffer {
    /// What was put in.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Sink for FixedBuffer {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        // Every call's fields fit (a test encodes each of them); anything longer would be cut and
        // then refused by the reader as too short.
        if let Some(room) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            room.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }
}

/// Reads fields off the front of a record.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    /// Bytes of memory that lists and texts may still take, where there is a bound.
    room: Option<usize>,
}

impl<'a> Reader<'a> {
    /// Starts at the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            room: None,
        }
    }

    /// As [`Reader::new`], where lists and texts may take so many bytes of memory and no more: short items take several times
    /// their length.
    pub fn within(bytes: &'a [u8], room: usize) -> Self {
        Self {
            rest: bytes,
            room: Some(room),
        }
    }

    /// Takes memory for so many items; the capacity to begin with.
    fn make_room<T>(&mut self, count: usize) -> Result<usize, Malformed> {
        // Every item takes a byte at least, so a lying count cannot make room for more than came.
        let most = count.min(self.rest.len());
        let Some(room) = &mut self.room else {
            return Ok(most.min(4096));
        };
        let bytes = count.saturating_mul(size_of::<T>());
        *room = room.checked_sub(bytes).ok_or(Malformed::Room)?;
        // No more than was taken, which growing would double.
        Ok(most)
    }

    /// The next `count` bytes.
    #[inline]
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        if count > self.rest.len() {
            return Err(Malformed::Short {
                missing: count - self.rest.len(),
            });
        }
        let (head, rest) = self.rest.split_at(count);
        self.rest = rest;
        Ok(head)
    }

    /// A fixed number of bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    /// What is left.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Refuses leftovers.
    pub fn finish(self) -> Result<(), Malformed> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(Malformed::Trailing(left)),
        }
    }
}

/// A value with a wire form.
pub trait Field: Sized {
    /// Appends the value.
    fn put<S: Sink>(&self, sink: &mut S);
    /// Reads one value.
    fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed>;
    /// Appends several values.
    fn put_all<S: Sink>(items: &[Self], sink: &mut S) {
        for item in items {
            item.put(sink);
        }
    }
    /// Reads several values.
    fn take_all(count: usize, reader: &mut Reader<'_>) -> Result<Vec<Self>, Malformed> {
        let mut items = Vec::with_capacity(reader.make_room::<Self>(count)?);
        for _ in 0..count {
            items.push(Self::take(reader)?);
        }
        Ok(items)
    }
    /// A value made from random bits, for tests.
    #[cfg(test)]
    fn sample(random: &mut dyn FnMut() -> u64) -> Self;
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Field for $type {
            #[inline]
            fn put<S: Sink>(&self, sink: &mut S) {
                sink.put(&self.to_le_bytes());
            }
            #[inline]
            fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
                Ok(Self::from_le_bytes(reader.array()?))
            }
            #[cfg(test)]
            fn sample(random: &mut dyn FnMut() -> u64) -> Self {
                // Small numbers keep floats exact, so that equality means equality of bits.
                (random() % 120) as $type
            }
        }
    )*};
}

numbers!(u16, u32, u64, i32, i64, f32);

/// As the other numbers; many at once are one copy.
impl Field for u8 {
    #[inline]
    fn put<S: Sink>(&self, sink: &mut S) {
        sink.put(&[*self]);
    }
    #[inline]
    fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let [byte] = reader.array()?;
        Ok(byte)
    }
    fn put_all<S: Sink>(items: &[Self], sink: &mut S) {
        sink.put(items);
    }
    fn take_all(count: usize, reader: &mut Reader<'_>) -> Result<Vec<Self>, Malformed> {
        reader.make_room::<Self>(count)?;
        Ok(reader.take(count)?.to_vec())
    }
    #[cfg(test)]
    fn sample(random: &mut dyn FnMut() -> u64) -> Self {
        (random() % 120) as Self
    }
}

impl Field for bool {
    #[inline]
    fn put<S: Sink>(&self, sink: &mut S) {
        sink.put(&[u8::from(*self)]);
    }
    #[inline]
    fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        match u8::take(reader)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Malformed::Value {
                what: "truth value",
                value: other.into(),
            }),
        }
    }
    #[cfg(test)]
    fn sample(random: &mut dyn FnMut() -> u64) -> Self {
        random() & 1 == 1
    }
}

impl<T: Field + Copy + Default, const N: usize> Field for [T; N] {
    #[inline]
    fn put<S: Sink>(&self, sink: &mut S) {
        for item in self {
            item.put(sink);
        }
    }
    #[inline]
    fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut items = [T::default(); N];
        for item in &mut items {
            *item = T::take(reader)?;
        }
        Ok(items)
    }
    #[cfg(test)]
    fn sample(random: &mut dyn FnMut() -> u64) -> Self {
        std::array::from_fn(|_| T::sample(random))
    }
}

impl<T: Field> Field for Vec<T> {
    fn put<S: Sink>(&self, sink: &mut S) {
        (self.len() as u32).put(sink);
        T::put_all(self, sink);
    }
    fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = u32::take(reader)? as usize;
        T::take_all(count, reader)
    }
    #[cfg(test)]
    fn sample(random: &mut dyn FnMut() -> u64) -> Self {
        (0..random() % 4).map(|_| T::sample(random)).collect()
    }
}

impl<T: Field> Field for Option<T> {
    fn put<S: Sink>(&self, sink: &mut S) {
        self.is_some().put(sink);
        if let Some(value) = self {
            value.put(sink);
        }
    }
    fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        bool::take(reader)?.then(|| T::take(reader)).transpose()
    }
    #[cfg(test)]
    fn sample(random: &mut dyn FnMut() -> u64) -> Self {
        (random() & 1 == 1).then(|| T::sample(random))
    }
}

impl Field for String {
    fn put<S: Sink>(&self, sink: &mut S) {
        (self.len() as u32).put(sink);
        sink.put(self.as_bytes());
    }
    fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let len = u32::take(reader)? as usize;
        reader.make_room::<u8>(len)?;
        let bytes = reader.take(len)?;
        Ok(std::str::from_utf8(bytes)
            .map_err(|_| Malformed::Text)?
            .to_owned())
    }
    #[cfg(test)]
    fn sample(random: &mut dyn FnMut() -> u64) -> Self {
        format!("é{}", random())
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    fn put<S: Sink>(&self, sink: &mut S) {
        self.0.put(sink);
        self.1.put(sink);
    }
    fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok((A::take(reader)?, B::take(reader)?))
    }
    #[cfg(test)]
    fn sample(random: &mut dyn FnMut() -> u64) -> Self {
        (A::sample(random), B::sample(random))
    }
}

/// Declares a struct whose wire form is its fields in order.
macro_rules! record {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }
        impl $crate::codec::Field for $name {
            #[inline]
            #[allow(unused_variables, reason = "records without fields write nothing")]
            fn put<S: $crate::codec::Sink>(&self, sink: &mut S) {
                $(self.$field.put(sink);)*
            }
            #[inline]
            #[allow(unused_variables, reason = "records without fields read nothing")]
            fn take(
                reader: &mut $crate::codec::Reader<'_>,
            ) -> Result<Self, $crate::codec::Malformed> {
                Ok(Self { $($field: <$type as $crate::codec::Field>::take(reader)?,)* })
            }
            #[cfg(test)]
            #[allow(unused_variables, reason = "records without fields need no samples")]
            fn sample(random: &mut dyn FnMut() -> u64) -> Self {
                Self { $($field: <$type as $crate::codec::Field>::sample(random),)* }
            }
        }
    )*};
}
pub(crate) use record;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lying_count_is_refused_without_a_great_allocation() {
        let bytes = u32::MAX.to_le_bytes();
        assert!(matches!(
            Vec::<u64>::take(&mut Reader::new(&bytes)),
            Err(Malformed::Short { .. })
        ));
        assert!(String::take(&mut Reader::new(&bytes)).is_err());
    }

    #[test]
    fn a_bound_on_memory_counts_what_items_take_and_not_what_they_are_long() {
        let empty: Vec<Vec<u8>> = vec![Vec::new(); 100];
        let mut bytes = Vec::new();
        empty.put(&mut bytes);
        "text".to_owned().put(&mut bytes);
        let takes = 100 * size_of::<Vec<u8>>() + 4;
        let read = |room| {
            let mut reader = Reader::within(&bytes, room);
            let lists = Vec::<Vec<u8>>::take(&mut reader)?;
            Ok((lists, String::take(&mut reader)?))
        };
        let (lists, text) = read(takes).unwrap();
        assert_eq!((lists.capacity(), &*text), (100, "text"));
        assert_eq!(read(takes - 1), Err(Malformed::Room));
    }

    #[test]
    fn truth_has_two_values() {
        assert!(bool::take(&mut Reader::new(&[2])).is_err());
        assert_eq!(bool::take(&mut Reader::new(&[1])), Ok(true));
    }
}
