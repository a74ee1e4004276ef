//! The hardware time slice that the daemon wants for this process.
//!
//! Every slice is read back and the reading put into the page, so that the daemon never has to believe
//! that a control worked.

use std::sync::atomic::Ordering::{Relaxed, Release};

use mica_wire::host::page::{ClientPage, client_flags};

use crate::{ChannelError, Channels};

/// What was last asked for.
#[derive(Debug, Default)]
pub(crate) struct Slice {
    asked_us: u64,
}

impl Slice {
    /// Whether the page asks for what it asked for last, and that was done.
    pub(crate) fn is_as_asked(&self, page: &ClientPage) -> bool {
        let same = self.asked_us == page.commands.slice_us.load(Relaxed);
        same && page.client.slice_status.load(Relaxed) == 0
    }

    /// Sets the slice that the page asks for on the channel groups there are, and on those made later;
    /// says in the page what came of it.
    ///
    /// # Errors
    /// The control is refused; the page says so too, and that slices are not in force.
    pub(crate) fn apply<C: Channels>(
        &mut self,
        channels: &C,
        page: &ClientPage,
    ) -> Result<(), C::Error> {
        let wanted = page.commands.slice_us.load(Relaxed);
        // Contexts made later start with it.
        channels.pin_slice_us((wanted > 0).then_some(wanted));
        let set = match (wanted, self.asked_us) {
            (0, 0) => Ok(()),
            (0, _) => channels.restore_slice(),
            _ => channels.set_slice_us(wanted),
        };
        self.asked_us = wanted;
        match set.and_then(|()| channels.slice_us()) {
            Ok(read_us) => {
                page.client.slice_read_us.store(read_us, Relaxed);
                page.client.slice_status.store(0, Relaxed);
                let flags = &page.client.flags;
                flags.fetch_or(client_flags::SLICE_CONTROL, Release);
                Ok(())
            }
            Err(error) => {
                page.client.slice_status.store(error.code(), Relaxed);
                let flags = &page.client.flags;
                flags.fetch_and(!client_flags::SLICE_CONTROL, Release);
                Err(error)
            }
        }
    }
}
