//! The layers of a confinement, and which of them are in force.

use std::collections::BTreeMap;

/// One layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Layer {
    /// A user other than the daemon's, or a user namespace of its own.
    User = 0,
    /// A root directory with only the files the worker needs.
    Files = 1,
    /// A process namespace: other processes cannot be seen, traced or signalled.
    Processes = 2,
    /// A network namespace without interfaces.
    Network = 3,
    /// A namespace of shared memory and message queues.
    Ipc = 4,
    /// No capability, in no set.
    Capabilities = 5,
    /// No privilege by executing a file.
    NoNewPrivileges = 6,
    /// Resource limits: no core dumps, bounded descriptors.
    ResourceLimits = 7,
    /// Landlock rules for files, network and signals.
    Landlock = 8,
    /// An allow list of system calls.
    Seccomp = 9,
    /// A cgroup with limits of memory and threads.
    Cgroup = 10,
}

/// A name that is not a layer's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a layer of confinement: there are {all}", all = Layer::names())]
pub struct UnknownLayer(pub String);

impl Layer {
    /// Every layer, in the order of the enumeration.
    pub const ALL: [Layer; 11] = [
        Layer::User,
        Layer::Files,
        Layer::Processes,
        Layer::Network,
        Layer::Ipc,
        Layer::Capabilities,
        Layer::NoNewPrivileges,
        Layer::ResourceLimits,
        Layer::Landlock,
        Layer::Seccomp,
        Layer::Cgroup,
    ];

    /// The name in configuration and listings.
    pub fn name(self) -> &'static str {
        match self {
            Layer::User => "user",
            Layer::Files => "files",
            Layer::Processes => "processes",
            Layer::Network => "network",
            Layer::Ipc => "ipc",
            Layer::Capabilities => "capabilities",
            Layer::NoNewPrivileges => "no_new_privileges",
            Layer::ResourceLimits => "resource_limits",
            Layer::Landlock => "landlock",
            Layer::Seccomp => "seccomp",
            Layer::Cgroup => "cgroup",
        }
    }

    /// The layer with this name.
    ///
    /// # Errors
    /// No layer has this name.
    pub fn from_name(name: &str) -> Result<Self, UnknownLayer> {
        let found = Self::ALL.into_iter().find(|layer| layer.name() == name);
        found.ok_or_else(|| UnknownLayer(name.to_owned()))
    }

    /// The layers in a comma-separated list; an empty list has none.
    ///
    /// # Errors
    /// A name is not a layer's.
    pub fn parse_list(list: &str) -> Result<Vec<Self>, UnknownLayer> {
        let names = list.split(',').map(str::trim).filter(|n| !n.is_empty());
        names.map(Self::from_name).collect()
    }

    /// The bit of this layer in [`Report::applied_bits`].
    pub fn bit(self) -> u64 {
        1 << (self as u8)
    }

    fn names() -> String {
        Self::ALL.map(Layer::name).join(", ")
    }
}

/// What was applied, and why the rest was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    applied: u64,
    missing: BTreeMap<Layer, String>,
}

impl Report {
    /// Whether a layer is in force.
    pub fn has(&self, layer: Layer) -> bool {
        self.applied & layer.bit() != 0
    }

    /// One bit for each layer in force.
    pub fn applied_bits(&self) -> u64 {
        self.applied
    }

    /// The layers that are not in force, each with the reason.
    pub fn missing(&self) -> impl Iterator<Item = (Layer, &str)> {
        self.missing.iter().map(|(layer, why)| (*layer, &**why))
    }

    /// A sentence about the first of these layers that is not in force.
    pub fn missing_of(&self, required: &[Layer]) -> Option<String> {
        let layer = required.iter().find(|layer| !self.has(**layer))?;
        let why = self.missing.get(layer).map_or("it was not tried", |w| w);
        Some(format!("{} is required and missing: {why}", layer.name()))
    }

    pub(crate) fn applied(&mut self, layer: Layer) {
        self.applied |= layer.bit();
        self.missing.remove(&layer);
    }

    pub(crate) fn failed(&mut self, layer: Layer, why: impl Into<String>) {
        self.applied &= !layer.bit();
        self.missing.insert(layer, why.into());
    }

    /// Gives a reason for a layer that is not in force, if it has none yet.
    pub(crate) fn failed_unless_known(&mut self, layer: Layer, why: &str) {
        if !self.has(layer) {
            self.missing.entry(layer).or_insert_with(|| why.to_owned());
        }
    }

    /// Gives one reason for every layer that is not in force and has none yet.
    pub(crate) fn fail_the_rest(&mut self, why: &str) {
        for layer in Layer::ALL {
            self.failed_unless_known(layer, why);
        }
    }

    /// Notes the outcome of one step.
    pub(crate) fn note<T>(&mut self, layer: Layer, outcome: std::io::Result<T>) -> Option<T> {
        match outcome {
            Ok(value) => {
                self.applied(layer);
                Some(value)
            }
            Err(error) => {
                self.failed(layer, error.to_string());
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layer_is_found_by_its_name_and_has_a_bit_of_its_own() {
        let mut bits = 0;
        for layer in Layer::ALL {
            assert_eq!(Layer::from_name(layer.name()), Ok(layer));
            assert_eq!(bits & layer.bit(), 0);
            bits |= layer.bit();
        }
    }

    #[test]
    fn a_list_with_an_unknown_layer_is_refused_and_names_the_known_ones() {
        assert_eq!(
            Layer::parse_list("seccomp, user"),
            Ok(vec![Layer::Seccomp, Layer::User])
        );
        let refused = Layer::parse_list("secomp").unwrap_err().to_string();
        assert!(refused.contains("\"secomp\"") && refused.contains("landlock"));
    }

    #[test]
    fn a_missing_layer_is_named_with_its_reason() {
        let mut report = Report::default();
        report.applied(Layer::User);
        report.failed(Layer::Landlock, "the kernel has none");
        assert_eq!(report.missing_of(&[Layer::User]), None);
        let text = report.missing_of(&[Layer::User, Layer::Landlock]).unwrap();
        assert!(text.contains("landlock") && text.contains("the kernel has none"));
    }
}
