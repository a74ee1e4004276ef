//! What a client and the daemon say to each other.
//!
//! A row a message: its number, its name, its fields in the order in which they travel ([`super::frame`]). Both sides match
//! on the enum of what they receive, so a message that nobody handles does not compile.

use super::frame::{Frame, Text, messages, numbered};
use crate::codec::record;

/// Protocol version; a mismatch is refused with both numbers.
pub const PROTOCOL_VERSION: u64 = 7;

/// What a file that workers hand each other stands for.
pub mod file_kinds {
    /// Memory of a device.
    pub const MEMORY: u64 = 1;
    /// A page of events.
    pub const EVENTS: u64 = 2;
    /// Memory of a region that may be read and written.
    pub const REGION: u64 = 3;
    /// Memory of a region that may be read.
    pub const READ_ONLY_REGION: u64 = 4;
}

numbered! {
    /// Who says hello.
    Role("role") {
        /// A program with the driver in its own process.
        Direct = 1,
        /// A worker that owns the device for one virtual GPU.
        Worker = 2,
        /// A program that wants a session with its virtual GPU's worker.
        Program = 3,
        /// A tool that only looks.
        Monitor = 4,
    }

    /// Why the daemon refused.
    Refusal("reason to refuse") {
        /// Protocol versions differ.
        Version = 1,
        /// No virtual GPU has this token.
        Token = 2,
        /// The peer may not use this virtual GPU.
        Permission = 3,
        /// A limit cannot be enforced here.
        Enforcement = 4,
        /// The virtual GPU is lost or being removed.
        State = 5,
        /// The message made no sense.
        Protocol = 6,
        /// Too many connections.
        Busy = 7,
        /// The virtual GPU is in a snapshot: ask again once that is restored.
        Parked = 8,
    }

    /// How much a note matters.
    Severity("severity") {
        /// Worth knowing.
        Info = 0,
        /// Something is not as it should be.
        Warning = 1,
        /// Something failed.
        Error = 2,
    }

    /// What a note is about.
    Topic("topic of a note") {
        /// Anything.
        General = 0,
        /// An entry point that Mica does not know: the text begins with its name.
        UnknownSymbol = 1,
        /// A kernel of the program faulted.
        KernelFault = 2,
        /// A module of the program was refused.
        ModuleRefused = 3,
        /// A worker cannot serve.
        WorkerFailed = 4,
        /// A worker's filter refused a request of the driver: the text begins with its number.
        RequestRefused = 5,
        /// A call or a launch of the program was refused.
        CallRefused = 6,
    }

    /// Where the memory of a worker is.
    MemoryPlace("place of memory") {
        /// On the device.
        Resident = 0,
        /// On its way out.
        Leaving = 1,
        /// In host memory.
        Away = 2,
        /// On its way in.
        Returning = 3,
    }

    /// What a piece of device memory is.
    PieceKind("kind of memory") {
        /// An allocation with memory of its own.
        Allocation = 0,
        /// An allocation in a pool, beside others.
        Pooled = 1,
        /// A mapped frame.
        Mapping = 2,
        /// A variable of a module.
        Variable = 3,
    }
}

record! {
    /// Where the memory of a worker is.
    Residency {
        /// Number of the last order that the worker has begun to carry out.
        order: u64,
        /// On the device or not.
        place: MemoryPlace,
        /// Bytes in host memory.
        out_bytes: u64,
        /// Bytes that stay there until more is allowed.
        floor_bytes: u64,
        /// Bytes on the device that cannot leave.
        pinned_bytes: u64,
        /// Bytes moved so far, in both directions together.
        moved_bytes: u64,
        /// A call of the program waits for memory that is away.
        wanted: bool,
    }
}

record! {
    /// A piece of a worker's device memory.
    Piece {
        /// Address as the program sees it.
        address: u64,
        /// What it is.
        kind: PieceKind,
        /// Bytes that the program asked for.
        asked_bytes: u64,
        /// Bytes of the device that it takes alone.
        held_bytes: u64,
        /// It is in host memory.
        away: bool,
        /// Why it cannot leave the device; empty where it can.
        pinned: Text,
    }

    /// Sums over a worker's device memory.
    MemorySums {
        /// Pieces.
        pieces: u64,
        /// Bytes that the program asked for.
        asked_bytes: u64,
        /// Bytes in host memory.
        away_bytes: u64,
        /// Bytes that cannot leave the device.
        pinned_bytes: u64,
        /// Host memory that stands ready for memory that leaves.
        store_bytes: u64,
        /// Bytes of the device that pools hold.
        pool_held_bytes: u64,
        /// Bytes of them that the program asked for.
        pool_asked_bytes: u64,
        /// Bytes of them that are given out.
        pool_given_bytes: u64,
        /// Largest piece that a pool can give out without more memory.
        pool_largest_free_bytes: u64,
        /// Pieces that pools have given out.
        pool_pieces: u64,
    }
}

impl MemorySums {
    /// Of no memory.
    pub const NONE: Self = Self {
        pieces: 0,
        asked_bytes: 0,
        away_bytes: 0,
        pinned_bytes: 0,
        store_bytes: 0,
        pool_held_bytes: 0,
        pool_asked_bytes: 0,
        pool_given_bytes: 0,
        pool_largest_free_bytes: 0,
        pool_pieces: 0,
    };
}

record! {
    /// One line of a worker's profile: all that happened under one name since the profile began.
    ProfileRow {
        /// Lines of the same report that are still to come.
        rest: u64,
        /// What it was: the number of an activity.
        activity: u64,
        /// How often.
        calls: u64,
        /// Nanoseconds of all together.
        total_ns: u64,
        /// Nanoseconds of the longest.
        most_ns: u64,
        /// Bytes moved.
        bytes: u64,
        /// The name.
        name: Text,
    }
}

/// Most pieces of a map: the largest ones.
pub const MAP_PIECES: usize = 512;

record! {
    /// Who a client says it is.
    Introduction {
        /// What it does.
        role: Role,
        /// The version it speaks; its place is the same in every version.
        version: u64,
        /// Bytes that it says it was granted, when it resumes after a restart of the daemon.
        claimed_bytes: u64,
        /// The number that the earlier daemon gave it, when it resumes. From a program whose session is in a snapshot the number of
        /// that session, which goes on in another worker.
        client_id: u64,
        /// Capability to join a virtual GPU.
        token: [u8; 16],
    }
}

messages! {
    /// What a client says to the daemon.
    ClientMessage {
        /// I am here. With the page's descriptor attached when resuming.
        1 Hello {
            /// Who I am.
            introduction: Introduction,
        }
        /// I need more credit; answered by [`DaemonMessage::Credit`] or [`DaemonMessage::NoCredit`].
        2 NeedCredit {
            /// At least so many bytes more
            bytes: u64,
            /// than these, which I have.
            have_bytes: u64,
            /// What does not fit now is refused without waiting, and nobody is told: it will be asked again or is not
            /// needed.
            now: bool,
        }
        /// What are the limit and use of my virtual GPU; answered by [`DaemonMessage::Memory`].
        3 AskMemory {}
        /// A sentence for the event log.
        4 Note {
            /// How much it matters.
            severity: Severity,
            /// What it is about.
            topic: Topic,
            /// The sentence.
            text: Text,
        }
        /// Describe the virtual GPU; answered by [`DaemonMessage::Stats`] in pieces of JSON.
        5 AskStats {}
        /// Worker: how it is confined.
        6 Confined {
            /// Layers that are in force, one bit each.
            applied: u64,
            /// The bit of a layer that is not, or 0.
            missing: u64,
            /// Why that layer is not.
            why: Text,
        }
        /// Worker: I need more of the virtual GPU's host memory; answered at once by [`DaemonMessage::Credit`] or
        /// [`DaemonMessage::NoCredit`].
        7 NeedHostBytes {
            /// At least so many bytes more.
            bytes: u64,
        }
        /// Worker: what was ended on a [`DaemonMessage::Cancel`].
        8 Cancelled {
            /// The number of the request.
            request: u64,
            /// Kernels, running and queued.
            kernels: u64,
            /// Copies and fills.
            copies: u64,
        }
        /// Worker: keep the attached file for other workers of the virtual GPU; answered by
        /// [`DaemonMessage::FileShared`] or [`DaemonMessage::NoFile`].
        9 ShareFile {
            /// What it is kept under; nobody can guess it.
            name: [u8; 16],
            /// Bytes of what it stands for.
            bytes: u64,
            /// What it stands for: one of [`file_kinds`].
            what: u64,
        }
        /// Worker: give me a file that another worker shares; answered by [`DaemonMessage::File`] or
        /// [`DaemonMessage::NoFile`].
        10 OpenFile {
            /// What it is kept under.
            name: [u8; 16],
        }
        /// Worker: keep my file no more.
        11 DropFile {
            /// What it is kept under.
            name: [u8; 16],
        }
        /// Worker: where my memory is; told at every step of a move.
        12 Moved {
            /// Where.
            residency: Residency,
        }
        /// Worker: one piece of the answer to [`DaemonMessage::AskMap`].
        13 MapPiece {
            /// The number of the request.
            request: u64,
            /// The piece.
            piece: Piece,
        }
        /// Worker: the end of the answer to [`DaemonMessage::AskMap`].
        14 MapEnd {
            /// The number of the request.
            request: u64,
            /// Sums over all pieces.
            sums: MemorySums,
        }
        /// Worker: a line of its profile. A report is told line by line and replaces the one before.
        15 Profiled {
            /// The line.
            row: ProfileRow,
        }
        /// Worker: the answer to [`DaemonMessage::Save`]. My program waits until [`DaemonMessage::EndSave`].
        37 Saved {
            /// The number of the request.
            request: u64,
            /// By what its program and the file know each other.
            session: u64,
            /// Why nothing was saved; empty if all was.
            why: Text,
        }
        /// Worker: the answer to [`DaemonMessage::Restore`].
        38 Restored {
            /// The number of the request.
            request: u64,
            /// Why nothing was restored; empty if all was.
            why: Text,
        }
        /// Tool: keep the attached file for the request to the control API that names it, as long as I am here.
        39 LendFile {
            /// What it is kept under; nobody can guess it.
            name: [u8; 16],
        }
    }
}

messages! {
    /// What the daemon says to a client.
    DaemonMessage {
        /// Accepted. Descriptors: page, doorbell; for [`Role::Program`] the session socket to the worker instead.
        16 Welcome {
            /// Memory limit of the virtual GPU.
            limit_bytes: u64,
            /// Memory of the physical device.
            device_total_bytes: u64,
            /// This client's number; 0 for a program.
            client_id: u64,
            /// Index of the physical GPU.
            gpu_index: u64,
            /// Name of the virtual GPU.
            vgpu: Text,
        }
        /// Credit was granted.
        17 Credit {
            /// Bytes, already added to the page.
            bytes: u64,
        }
        /// The answer to [`ClientMessage::AskMemory`].
        18 Memory {
            /// Limit of the virtual GPU.
            limit_bytes: u64,
            /// Used by the virtual GPU.
            used_bytes: u64,
            /// Free on the device, where that is known.
            device_free_bytes: Option<u64>,
        }
        /// Refused; the connection is closed.
        19 Refused {
            /// The kind of reason.
            reason: Refusal,
            /// The reason in a sentence.
            text: Text,
        }
        /// To a worker: serve a program on the first attached descriptor; the second, where there is one, is the
        /// program's pidfd.
        20 Session {
            /// Number of the session.
            session: u64,
            /// The program's process.
            pid: u32,
            /// The program's user.
            uid: u32,
        }
        /// A piece of JSON.
        21 Stats {
            /// The piece; a character may begin in one and end in the next.
            piece: Vec<u8>,
            /// Bytes still to come.
            rest_bytes: u64,
        }
        /// To a worker: end, freeing everything.
        22 Shutdown {}
        /// To a worker: cancel running and queued kernels; answered by [`ClientMessage::Cancelled`].
        23 Cancel {
            /// A number that the answer repeats.
            request: u64,
        }
        /// Credit was not granted.
        24 NoCredit {
            /// Why.
            why: Text,
        }
        /// The file is kept.
        25 FileShared {}
        /// The attached file is another worker's.
        26 File {
            /// Bytes of what it stands for, by that worker's word.
            bytes: u64,
            /// What it stands for, one of [`file_kinds`]: a region by the daemon's word, all else by that worker's.
            what: u64,
        }
        /// The file is not kept, or there is none.
        27 NoFile {
            /// Why.
            why: Text,
        }
        /// To a worker: all memory leaves the device; answered by [`ClientMessage::Moved`], step by step.
        28 Leave {
            /// The number of this order.
            order: u64,
        }
        /// To a worker: memory returns until no more than `floor_bytes` are away; answered likewise.
        29 Return {
            /// The number of this order.
            order: u64,
            /// Bytes that stay away until more is allowed.
            floor_bytes: u64,
        }
        /// To a worker: where is your memory; answered by [`ClientMessage::MapPiece`]s and a [`ClientMessage::MapEnd`].
        30 AskMap {
            /// A number that the answers repeat.
            request: u64,
        }
        /// To a worker: tell what runs for how long, by [`ClientMessage::Profiled`], from now on.
        31 Profile {
            /// 0: no more; 1: sums; 2: sums, and every single launch and copy to the program's library.
            level: u64,
        }
        /// Nobody has made the memory of this region yet: make it, and share it under the same name.
        33 MakeFile {
            /// Bytes of the region.
            bytes: u64,
        }
        /// To a worker: save your session to the attached file, once its work has ended.
        34 Save {
            /// A number that the answer repeats.
            request: u64,
        }
        /// To a worker that has saved its session.
        35 EndSave {
            /// Whether another worker goes on with the session: end. Else go on.
            park: bool,
        }
        /// To a worker that has no program yet: restore a session from the first attached descriptor, for the program whose end
        /// the second one tells.
        36 Restore {
            /// A number that the answer repeats.
            request: u64,
            /// The session that the program waits for, as [`ClientMessage::Saved`] had it.
            session: u64,
        }
        /// To a worker: give back memory that you keep for later; then answer as [`DaemonMessage::AskMap`].
        32 Compact {
            /// A number that the answers repeat.
            request: u64,
        }
    }
}

impl ClientMessage {
    /// The hello of a process that was not known before.
    pub fn hello(role: Role, token: [u8; 16]) -> Self {
        Self::hello_for(role, token, 0)
    }

    /// The hello of a program that waits until its session of this number goes on after a snapshot.
    pub fn hello_for_session(token: [u8; 16], session: u64) -> Self {
        Self::hello_for(Role::Program, token, session)
    }

    fn hello_for(role: Role, token: [u8; 16], client_id: u64) -> Self {
        let introduction = Introduction {
            role,
            version: PROTOCOL_VERSION,
            claimed_bytes: 0,
            client_id,
            token,
        };
        Self::Hello { introduction }
    }
}

/// The version of a hello, however else it is made; `None` if the frame is no hello.
pub fn version_of_hello(frame: &Frame) -> Option<u64> {
    let version = frame.as_bytes()[16..].first_chunk();
    (frame.kind() == 1).then(|| version.map_or(0, |version| u64::from_le_bytes(*version)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Malformed;
    use crate::host::frame::{FRAME_BYTES, Packet, TEXT_BYTES};

    fn random(mut state: u64) -> impl FnMut() -> u64 {
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        }
    }

    fn survives<P: Packet + PartialEq + std::fmt::Debug>(message: P) {
        let frame = message.frame(77);
        assert_eq!(frame.id(), 77);
        assert_eq!(frame.read::<P>(), Ok(message));
    }

    #[test]
    fn every_message_survives_its_frame() {
        let mut random = random(11);
        for _ in 0..100 {
            ClientMessage::samples(&mut random)
                .into_iter()
                .for_each(survives);
            DaemonMessage::samples(&mut random)
                .into_iter()
                .for_each(survives);
        }
    }

    #[test]
    fn the_longest_messages_fit_a_frame() {
        let text = || Text::from("x".repeat(TEXT_BYTES));
        survives(ClientMessage::Confined {
            applied: u64::MAX,
            missing: u64::MAX,
            why: text(),
        });
        survives(ClientMessage::Profiled {
            row: ProfileRow {
                rest: u64::MAX,
                activity: u64::MAX,
                calls: u64::MAX,
                total_ns: u64::MAX,
                most_ns: u64::MAX,
                bytes: u64::MAX,
                name: text(),
            },
        });
        survives(DaemonMessage::Welcome {
            limit_bytes: u64::MAX,
            device_total_bytes: u64::MAX,
            client_id: u64::MAX,
            gpu_index: u64::MAX,
            vgpu: text(),
        });
        survives(DaemonMessage::Stats {
            piece: vec![0xff; TEXT_BYTES],
            rest_bytes: u64::MAX,
        });
    }

    #[test]
    fn what_only_the_other_side_says_is_no_message() {
        let frame = DaemonMessage::Shutdown {}.frame(0);
        assert_eq!(frame.read::<ClientMessage>(), Err(Malformed::Message(22)));
    }

    #[test]
    fn unknown_numbers_and_bytes_behind_the_fields_are_refused() {
        let hello = ClientMessage::hello(Role::Direct, [7; 16]).frame(0);
        let with = |at: usize, byte: u8| {
            let mut bytes = *hello.as_bytes();
            bytes[at] = byte;
            Frame::from_bytes(bytes).read::<ClientMessage>()
        };
        assert!(matches!(
            with(8, 99),
            Err(Malformed::Value {
                what: "role",
                value: 99
            })
        ));
        assert_eq!(with(56, 1), Err(Malformed::Trailing(1)));
        assert!(matches!(
            with(FRAME_BYTES - 1, 1),
            Err(Malformed::Trailing(_))
        ));
        assert_eq!(with(0, 200), Err(Malformed::Message(200)));
    }

    #[test]
    fn the_version_of_a_hello_can_be_read_when_nothing_else_can() {
        let mut bytes = *ClientMessage::hello(Role::Direct, [7; 16])
            .frame(0)
            .as_bytes();
        (bytes[8], bytes[16]) = (99, 5);
        let frame = Frame::from_bytes(bytes);
        assert!(frame.read::<ClientMessage>().is_err());
        assert_eq!(version_of_hello(&frame), Some(5));
        assert_eq!(
            version_of_hello(&ClientMessage::AskMemory {}.frame(0)),
            None
        );
    }

    #[test]
    fn random_frames_never_panic() {
        let mut random = random(23);
        for _ in 0..20_000 {
            let mut bytes = [0; FRAME_BYTES];
            let length = random() as usize % FRAME_BYTES;
            bytes[..length].fill_with(|| random() as u8);
            (bytes[0], bytes[1], bytes[2], bytes[3]) = (random() as u8 % 32, 0, 0, 0);
            let frame = Frame::from_bytes(bytes);
            if let Ok(message) = frame.read::<ClientMessage>() {
                assert_eq!(message.frame(frame.id()), frame);
            }
            if let Ok(message) = frame.read::<DaemonMessage>() {
                assert_eq!(message.frame(frame.id()), frame);
            }
        }
    }
}
