//! Questions to a daemon.

use std::path::PathBuf;

use mica_control::Paths;
use mica_control::api::{Resize, VgpuSpec};
use mica_control::client::{ControlClient, ControlError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::of_daemon;

/// A daemon of this host; answers are JSON.
#[pyclass(module = "mica", frozen)]
pub(crate) struct Daemon {
    client: ControlClient,
}

fn answer<T: serde::Serialize>(answer: Result<T, ControlError>) -> PyResult<String> {
    let answer = answer.map_err(|error| of_daemon(&error))?;
    serde_json::to_string(&answer).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn parsed<T: serde::de::DeserializeOwned>(text: &str) -> PyResult<T> {
    serde_json::from_str(text).map_err(|error| PyValueError::new_err(error.to_string()))
}

#[pymethods]
impl Daemon {
    /// The daemon that runs; where none does and the path of the command is given, one is started.
    #[new]
    #[pyo3(signature = (command=None))]
    fn new(python: Python<'_>, command: Option<PathBuf>) -> PyResult<Self> {
        let client = match command {
            Some(command) => python
                .detach(|| mica_control::ensure_running(&command))
                .map_err(|error| of_daemon(&error))?,
            None => {
                let system = Paths::system_socket().filter(|socket| mica_control::listens(socket));
                let own = || Paths::from_environment().control_socket();
                ControlClient::new(system.unwrap_or_else(own))
            }
        };
        Ok(Self { client })
    }

    fn gpus(&self, python: Python<'_>) -> PyResult<String> {
        python.detach(|| answer(self.client.gpus()))
    }

    fn list(&self, python: Python<'_>) -> PyResult<String> {
        python.detach(|| answer(self.client.list()))
    }

    fn show(&self, python: Python<'_>, name: &str) -> PyResult<String> {
        python.detach(|| answer(self.client.get(name)))
    }

    /// Makes a virtual GPU from a JSON object; its description.
    fn create(&self, python: Python<'_>, spec: &str) -> PyResult<String> {
        let spec: VgpuSpec = parsed(spec)?;
        python.detach(|| {
            let created = self
                .client
                .create(&spec)
                .map_err(|error| of_daemon(&error))?;
            answer(self.client.get(&created.name))
        })
    }

    fn resize(&self, python: Python<'_>, name: &str, change: &str) -> PyResult<String> {
        let change: Resize = parsed(change)?;
        python.detach(|| answer(self.client.resize(name, &change)))
    }

    fn suspend(&self, python: Python<'_>, name: &str) -> PyResult<String> {
        python.detach(|| answer(self.client.suspend(name)))
    }

    fn resume(&self, python: Python<'_>, name: &str) -> PyResult<String> {
        python.detach(|| answer(self.client.resume(name)))
    }

    fn remove(&self, python: Python<'_>, name: &str, force: bool) -> PyResult<()> {
        let removed = python.detach(|| self.client.remove(name, force));
        removed.map(drop).map_err(|error| of_daemon(&error))
    }
}
