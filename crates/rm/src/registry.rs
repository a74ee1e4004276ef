//! What has been learnt from the requests of libcuda: its devices, groups and channels.
//!
//! A plain list, changed by alloc and free as the resource manager changes its own tree: freeing an
//! object frees what lies below it. Owns no file descriptor and makes no system call.

use crate::abi;

/// The file through which an object was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The descriptor.
    pub(crate) fd: i32,
    /// Device number of the file, to notice that the descriptor has been reused.
    pub(crate) rdev: u64,
}

/// One object of the resource manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) origin: Origin,
    pub(crate) client: u32,
    pub(crate) handle: u32,
    pub(crate) parent: u32,
    pub(crate) class: u32,
    /// Of a group: the engine type it was made for, 0 if not said.
    pub(crate) engine: u32,
    /// Of a group: the slice the driver itself asked for last.
    pub(crate) driver_slice_us: Option<u64>,
}

/// The interesting objects of this process, in order of creation.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    objects: Vec<Object>,
}

/// A group with what is needed to control it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) object: Object,
    pub(crate) channels: Vec<u32>,
    pub(crate) subdevice: Option<u32>,
    /// Whether its slice is what other processes' kernels wait for.
    pub(crate) compute: bool,
}

/// More objects than any process makes; beyond it nothing is recorded.
const MAX_OBJECTS: usize = 65_536;

impl Registry {
    pub(crate) const fn new() -> Self {
        Self {
            objects: Vec::new(),
        }
    }

    /// Records a new object if its class matters. Returns whether groups or channels changed.
    pub(crate) fn add(&mut self, object: Object) -> bool {
        let matters = match object.class {
            abi::CLASS_DEVICE | abi::CLASS_SUBDEVICE | abi::CLASS_GROUP => true,
            class if abi::is_channel_class(class) => self
                .find(object.client, object.parent)
                .is_some_and(|parent| parent.class == abi::CLASS_GROUP),
            _ => false,
        };
        if !matters || self.objects.len() >= MAX_OBJECTS {
            return false;
        }
        // A handle may be chosen again once freed; a free that was missed must not leave its twin.
        self.objects
            .retain(|o| (o.client, o.handle) != (object.client, object.handle));
        self.objects.push(object);
        object.class != abi::CLASS_DEVICE && object.class != abi::CLASS_SUBDEVICE
    }

    /// Forgets an object and everything below it.
    pub(crate) fn free(&mut self, client: u32, handle: u32) -> bool {
        let before = self.objects.len();
        if handle == client {
            self.objects.retain(|o| o.client != client);
            return self.objects.len() != before;
        }
        let mut gone = vec![handle];
        while let Some(parent) = gone.pop() {
            let below = self.objects.iter();
            gone.extend(
                below
                    .filter(|o| o.client == client && o.parent == parent && o.handle != parent)
                    .map(|o| o.handle),
            );
            self.objects
                .retain(|o| o.client != client || (o.handle != parent && o.parent != parent));
        }
        self.objects.len() != before
    }

    /// Notes the slice the driver asked for. Returns whether the group is known and may compute.
    pub(crate) fn driver_slice(&mut self, client: u32, handle: u32, us: u64) -> bool {
        let group = self.objects.iter_mut().find(|o| {
            (o.client, o.handle, o.class) == (client, handle, abi::CLASS_GROUP)
                && abi::may_compute(o.engine)
        });
        match group {
            Some(group) => {
                group.driver_slice_us = Some(us);
                true
            }
            None => false,
        }
    }

    /// Whether this is a group whose slice may be pinned.
    pub(crate) fn may_pin(&self, client: u32, handle: u32) -> bool {
        self.find(client, handle)
            .is_some_and(|o| o.class == abi::CLASS_GROUP && abi::may_compute(o.engine))
    }

    /// Every group, compute ones marked.
    ///
    /// A context makes four groups. The driver sets the slice of the compute group itself at the
    /// end of the context's creation, which tells it from the others; before that, the first
    /// group of the device that may compute is taken.
    pub(crate) fn groups(&self) -> Vec<Group> {
        let groups = || {
            let all = self.objects.iter();
            all.filter(|o| o.class == abi::CLASS_GROUP)
        };
        groups()
            .map(|object| {
                let mut peers = groups().filter(|o| {
                    (o.client, o.parent) == (object.client, object.parent)
                        && abi::may_compute(o.engine)
                });
                let sliced = peers.clone().any(|o| o.driver_slice_us.is_some());
                let compute = match sliced {
                    true => object.driver_slice_us.is_some(),
                    false => peers.next().is_some_and(|o| o.handle == object.handle),
                };
                Group {
                    object: *object,
                    channels: self.channels_of(object),
                    subdevice: self.subdevice_of(object),
                    compute,
                }
            })
            .collect()
    }

    fn channels_of(&self, group: &Object) -> Vec<u32> {
        let all = self.objects.iter();
        all.filter(|o| {
            (o.client, o.parent) == (group.client, group.handle) && abi::is_channel_class(o.class)
        })
        .map(|o| o.handle)
        .collect()
    }

    fn subdevice_of(&self, group: &Object) -> Option<u32> {
        let all = self.objects.iter();
        let subdevices: Vec<_> = all
            .filter(|o| o.class == abi::CLASS_SUBDEVICE && o.client == group.client)
            .collect();
        let own = subdevices.iter().find(|o| o.parent == group.parent);
        match (own, subdevices.as_slice()) {
            (Some(own), _) => Some(own.handle),
            // With a single GPU there is nothing to confuse.
            (None, [only]) => Some(only.handle),
            (None, _) => None,
        }
    }

    fn find(&self, client: u32, handle: u32) -> Option<&Object> {
        self.objects
            .iter()
            .find(|o| (o.client, o.handle) == (client, handle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: u32 = 0xC1D0_0001;

    fn object(handle: u32, parent: u32, class: u32, engine: u32) -> Object {
        Object {
            origin: Origin { fd: 7, rdev: 1 },
            client: CLIENT,
            handle,
            parent,
            class,
            engine,
            driver_slice_us: None,
        }
    }

    /// A context as a real program makes it: device, subdevice, four groups, channels in the first.
    fn context() -> Registry {
        let mut registry = Registry::new();
        registry.add(object(2, CLIENT, abi::CLASS_DEVICE, 0));
        registry.add(object(3, 2, abi::CLASS_SUBDEVICE, 0));
        for group in 0..4 {
            let engine = if group == 0 { 1 } else { 0x09 + group };
            registry.add(object(10 + group, 2, abi::CLASS_GROUP, engine));
        }
        for channel in 0..8 {
            registry.add(object(20 + channel, 10, 0xC86F, 0));
        }
        registry
    }

    fn compute(registry: &Registry) -> Vec<u32> {
        let groups = registry.groups();
        let compute = groups.iter().filter(|g| g.compute);
        compute.map(|g| g.object.handle).collect()
    }

    #[test]
    fn the_first_group_of_a_context_computes() {
        let registry = context();
        assert_eq!(compute(&registry), [10]);
        let group = &registry.groups()[0];
        assert_eq!(group.channels, (20..28).collect::<Vec<_>>());
        assert_eq!(group.subdevice, Some(3));
    }

    #[test]
    fn a_second_context_is_found_once_the_driver_sets_its_slice() {
        let mut registry = context();
        assert!(registry.driver_slice(CLIENT, 10, 2048));
        for group in 0..4 {
            registry.add(object(40 + group, 2, abi::CLASS_GROUP, 0));
        }
        assert_eq!(compute(&registry), [10]);
        assert!(registry.driver_slice(CLIENT, 40, 2048));
        assert_eq!(compute(&registry), [10, 40]);
    }

    #[test]
    fn a_slice_on_a_copy_group_marks_nothing() {
        let mut registry = context();
        assert!(!registry.driver_slice(CLIENT, 11, 2048));
        assert!(!registry.driver_slice(CLIENT, 99, 2048));
        assert_eq!(compute(&registry), [10]);
    }

    #[test]
    fn freeing_a_parent_frees_what_lies_below() {
        let mut registry = context();
        assert!(registry.free(CLIENT, 10));
        assert_eq!(registry.groups().len(), 3);
        assert!(registry.free(CLIENT, 2));
        assert!(registry.groups().is_empty());
        assert!(!registry.free(CLIENT, 2));
        let mut registry = context();
        assert!(registry.free(CLIENT, CLIENT));
        assert!(registry.groups().is_empty());
    }

    #[test]
    fn channels_outside_groups_and_other_classes_are_ignored() {
        let mut registry = context();
        assert!(!registry.add(object(60, 2, 0xC86F, 0)));
        assert!(!registry.add(object(61, 2, 0x0040, 0)));
        assert_eq!(registry.groups()[0].channels.len(), 8);
    }

    #[test]
    fn objects_that_name_themselves_as_parent_end() {
        let mut registry = Registry::new();
        registry.add(object(5, 5, abi::CLASS_GROUP, 0));
        assert!(registry.free(CLIENT, 5));
    }
}
