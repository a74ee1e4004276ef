//! The one table of calls.
//!
//! Each row: number, class, name, fields, the answer's type, and `+ tail` where bytes follow the
//! fields. From it come the structs, their encoding, the decoder, the class of each call and the
//! tests that every call survives the wire.

use super::codec::{Field, FixedBuffer, Malformed, Reader, record};
use super::types::*;

/// How a call is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// No answer; an error is kept for the next synchronous call of its context.
    Posted,
    /// Answered at once.
    Quick,
    /// Answered when something else has happened; later calls do not wait for it.
    Waiting,
}

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
}

/// A row of the table.
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

macro_rules! tail {
    () => {
        false
    };
    (tail) => {
        true
    };
}

macro_rules! calls {
    ($($number:literal $class:ident $name:ident
       { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* } -> $answer:ty $(, + $tail:ident)?;
       $doc:literal)*) => {
        record! {
            $(#[doc = $doc] $name { $($(#[$field_doc])* $field: $type,)* })*
        }
        $(impl Request for $name {
            const NUMBER: u16 = $number;
            const NAME: &'static str = stringify!($name);
            const CLASS: Class = Class::$class;
            type Answer = $answer;
        })*

        /// A decoded call.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Call {
            $(#[doc = $doc] $name($name),)*
        }

        /// Every call.
        pub const CALLS: &[CallInfo] = &[
            $(CallInfo {
                number: $number,
                name: stringify!($name),
                class: Class::$class,
                has_tail: tail!($($tail)?),
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
                        tail!($($tail)?),
                    ),)*
                    other => return Err(Malformed::Call(other)),
                };
                if !has_tail {
                    reader.clone().finish()?;
                }
                Ok((call, reader.rest()))
            }

            /// Its class.
            pub fn class(&self) -> Class {
                match self {
                    $(Self::$name(_) => Class::$class,)*
                }
            }

            /// Its name.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($name),)*
                }
            }

            /// Its number and encoded fields.
            pub fn encode(&self) -> (u16, FixedBuffer) {
                match self {
                    $(Self::$name(call) => ($number, call.encode()),)*
                }
            }

            #[cfg(test)]
            fn samples(random: &mut dyn FnMut() -> u64) -> Vec<Self> {
                vec![$(Self::$name($name::sample(random)),)*]
            }
        }
    };
}

calls! {
    1 Quick Attach { /** Process id, for logs. */ pid: u32, } -> DeviceSnapshot, + tail;
    "Begins a session; the tail is the program's name."
    2 Quick MemoryInfo {} -> MemoryState; "What `cuMemGetInfo` shows."
    3 Quick Counters {} -> VgpuCounters; "Counters of the virtual GPU."
    4 Quick TakeLate { /** Context, 0 for any. */ context: u64, } -> LateError;
    "Takes the oldest late error; one that killed its context stays."
    5 Quick Ping {} -> Done; "Answers; all calls before it have been taken in."

    6 Quick TakeOutput {} -> KernelOutput;
    "Takes what kernels have printed."

    10 Quick ContextCreate { /** `CUctx_flags`, kept for the program. */ flags: u32, } -> NewContext;
    "Makes a context."
    11 Waiting ContextDestroy { /** Context. */ context: u64, } -> Done;
    "Ends a context and all it holds."
    12 Waiting ContextSynchronize { /** Context. */ context: u64, } -> Done;
    "Waits for all work of a context."
    13 Quick ContextLimit { /** Context. */ context: u64, /** `CUlimit`. */ limit: u32, } -> Number;
    "Reads a `CUlimit`."
    14 Quick ContextSetLimit {
        /** Context. */ context: u64, /** `CUlimit`. */ limit: u32, /** Value. */ value: u64,
    } -> Done; "Sets a `CUlimit`."
    15 Quick Cancel { /** Context. */ context: u64, /** Stream, 0 for all. */ stream: u64, } -> Number;
    "Cancels running and queued kernels; answers how many."
    16 Quick ContextGpuTime { /** Context. */ context: u64, } -> Number;
    "Nanoseconds of GPU time of a context."

    20 Quick StreamCreate {
        /** Context. */ context: u64,
        /** Not ordered against the default stream. */ non_blocking: bool,
        /** Priority, lower first. */ priority: i32,
    } -> Number; "Makes a stream."
    21 Posted StreamDestroy { /** Stream. */ stream: u64, } -> Done;
    "Destroys a stream once its work is done."
    22 Waiting StreamSynchronize { /** Stream. */ stream: u64, } -> Done; "Waits for a stream."
    23 Quick StreamQuery { /** Stream. */ stream: u64, } -> Truth; "Whether a stream's work is done."
    24 Posted StreamWaitEvent { /** Stream. */ stream: u64, /** Event. */ event: u64, } -> Done;
    "Makes later work of a stream wait for an event."
    25 Posted StreamCallback { /** Stream. */ stream: u64, /** The program's number for it. */ callback: u64, } -> Done;
    "Asks for a notice in stream order; the stream waits for `CallbackDone`."
    26 Posted CallbackDone { /** Number from the notice. */ callback: u64, } -> Done;
    "The host function has returned."
    27 Quick StreamClear { /** Stream. */ stream: u64, } -> Truth;
    "Whether new work of a stream would run at once: nothing of it, or of what is ordered before it, is left."

    30 Quick EventCreate { /** Context. */ context: u64, /** No timestamps. */ disable_timing: bool, } -> Number;
    "Makes an event."
    31 Posted EventDestroy { /** Event. */ event: u64, } -> Done; "Destroys an event."
    32 Posted EventRecord { /** Event. */ event: u64, /** Stream. */ stream: u64, } -> Done;
    "Records a stream's progress."
    33 Quick EventQuery { /** Event. */ event: u64, } -> Truth; "Whether an event was reached."
    34 Waiting EventSynchronize { /** Event. */ event: u64, } -> Done; "Waits for an event."
    35 Quick EventElapsed { /** Earlier. */ start: u64, /** Later. */ end: u64, } -> Milliseconds;
    "Time between two events."

    40 Posted BlobPart { /** The program's number for it. */ blob: u64, } -> Done, + tail;
    "Appends the tail to a blob."
    41 Posted BlobChunk {
        /** Blob. */ blob: u64, /** Staging chunk. */ chunk: u32, /** Bytes in it. */ bytes: u32,
    } -> Done; "Appends a staging chunk to a blob and gives the chunk back."
    42 Posted BlobDrop { /** Blob. */ blob: u64, } -> Done; "Forgets a blob."
    43 Waiting ModuleLoad {
        /** Context. */ context: u64, /** Image; consumed. */ blob: u64, /** Check exact bounds. */ memcheck: bool,
    } -> LoadedModule; "Loads PTX, a fatbin or a cubin."
    44 Quick ModuleUnload { /** Module. */ module: u64, } -> Done; "Unloads a module."
    45 Quick Occupancy {
        /** Module. */ module: u64, /** Kernel's index. */ kernel: u32,
        /** Threads per block. */ block_threads: u32, /** Dynamic shared bytes. */ dynamic_shared: u64,
    } -> Number; "Blocks that fit on one multiprocessor."

    46 Quick ModuleBind {
        /** Module. */ module: u64, /** Variable's index. */ global: u32, /** Host memory's device address. */ address: u64,
    } -> Done; "Moves a variable to host memory that the program shares."

    50 Posted Launch {
        /** Stream. */ stream: u64, /** Module. */ module: u64, /** Kernel's index. */ kernel: u32,
        /** Blocks. */ grid: [u32; 3], /** Threads per block. */ block: [u32; 3],
        /** Dynamic shared bytes. */ dynamic_shared: u32, /** Grid-wide barriers are used. */ cooperative: bool,
    } -> Done, + tail; "Launches a kernel; the tail is its packed parameter block."
    51 Waiting GraphInstantiate { /** Context. */ context: u64, /** `Vec<GraphNode>`; consumed. */ blob: u64, } -> Number;
    "Makes a graph ready to be launched."
    52 Posted GraphLaunch { /** Graph. */ graph: u64, /** Stream. */ stream: u64, } -> Done;
    "Replays a graph."
    53 Quick GraphUpdate { /** Graph. */ graph: u64, /** `Vec<GraphNode>`; consumed. */ blob: u64, } -> Done;
    "Replaces a graph's nodes."
    54 Posted GraphDestroy { /** Graph. */ graph: u64, } -> Done; "Forgets a graph."

    60 Waiting MemoryAlloc { /** Context. */ context: u64, /** Bytes. */ bytes: u64, } -> Number;
    "Allocates device memory."
    61 Waiting MemoryFree { /** Context. */ context: u64, /** Address. */ address: u64, } -> Done;
    "Waits for the context, then frees."
    62 Quick MemoryRange { /** Context. */ context: u64, /** Address. */ address: u64, } -> AddressRange;
    "The allocation that holds an address."
    63 Waiting MemoryAllocAsync { /** Stream. */ stream: u64, /** Bytes. */ bytes: u64, } -> Number;
    "Allocates in stream order."
    64 Posted MemoryFreeAsync { /** Stream. */ stream: u64, /** Address. */ address: u64, } -> Done;
    "Frees in stream order."
    65 Posted Copy { /** Stream. */ stream: u64, /** What. */ area: CopyBox, } -> Done;
    "Copies a box of bytes; a staging chunk it reads is given back, one it writes is marked full."
    66 Posted Fill {
        /** Stream. */ stream: u64, /** First byte. */ address: u64, /** Bytes between rows. */ pitch: u64,
        /** Pattern. */ value: u32, /** 1, 2 or 4. */ element_bytes: u32,
        /** Elements per row. */ width: u64, /** Rows. */ height: u64,
    } -> Done; "Fills rows with a pattern."
    67 Posted Write { /** Stream. */ stream: u64, /** Where to. */ address: u64, } -> Done, + tail;
    "Writes the tail to device memory."
    68 Waiting Read { /** Stream. */ stream: u64, /** Where from. */ address: u64, /** At most 1 MiB. */ bytes: u32, } -> Data;
    "Reads device memory."

    70 Waiting HostRegister {
        /** Context. */ context: u64, /** Tag of the descriptor on the socket. */ tag: u64,
        /** Bytes. */ bytes: u64, /** Offset in the file. */ offset: u64,
        /** Charge it to the memory limit (managed memory). */ charge: bool,
    } -> Number; "Maps host memory of the program into the device."
    71 Waiting HostUnregister { /** Context. */ context: u64, /** Device address. */ address: u64, } -> Done;
    "Waits for the context, then ends `HostRegister`."

    72 Waiting MemoryWindow { /** First byte. */ address: u64, /** Bytes that will be touched. */ bytes: u64, } -> Window;
    "Lets the program touch the allocation around an address in place."

    80 Quick AddressReserve { /** Bytes. */ bytes: u64, /** Alignment. */ align: u64, } -> Number;
    "Reserves device addresses."
    81 Quick AddressFree { /** First. */ address: u64, /** Bytes. */ bytes: u64, } -> Done;
    "Gives reserved addresses back."
    82 Waiting FrameCreate { /** Bytes. */ bytes: u64, } -> Number; "Physical memory without an address."
    83 Quick FrameRelease { /** Frame. */ frame: u64, } -> Done; "Drops a frame."
    84 Quick FrameMap { /** Where. */ address: u64, /** Frame. */ frame: u64, } -> Done; "Maps a frame."
    85 Waiting FrameUnmap { /** First. */ address: u64, /** Bytes. */ bytes: u64, } -> Done;
    "Unmaps whole mappings."
    86 Quick FrameAccess { /** First. */ address: u64, /** Bytes. */ bytes: u64, /** 0 none, 1 read, 3 read and write. */ access: u32, } -> Done;
    "Sets access."

    90 Waiting ArrayCreate { /** Context. */ context: u64, /** Shape. */ shape: ArrayShape, } -> Number;
    "Makes an array."
    91 Waiting ArrayDestroy { /** Array. */ array: u64, } -> Done; "Frees an array."
    92 Quick TextureCreate { /** Context. */ context: u64, /** What and how. */ shape: TextureShape, } -> Number;
    "Makes a texture object."
    93 Quick SurfaceCreate { /** Context. */ context: u64, /** Array. */ array: u64, } -> Number;
    "Makes a surface object."
    94 Quick TextureDestroy { /** Context. */ context: u64, /** Texture or surface. */ handle: u64, } -> Done;
    "Destroys a texture or surface object."

    100 Quick Continue { /** Where the answer so far ends. */ offset: u64, } -> Done;
    "Asks for the rest of an answer that did not fit its slot."
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(seed: u64) -> impl FnMut() -> u64 {
        let mut state = seed;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        }
    }

    #[test]
    fn every_call_survives_the_wire() {
        let mut random = random(0x9E37_79B9_7F4A_7C15);
        for _ in 0..200 {
            for call in Call::samples(&mut random) {
                let (number, body) = call.encode();
                let (decoded, tail) = Call::decode(number, body.as_slice()).unwrap();
                assert_eq!(decoded, call);
                assert!(tail.is_empty());
            }
        }
    }

    #[test]
    fn every_call_refuses_each_shorter_body_and_leftovers() {
        let mut random = random(7);
        for call in Call::samples(&mut random) {
            let (number, body) = call.encode();
            let body = body.as_slice();
            for len in 0..body.len() {
                assert!(Call::decode(number, &body[..len]).is_err(), "{call:?}");
            }
            let mut longer = body.to_vec();
            longer.extend([1, 2, 3]);
            let has_tail = CALLS.iter().find(|c| c.number == number).unwrap().has_tail;
            match Call::decode(number, &longer) {
                Ok((_, tail)) => assert!(has_tail && tail == [1, 2, 3]),
                Err(error) => assert!(!has_tail && error == Malformed::Trailing(3)),
            }
        }
    }

    #[test]
    fn numbers_are_unique_and_posted_calls_answer_nothing() {
        let mut numbers: Vec<_> = CALLS.iter().map(|call| call.number).collect();
        numbers.dedup();
        assert_eq!(numbers.len(), CALLS.len());
        assert!(numbers.is_sorted());
        assert_eq!(Call::decode(9999, &[]), Err(Malformed::Call(9999)));
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut random = random(99);
        for _ in 0..50_000 {
            let len = (random() % 160) as usize;
            let body: Vec<u8> = (0..len).map(|_| random() as u8).collect();
            let _ = Call::decode((random() % 110) as u16, &body);
        }
    }

    #[test]
    fn answers_survive_the_wire() {
        fn check<T: Field + PartialEq + std::fmt::Debug>(random: &mut dyn FnMut() -> u64) {
            let value = T::sample(random);
            let mut bytes = Vec::new();
            value.put(&mut bytes);
            let mut reader = Reader::new(&bytes);
            assert_eq!(T::take(&mut reader), Ok(value));
            assert_eq!(reader.finish(), Ok(()));
        }
        let mut random = random(3);
        for _ in 0..100 {
            check::<DeviceSnapshot>(&mut random);
            check::<LoadedModule>(&mut random);
            check::<MemoryState>(&mut random);
            check::<VgpuCounters>(&mut random);
            check::<LateError>(&mut random);
            check::<Vec<GraphNode>>(&mut random);
            check::<Data>(&mut random);
        }
    }
}
