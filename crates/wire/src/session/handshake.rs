//! What a program and its worker say to each other on the socket, before there is shared memory and beside it.

use crate::host::frame::{Text, messages};

messages! {
    /// A message on a session's socket.
    Handshake {
        /// Program: I am here. Descriptor, if any: an ivshmem file that the session is to lie in.
        64 Hello {
            /// The version I speak.
            version: u64,
        }
        /// Worker: accepted. Descriptors: the area, and the file with windows on device memory where there is one.
        65 Welcome {
            /// The version I speak.
            version: u64,
            /// Whether host memory of the program is copied to another machine instead of being the device's, too.
            copies_host_memory: bool,
        }
        /// Worker: refused.
        66 Refused {
            /// The version I speak.
            version: u64,
            /// Why.
            text: Text,
        }
        /// Program: host memory for the call that names it; its descriptor attached.
        67 HostMemory {
            /// The number by which the call names it.
            tag: u64,
        }
        /// Worker: accepted, and the session lies in an ivshmem file. Descriptors, where a program beyond a wall is answered: the
        /// ivshmem file, the file with the word that the program sleeps on, the stream to the host.
        68 Ivshmem {
            /// The version I speak.
            version: u64,
            /// Bytes of the ivshmem file.
            bytes: u64,
            /// Whether the ivshmem file's upper part has windows on device memory.
            has_windows: bool,
        }
        /// Program: I am here again; my session was saved. Descriptor: the area.
        69 Resume {
            /// The version I speak.
            version: u64,
            /// The number that the worker which saved it has left in the area.
            session: u64,
            /// Files of host memory that follow once the worker has answered, each named by its address on the device.
            files: u64,
        }
        /// Worker: accepted; I go on where the other one was.
        70 Resumed {
            /// The version I speak.
            version: u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::frame::Packet;

    #[test]
    fn every_message_survives_its_frame() {
        let mut state = 3_u64;
        let mut random = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 33
        };
        for message in Handshake::samples(&mut random) {
            assert_eq!(message.frame(0).read(), Ok(message));
        }
    }
}
