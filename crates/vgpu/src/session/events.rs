//! Events.

use std::sync::Arc;

use mica_gpu::{EventFlags, EventId};

use super::{Event, Session, table_full};
use crate::Result;
use crate::handle::ObjectKind;

impl Session {
    fn event_id(&self, event: u64) -> Result<(EventId, u64)> {
        let tables = self.read();
        let event = tables.events.get(event)?;
        Ok((event.id, event.context))
    }

    /// Makes an event.
    pub fn event_create(&self, context: u64, flags: EventFlags) -> Result<u64> {
        self.check()?;
        let share = self.object_share()?;
        let mut tables = self.write();
        let owner = tables.contexts.get(context)?.id;
        let id = self.gpu.event_create(owner, flags)?;
        let event = Arc::new(Event { id, context, share });
        tables.events.insert(event).map_err(|event| {
            let _ = self.gpu.event_destroy(event.id);
            table_full(ObjectKind::Event)
        })
    }

    /// Destroys an event; work that waits for it still does.
    pub fn event_destroy(&self, event: u64) -> Result<()> {
        self.check()?;
        let gone = self.write().events.remove(event)?;
        match Arc::into_inner(gone) {
            Some(gone) => Ok(self.gpu.event_destroy(gone.id)?),
            // The last graph of the device that uses it destroys it.
            None => Ok(()),
        }
    }

    /// Records a stream's progress.
    pub fn event_record(&self, event: u64, stream: u64) -> Result<()> {
        self.check()?;
        self.make_room(stream, 0)?;
        let tables = self.read();
        let event = tables.events.get(event)?;
        let stream = tables.streams.get(stream)?;
        self.watch(stream.context, self.gpu.event_record(event.id, stream.id))
    }

    /// Whether an event was reached.
    pub fn event_query(&self, event: u64) -> Result<bool> {
        self.check()?;
        let (id, context) = self.event_id(event)?;
        self.watch(context, self.gpu.event_query(id))
    }

    /// Waits for an event.
    pub fn event_synchronize(&self, event: u64) -> Result<()> {
        self.check()?;
        let (id, context) = self.event_id(event)?;
        let result = self.gpu.event_synchronize(id);
        self.watch(context, result)
    }

    /// Milliseconds between two events.
    pub fn event_elapsed_ms(&self, start: u64, end: u64) -> Result<f32> {
        self.check()?;
        let (start, context) = self.event_id(start)?;
        let (end, _) = self.event_id(end)?;
        self.watch(context, self.gpu.event_elapsed_ms(start, end))
    }
}
