//! Frames of one size, each of which holds one message.
//!
//! ```text
//!   0        4       8                                        256
//!   ├ kind ──┼─ id ──┼─ the message's fields in order ─┼ zeros ─┤
//! ```
//!
//! Owns the frame and the macro that declares the messages of a conversation; which messages there are is said in
//! [`super::message`] and in `session::handshake`.

use crate::codec::{Field, Malformed, Reader, Sink};

/// Bytes in every frame.
pub const FRAME_BYTES: usize = 256;
/// Where the fields begin.
const HEADER_BYTES: usize = 8;
/// Bytes of text a message can carry.
pub const TEXT_BYTES: usize = 192;
/// How a text ends that was cut.
const CUT: &str = "…";

/// One message as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame([u8; FRAME_BYTES]);

/// A message that travels in a frame.
pub trait Packet: Sized {
    /// The frame; `id` is chosen by who asks and repeated in the answer, 0 where nobody asked.
    fn frame(&self, id: u32) -> Frame;
    /// Reads a frame.
    ///
    /// # Errors
    /// If the kind is unknown, a field makes no sense, or anything follows the fields.
    fn read(frame: &Frame) -> Result<Self, Malformed>;
}

impl Frame {
    /// Takes received bytes as a frame.
    pub fn from_bytes(bytes: [u8; FRAME_BYTES]) -> Self {
        Self(bytes)
    }

    /// Makes a frame of a kind; `put` writes the fields.
    pub(crate) fn of(kind: u32, id: u32, put: impl FnOnce(&mut FrameSink<'_>)) -> Self {
        let mut frame = Self([0; FRAME_BYTES]);
        let mut sink = FrameSink {
            room: &mut frame.0[..],
        };
        (kind, id).put(&mut sink);
        put(&mut sink);
        frame
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; FRAME_BYTES] {
        &self.0
    }

    /// The number of its message.
    pub fn kind(&self) -> u32 {
        self.word(0)
    }

    /// Chosen by who asks, repeated in the answer; 0 for what nobody asked.
    pub fn id(&self) -> u32 {
        self.word(4)
    }

    fn word(&self, at: usize) -> u32 {
        self.0[at..]
            .first_chunk()
            .map_or(0, |w| u32::from_le_bytes(*w))
    }

    /// Its message.
    ///
    /// # Errors
    /// As [`Packet::read`].
    pub fn read<P: Packet>(&self) -> Result<P, Malformed> {
        P::read(self)
    }

    /// Reads its fields with `take`; what follows them must be zero.
    pub(crate) fn fields<T>(
        &self,
        take: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>,
    ) -> Result<T, Malformed> {
        let mut reader = Reader::new(&self.0[HEADER_BYTES..]);
        let fields = take(&mut reader)?;
        let rest = reader.rest();
        match rest.iter().rposition(|byte| *byte != 0) {
            None => Ok(fields),
            Some(last) => Err(Malformed::Trailing(last + 1)),
        }
    }
}

/// Writes the fields of a frame.
pub(crate) struct FrameSink<'a> {
    room: &'a mut [u8],
}

impl Sink for FrameSink<'_> {
    fn put(&mut self, bytes: &[u8]) {
        // Every message fits (a test frames the longest of each); what would not is cut and refused by the reader.
        if let Some((head, rest)) = std::mem::take(&mut self.room).split_at_mut_checked(bytes.len())
        {
            head.copy_from_slice(bytes);
            self.room = rest;
        }
    }
}

/// A sentence in a message, cut at a character boundary if it is too long; `…` at the end says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(String);

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        if text.len() <= TEXT_BYTES {
            return Self(text.to_owned());
        }
        let whole = text.floor_char_boundary(TEXT_BYTES - CUT.len());
        Self(format!("{}{CUT}", &text[..whole]))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        match text.len() {
            0..=TEXT_BYTES => Self(text),
            _ => Self::from(text.as_str()),
        }
    }
}

impl From<Text> for String {
    fn from(text: Text) -> Self {
        text.0
    }
}

impl std::ops::Deref for Text {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Field for Text {
    fn put<S: Sink>(&self, sink: &mut S) {
        self.0.put(sink);
    }
    fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let text = String::take(reader)?;
        match text.len() {
            0..=TEXT_BYTES => Ok(Self(text)),
            value => Err(Malformed::Value {
                what: "length of a text",
                value: value as u64,
            }),
        }
    }
    #[cfg(test)]
    fn sample(random: &mut dyn FnMut() -> u64) -> Self {
        "é".repeat(random() as usize % 200).into()
    }
}

/// Declares an enum whose values travel as numbers.
macro_rules! numbered {
    ($($(#[$doc:meta])* $name:ident ($what:literal) { $($(#[$value_doc:meta])* $value:ident = $number:literal,)* })*) => {$(
        $(#[$doc])*
        #[repr(u64)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$value_doc])* $value = $number,)*
        }

        impl $crate::codec::Field for $name {
            fn put<S: $crate::codec::Sink>(&self, sink: &mut S) {
                (*self as u64).put(sink);
            }
            fn take(reader: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::codec::Malformed> {
                match u64::take(reader)? {
                    $($number => Ok(Self::$value),)*
                    value => Err($crate::codec::Malformed::Value { what: $what, value }),
                }
            }
            #[cfg(test)]
            fn sample(random: &mut dyn FnMut() -> u64) -> Self {
                let all = [$(Self::$value),*];
                all[random() as usize % all.len()]
            }
        }
    )*};
}
pub(crate) use numbered;

/// Declares the messages that one side of a conversation sends: a number, a name and fields each.
macro_rules! messages {
    ($(#[$doc:meta])* $enum:ident {
        $($(#[$message_doc:meta])* $number:literal $name:ident {
            $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
        })*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $enum {
            $($(#[$message_doc])* $name { $($(#[$field_doc])* $field: $type,)* },)*
        }

        impl $crate::host::frame::Packet for $enum {
            #[allow(unused_variables, reason = "messages without fields write nothing")]
            fn frame(&self, id: u32) -> $crate::host::frame::Frame {
                use $crate::codec::Field;
                match self {
                    $(Self::$name { $($field),* } => $crate::host::frame::Frame::of($number, id, |sink| {
                        $($field.put(sink);)*
                    }),)*
                }
            }

            #[allow(unused_variables, reason = "messages without fields read nothing")]
            fn read(frame: &$crate::host::frame::Frame) -> Result<Self, $crate::codec::Malformed> {
                use $crate::codec::Field;
                match frame.kind() {
                    $($number => frame.fields(|reader| {
                        Ok(Self::$name { $($field: <$type as Field>::take(reader)?,)* })
                    }),)*
                    other => Err($crate::codec::Malformed::Message(other)),
                }
            }
        }

        #[cfg(test)]
        impl $enum {
            #[allow(unused_variables, reason = "messages without fields need no samples")]
            pub(crate) fn samples(random: &mut dyn FnMut() -> u64) -> Vec<Self> {
                use $crate::codec::Field;
                vec![$(Self::$name { $($field: <$type as Field>::sample(random),)* },)*]
            }
        }
    };
}
pub(crate) use messages;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_at_a_character_boundary() {
        // 192 bytes hold 94 letters of two bytes and three for what says that more was meant.
        let text = Text::from("é".repeat(200));
        assert_eq!(*text, *format!("{}…", "é".repeat(94)));
        let odd = format!("a{}", "é".repeat(200));
        assert_eq!(Text::from(odd.as_str()).len(), TEXT_BYTES);
    }

    #[test]
    fn text_that_fits_is_left_alone() {
        let text = "x".repeat(TEXT_BYTES);
        assert_eq!(*Text::from(text.as_str()), *text);
        assert_eq!(*Text::from(text.clone()), *text);
    }
}
