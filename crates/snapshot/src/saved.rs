//! What is saved of a session.

use mica_wire::session::{Field, Malformed, Reader, Sink};

/// Declares structs whose form in the file is their fields in order.
macro_rules! saved {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }
        impl Field for $name {
            fn put<S: Sink>(&self, sink: &mut S) {
                $(self.$field.put(sink);)*
            }
            fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
                Ok(Self { $($field: <$type as Field>::take(reader)?,)* })
            }
        }
    )*};
}

saved! {
    /// The handles of one kind, so that none that is dead comes back to life.
    SavedTable {
        /// What all of its handles have in common.
        salt: u64,
        /// The generation of each slot.
        generations: Vec<u32>,
        /// Slots that are free, the next one last.
        free: Vec<u32>,
    }

    /// A context.
    SavedContext {
        /// Its handle.
        handle: u64,
        /// Handle of its default stream.
        default_stream: u64,
        /// Limits by number.
        limits: Vec<(u32, u64)>,
    }

    /// A stream that is no default stream.
    SavedStream {
        /// Its handle.
        handle: u64,
        /// Its context's.
        context: u64,
        /// Not ordered against the default stream.
        non_blocking: bool,
        /// Its priority.
        priority: i32,
        /// Its place among the streams, events and modules in the order in which they were made.
        made: u64,
    }

    /// An event.
    SavedEvent {
        /// Its handle.
        handle: u64,
        /// Its context's.
        context: u64,
        /// It keeps no time.
        disable_timing: bool,
        /// How long ago it was reached, in nanoseconds, if it was ever recorded.
        age_ns: Option<u64>,
        /// Its place among them too.
        made: u64,
    }

    /// Memory from an address on.
    Span {
        /// First address.
        address: u64,
        /// Bytes.
        bytes: u64,
    }

    /// A module.
    SavedModule {
        /// Its handle.
        handle: u64,
        /// Its context's.
        context: u64,
        /// What it was loaded from.
        image: Vec<u8>,
        /// Its accesses are checked.
        memcheck: bool,
        /// Its variables, in the device's order.
        variables: Vec<Span>,
        /// Attributes that the program has set: kernel, attribute and value.
        attributes: Vec<((u32, u32), i32)>,
        /// Its place among streams, events and modules.
        made: u64,
    }

    /// An allocation.
    SavedAllocation {
        /// Its context's handle.
        context: u64,
        /// Its first address.
        address: u64,
        /// Bytes that the program asked for.
        bytes: u64,
    }

    /// Host memory that the device uses too. The bytes are the program's own: it brings the file again.
    SavedHost {
        /// Its context's handle.
        context: u64,
        /// Its first address on the device.
        address: u64,
        /// Bytes.
        bytes: u64,
        /// Where it begins in its file.
        offset: u64,
        /// It counts against the memory limit.
        charged: bool,
    }

    /// An error that the program has not been told yet.
    SavedLate {
        /// Its context's handle; 0 for none.
        context: u64,
        /// The error by number.
        code: u32,
        /// A sentence.
        message: String,
    }

    /// What the shared memory between program and worker does not say itself.
    SavedPort {
        /// Bytes ever taken from the ring: the program goes on with the call behind them.
        position: u64,
        /// Answers whose rest the program will ask for, by reply slot.
        unfinished: Vec<(u16, Vec<u8>)>,
        /// What kernels have printed and the program has not taken.
        output: Vec<(u8, Vec<u8>)>,
        /// Bytes that were sent ahead of calls, by number.
        blobs: Vec<(u64, Vec<u8>)>,
    }

    /// A session at rest: all that its program can name.
    SavedSession {
        /// Handles of contexts, streams, events and modules.
        tables: Vec<SavedTable>,
        /// Contexts.
        contexts: Vec<SavedContext>,
        /// Streams.
        streams: Vec<SavedStream>,
        /// Events.
        events: Vec<SavedEvent>,
        /// Modules, in the order of their numbers on the device.
        modules: Vec<SavedModule>,
        /// Allocations.
        allocations: Vec<SavedAllocation>,
        /// Host memory.
        host: Vec<SavedHost>,
        /// Errors that wait.
        late: Vec<SavedLate>,
    }
}

impl SavedSession {
    /// All memory with the contexts that it belongs to: allocations, then variables of modules.
    pub fn memory(&self) -> impl Iterator<Item = (u64, &u64, &u64)> {
        let allocations = self.allocations.iter();
        let allocations = allocations.map(|piece| (piece.context, &piece.address, &piece.bytes));
        let variables = self.modules.iter().flat_map(|module| {
            let all = module.variables.iter();
            all.map(|variable| (module.context, &variable.address, &variable.bytes))
        });
        allocations.chain(variables)
    }
}
