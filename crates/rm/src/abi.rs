//! Layouts and numbers of the resource manager's interface, as NVIDIA publishes them with its open
//! kernel modules.

use std::ffi::c_ulong;

/// `ioctl` type of every resource-manager escape.
pub(crate) const ESCAPE_TYPE: u32 = b'F' as u32;
/// Frees an object.
pub(crate) const ESC_FREE: u32 = 0x29;
/// A control on an object.
pub(crate) const ESC_CONTROL: u32 = 0x2A;
/// Makes an object.
pub(crate) const ESC_ALLOC: u32 = 0x2B;
/// An envelope around another escape, for parameters too large for the request number.
pub(crate) const ESC_XFER: u32 = 211;

/// The first request on the file of managed memory; its argument begins with a word of flags.
pub(crate) const UVM_INITIALIZE: c_ulong = 0x3000_0001;
/// In those flags: kernels do not reach memory that only the host has mapped.
pub(crate) const UVM_WITHOUT_HMM: u64 = 1;

/// A device.
pub(crate) const CLASS_DEVICE: u32 = 0x0080;
/// A subdevice: one physical GPU of a device.
pub(crate) const CLASS_SUBDEVICE: u32 = 0x2080;
/// A channel group, the unit the hardware gives time slices to.
pub(crate) const CLASS_GROUP: u32 = 0xA06C;

/// Sets a group's time slice.
pub(crate) const CTRL_SET_TIMESLICE: u32 = 0xA06C_0103;
/// Reads a group's time slice.
pub(crate) const CTRL_GET_TIMESLICE: u32 = 0xA06C_0104;
/// Stops and starts channels.
pub(crate) const CTRL_DISABLE_CHANNELS: u32 = 0x2080_110B;
/// Reads the GPU's UUID.
pub(crate) const CTRL_GET_GID_INFO: u32 = 0x2080_014A;
/// Lists the processes that use a GPU.
pub(crate) const CTRL_GET_PIDS: u32 = 0x2080_018D;
/// Raw bytes rather than text, in [`GidInfo::flags`].
pub(crate) const GID_BINARY: u32 = 2;
/// Most channels one [`DisableChannels`] names.
pub(crate) const DISABLE_MAX: usize = 64;

/// Engine types below this, and above 0, are graphics/compute engines.
const FIRST_COPY_ENGINE: u32 = 0x09;

/// Whether this is the class of a channel with a GPFIFO (0xC36F Volta … 0xCA6F Blackwell).
pub(crate) fn is_channel_class(class: u32) -> bool {
    class & 0xFF == 0x6F && (0xA06F..=0xFFFF).contains(&class)
}

/// Whether an engine type of a channel group can run kernels. 0 is "not said".
pub(crate) fn may_compute(engine: u32) -> bool {
    engine < FIRST_COPY_ENGINE
}

/// Builds a read-write request number.
pub(crate) const fn request(nr: u32, size: usize) -> c_ulong {
    (3 << 30 | (size as c_ulong) << 16) | (ESCAPE_TYPE as c_ulong) << 8 | nr as c_ulong
}

/// The parts of a request number: type, number, size.
pub(crate) fn parts(request: c_ulong) -> (u32, u32, usize) {
    let request = request as u32;
    (
        request >> 8 & 0xFF,
        request & 0xFF,
        (request >> 16 & 0x3FFF) as usize,
    )
}

/// `NVOS00`: frees an object.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Free {
    pub(crate) client: u32,
    pub(crate) parent: u32,
    pub(crate) object: u32,
    pub(crate) status: u32,
}

/// `NVOS21`: makes an object.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Alloc21 {
    pub(crate) client: u32,
    pub(crate) parent: u32,
    pub(crate) object: u32,
    pub(crate) class: u32,
    pub(crate) params: u64,
    pub(crate) params_bytes: u32,
    pub(crate) status: u32,
}

/// `NVOS64`: makes an object, with access rights.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Alloc64 {
    pub(crate) client: u32,
    pub(crate) parent: u32,
    pub(crate) object: u32,
    pub(crate) class: u32,
    pub(crate) params: u64,
    pub(crate) rights: u64,
    pub(crate) params_bytes: u32,
    pub(crate) flags: u32,
    pub(crate) status: u32,
    pub(crate) padding: u32,
}

/// `NVOS54`: a control.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Control {
    pub(crate) client: u32,
    pub(crate) object: u32,
    pub(crate) command: u32,
    pub(crate) flags: u32,
    pub(crate) params: u64,
    pub(crate) params_bytes: u32,
    pub(crate) status: u32,
}

/// The envelope of [`ESC_XFER`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Transfer {
    pub(crate) nr: u32,
    pub(crate) bytes: u32,
    pub(crate) pointer: u64,
}

/// Start of the parameters with which a group is made; later releases only append.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GroupParams {
    pub(crate) error: u32,
    pub(crate) ecc_error: u32,
    pub(crate) address_space: u32,
    pub(crate) engine: u32,
}

/// Parameters of [`CTRL_DISABLE_CHANNELS`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct DisableChannels {
    pub(crate) disable: u8,
    pub(crate) count: u32,
    pub(crate) only_scheduling: u8,
    pub(crate) rewind: u8,
    pub(crate) preempt_event: u64,
    pub(crate) clients: [u32; DISABLE_MAX],
    pub(crate) channels: [u32; DISABLE_MAX],
}

/// Start of the parameters of [`CTRL_GET_PIDS`]; the table of process numbers follows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PidsHeader {
    pub(crate) id_type: u32,
    pub(crate) id: u32,
    pub(crate) count: u32,
}

/// Parameters of [`CTRL_GET_GID_INFO`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct GidInfo {
    pub(crate) index: u32,
    pub(crate) flags: u32,
    pub(crate) length: u32,
    pub(crate) data: [u8; 256],
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn layouts_are_the_kernel_modules_own() {
        assert_eq!(size_of::<Free>(), 16);
        assert_eq!(size_of::<Alloc21>(), 32);
        assert_eq!(offset_of!(Alloc21, status), 28);
        assert_eq!(size_of::<Alloc64>(), 48);
        assert_eq!(offset_of!(Alloc64, status), 40);
        assert_eq!(size_of::<Control>(), 32);
        assert_eq!(offset_of!(Control, params), 16);
        assert_eq!(offset_of!(Control, status), 28);
        assert_eq!(size_of::<Transfer>(), 16);
        assert_eq!(size_of::<DisableChannels>(), 536);
        assert_eq!(offset_of!(DisableChannels, count), 4);
        assert_eq!(offset_of!(DisableChannels, only_scheduling), 8);
        assert_eq!(offset_of!(DisableChannels, preempt_event), 16);
        assert_eq!(offset_of!(DisableChannels, clients), 24);
        assert_eq!(offset_of!(DisableChannels, channels), 280);
        assert_eq!(size_of::<GidInfo>(), 268);
        assert_eq!(offset_of!(GroupParams, engine), 12);
    }

    #[test]
    fn request_numbers_come_apart_as_they_were_made() {
        // _IOWR('F', 0x2A, 32 bytes), as traced from a real program.
        assert_eq!(request(ESC_CONTROL, 32), 0xC020_462A);
        assert_eq!(parts(0xC020_462A), (ESCAPE_TYPE, ESC_CONTROL, 32));
        assert_eq!(parts(request(ESC_XFER, 16)), (ESCAPE_TYPE, ESC_XFER, 16));
    }

    #[test]
    fn channel_classes_of_every_generation_are_known() {
        for class in [0xC36F, 0xC46F, 0xC56F, 0xC86F, 0xC96F, 0xCA6F] {
            assert!(is_channel_class(class));
        }
        for class in [0xC36C, 0x2080, 0x006F, 0xA06C, 0xC661] {
            assert!(!is_channel_class(class));
        }
    }
}
