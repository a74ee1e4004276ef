//! The one table of calls.
//!
//! A row of [`table`] says everything that both sides must know of a call: its number, fields and answer (`+ tail` where
//! bytes follow the fields), and eight facts, of which none can be left out:
//!
//! | column | says |
//! |---|---|
//! | `class` | [`Class`]: whether it is answered, and when |
//! | `late` | [`Late`]: what it does about errors of posted calls, and in which context |
//! | `order` | [`Order`]: what it has to do with calls before it that wait at the gate |
//! | `touches` | [`Touches`]: what calls behind it must not be told while it waits at the gate |
//! | `gate` | `Never`: submits nothing; `Always`; `Sized(LEAST)`: from so many bytes on. To the field `stream` |
//! | `settle` | whether a launch just before it is given to other threads first: `No` if the call runs it itself |
//! | `node` | whether it can be a node of a graph |
//! | `effect` | [`Effect`]: what both sides must remember of it |
//!
//! From a row come the struct, its encoding and decoder, and the facts as methods of [`Request`] and [`Call`]. The worker
//! makes its dispatch of [`for_each_call`](crate::for_each_call): a call without a handler does not compile.

mod facts;
mod table;
#[cfg(test)]
mod tests;

use crate::codec::{Field, FixedBuffer, record};

pub use facts::{Class, Effect, Late, Order, Owner, StreamOrder, Touches};
pub use table::*;

/// A call as a type.
pub trait Request: Field + 'static {
    /// Its number.
    const NUMBER: u16;
    /// Its name.
    const NAME: &'static str;
    /// Its class.
    const CLASS: Class;
    /// What the worker answers.
    type Answer: Field;

    /// The fields, encoded on the stack.
    #[inline]
    fn encode(&self) -> FixedBuffer {
        let mut buffer = FixedBuffer::default();
        self.put(&mut buffer);
        buffer
    }

    /// The stream whose work it adds to, if that work touches memory.
    fn stream(&self) -> Option<u64>;
    /// What both sides must remember of it.
    fn effect(&self) -> Effect;
    /// The stream it made that is not ordered in the usual way.
    fn made(&self, answer: &Self::Answer) -> Option<(u64, StreamOrder)>;
}

/// A call that is not answered.
pub trait Posted: Request<Answer = Done> {}
/// A call that is answered.
pub trait Answered: Request {}
/// A posted call that can be a node of a graph.
pub trait Node: Posted {}

/// What fuzzers and tests need of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallInfo {
    /// Its number.
    pub number: u16,
    /// Its name.
    pub name: &'static str,
    /// Its class.
    pub class: Class,
    /// Whether bytes may follow the fields.
    pub has_tail: bool,
}

record! {
    /// An answer that says no more than that the call succeeded.
    Done {}
    /// A number: a handle, an address, a count.
    Number {
        /// The number.
        value: u64,
    }
    /// A number that may be negative.
    Signed {
        /// The number.
        value: i32,
    }
    /// Yes or no.
    Truth {
        /// Which.
        value: bool,
    }
    /// Milliseconds.
    Milliseconds {
        /// How many.
        value: f32,
    }
    /// Bytes read from the device.
    Data {
        /// The bytes.
        bytes: Vec<u8>,
    }
}

impl HostRegister {
    /// Instead of a tag: the memory lies in the ivshmem file that the session lies in.
    pub const IN_IVSHMEM: u64 = u64::MAX;
}

impl facts::Bytes for Copy {
    fn bytes(&self, _: usize) -> u64 {
        let rows = self.area.width_bytes.saturating_mul(self.area.height);
        rows.saturating_mul(self.area.depth)
    }
}

impl facts::Bytes for Fill {
    fn bytes(&self, _: usize) -> u64 {
        let row = self.width.saturating_mul(self.element_bytes.into());
        row.saturating_mul(self.height)
    }
}

impl facts::Bytes for Write {
    fn bytes(&self, tail: usize) -> u64 {
        tail as u64
    }
}

impl facts::Bytes for Read {
    fn bytes(&self, _: usize) -> u64 {
        self.bytes.into()
    }
}

macro_rules! calls {
    ($dollar:tt $($(#[$doc:meta])* $number:literal $name:ident
       { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* } -> $answer:ty $(, + $tail:ident)?;
       class: $class:ident, late: $late:ident $(($owner:ident))?, order: $order:ident,
       touches: [$($touches:ident)*], gate: $gate:ident $(($least:ident))?, settle: $settle:ident,
       node: $node:ident, effect: $effect:ident;)*) => {
        record! {
            $($(#[$doc])* $name { $($(#[$field_doc])* $field: $type,)* })*
        }
        $(impl Request for $name {
            const NUMBER: u16 = $number;
            const NAME: &'static str = stringify!($name);
            const CLASS: Class = Class::$class;
            type Answer = $answer;

            #[inline]
            fn stream(&self) -> Option<u64> {
                column!(stream self $gate)
            }
            #[inline]
            fn effect(&self) -> Effect {
                column!(effect self $effect)
            }
            #[inline]
            #[allow(unused_variables, reason = "most calls make no stream")]
            fn made(&self, answer: &$answer) -> Option<(u64, StreamOrder)> {
                column!(made self answer $effect)
            }
        }
        column!(class $class $name);
        column!(node $node $name);
        column!(asks $order $answer);)*

        /// A decoded call.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Call {
            $($(#[$doc])* $name($name),)*
        }

        /// Every call.
        pub const CALLS: &[CallInfo] = &[
            $(CallInfo {
                number: $number,
                name: stringify!($name),
                class: Class::$class,
                has_tail: column!(tail $($tail)?),
            },)*
        ];

        impl Call {
            /// Decodes the body of call `number`; what follows the fields is the tail.
            ///
            /// # Errors
            /// If the number is unknown, a field makes no sense, or bytes are left over.
            pub fn decode(number: u16, body: &[u8]) -> Result<(Self, &[u8]), Malformed> {
                let mut reader = Reader::new(body);
                let (call, has_tail) = match number {
                    $($number => (
                        Self::$name($name::take(&mut reader)?),
                        column!(tail $($tail)?),
                    ),)*
                    other => return Err(Malformed::Call(other)),
                };
                if !has_tail {
                    reader.clone().finish()?;
                }
                Ok((call, reader.rest()))
            }

            /// Its number and encoded fields.
            pub fn encode(&self) -> (u16, FixedBuffer) {
                match self {
                    $(Self::$name(call) => ($number, call.encode()),)*
                }
            }

            /// Its name.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($name),)*
                }
            }

            /// Its class.
            pub fn class(&self) -> Class {
                match self {
                    $(Self::$name(_) => Class::$class,)*
                }
            }

            /// What it does about errors of posted calls.
            #[allow(unused_variables, reason = "most rows need no field")]
            pub fn late(&self) -> Late {
                match self {
                    $(Self::$name(call) => column!(late $class call $late $($owner)?),)*
                }
            }

            /// What it has to do with calls before it that wait at the gate.
            #[allow(unused_variables, reason = "most rows need no field")]
            pub fn order(&self) -> Order {
                match self {
                    $(Self::$name(call) => column!(order call $order),)*
                }
            }

            /// What calls behind it must not be told while it waits at the gate.
            #[allow(unused_variables, reason = "most rows need no field")]
            pub fn touches(&self) -> Touches {
                match self {
                    $(Self::$name(call) => Touches {
                        $($touches: column!(touches call $touches),)*
                        ..Touches::default()
                    },)*
                }
            }

            /// The stream to which it submits what must pass the gate, with a tail of so many bytes.
            #[allow(unused_variables, reason = "most rows need no field")]
            pub fn gate(&self, tail: usize) -> Option<u64> {
                match self {
                    $(Self::$name(call) => column!(gate call tail $gate $($least)?),)*
                }
            }

            /// Whether a launch just before it is given to other threads first.
            pub fn settles(&self) -> bool {
                match self {
                    $(Self::$name(_) => column!(settle $settle),)*
                }
            }

            /// What both sides must remember of it.
            pub fn effect(&self) -> Effect {
                match self {
                    $(Self::$name(call) => call.effect(),)*
                }
            }

            #[cfg(test)]
            pub(super) fn samples(random: &mut dyn FnMut() -> u64) -> Vec<Self> {
                vec![$(Self::$name($name::sample(random)),)*]
            }
        }

        /// Calls `$then! { (Name, node) … }` with every call: `node` is `Yes` or `No`, from the row.
        #[macro_export]
        macro_rules! for_each_call {
            ($dollar then:ident) => {
                $dollar then! { $(($name, $node))* }
            };
        }
    };
}
use calls;
