//! Events.

use std::sync::Arc;
use std::time::Duration;

use mica_gpu::{EventFlags, EventId};

use super::{Event, Session, table_full};
use crate::Result;
use crate::handle::ObjectKind;
use crate::progress::SharedProgress;

/// How often a wait for another process looks whether its own session or context has ended.
const LOOK: Duration = Duration::from_millis(20);

impl Session {
    fn event_id(&self, event: u64) -> Result<(EventId, u64)> {
        let tables = self.read();
        let event = tables.events.get(event)?;
        Ok((event.id, event.context))
    }

    fn event_progress(&self, event: u64) -> Result<Option<Arc<dyn SharedProgress>>> {
        Ok(self.read().events.get(event)?.progress.clone())
    }

    /// Makes an event.
    pub fn event_create(&self, context: u64, flags: EventFlags) -> Result<u64> {
        self.new_event(context, flags, None)
    }

    /// Makes an event that other processes have too.
    pub fn event_create_shared(
        &self,
        context: u64,
        progress: Arc<dyn SharedProgress>,
    ) -> Result<u64> {
        let flags = EventFlags {
            disable_timing: true,
        };
        self.new_event(context, flags, Some(progress))
    }

    fn new_event(
        &self,
        context: u64,
        flags: EventFlags,
        progress: Option<Arc<dyn SharedProgress>>,
    ) -> Result<u64> {
        self.check()?;
        let share = self.object_share()?;
        let mut tables = self.write();
        let owner = tables.contexts.get(context)?.id;
        let id = self.gpu.event_create(owner, flags)?;
        let event = Arc::new(Event {
            id,
            context,
            flags,
            progress,
            made: self.next_made(),
            share,
        });
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
        let Some(progress) = &event.progress else {
            return self.watch(stream.context, self.gpu.event_record(event.id, stream.id));
        };
        let (record, shown) = (progress.begin(), Arc::clone(progress));
        let recorded = self.gpu.event_record(event.id, stream.id).and_then(|()| {
            let show = Box::new(move || shown.reach(record));
            self.gpu.stream_release(stream.id, 0, show)
        });
        if recorded.is_err() {
            // Nobody may wait for what never comes.
            progress.reach(record);
        }
        self.watch(stream.context, recorded)
    }

    /// Whether an event was reached.
    pub fn event_query(&self, event: u64) -> Result<bool> {
        self.check()?;
        let (id, context) = self.event_id(event)?;
        if let Some(progress) = self.event_progress(event)? {
            self.check_fault(context)?;
            return Ok(progress.is_reached());
        }
        self.watch(context, self.gpu.event_query(id))
    }

    /// Waits for an event.
    pub fn event_synchronize(&self, event: u64) -> Result<()> {
        self.check()?;
        let (id, context) = self.event_id(event)?;
        if let Some(progress) = self.event_progress(event)? {
            return self.wait_for(context, &*progress);
        }
        let result = self.gpu.event_synchronize(id);
        self.watch(context, result)
    }

    /// Waits for a record of any process.
    fn wait_for(&self, context: u64, progress: &dyn SharedProgress) -> Result<()> {
        self.gpu.settle();
        while !progress.is_reached() {
            self.check()?;
            self.check_fault(context)?;
            progress.sleep(LOOK);
        }
        Ok(())
    }

    fn check_fault(&self, context: u64) -> Result<()> {
        let id = self.context_id(context)?;
        match self.gpu.context_fault(id) {
            Some(fault) => self.watch(context, Err(fault)),
            None => Ok(()),
        }
    }

    /// Milliseconds between two events.
    pub fn event_elapsed_ms(&self, start: u64, end: u64) -> Result<f32> {
        self.check()?;
        let (start, context) = self.event_id(start)?;
        let (end, _) = self.event_id(end)?;
        self.watch(context, self.gpu.event_elapsed_ms(start, end))
    }
}
