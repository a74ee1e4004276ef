//! Exceptions, with the messages of the Rust errors.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

create_exception!(
    mica,
    MicaError,
    PyException,
    "Why Mica refused, or what went wrong."
);
create_exception!(
    mica,
    OutOfMemoryError,
    MicaError,
    "The virtual GPU's memory limit was the reason."
);
create_exception!(
    mica,
    NotConnectedError,
    MicaError,
    "This program is in no virtual GPU, or no daemon answers."
);

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let python = module.py();
    module.add("MicaError", python.get_type::<MicaError>())?;
    module.add("OutOfMemoryError", python.get_type::<OutOfMemoryError>())?;
    module.add("NotConnectedError", python.get_type::<NotConnectedError>())
}

/// The sentences of an error and of its causes.
fn sentences(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// An error of the Rust API as an exception.
pub(crate) fn of_mica(error: &mica::Error) -> PyErr {
    let text = sentences(error);
    match error {
        mica::Error::NotConnected => NotConnectedError::new_err(text),
        mica::Error::Argument(_) => PyValueError::new_err(text),
        error if error.is_out_of_memory() => OutOfMemoryError::new_err(text),
        _ => MicaError::new_err(text),
    }
}

/// An error of the compute library as an exception.
pub(crate) fn of_ops(error: &mica_ops::Error) -> PyErr {
    match error {
        mica_ops::Error::Gpu(error) => of_mica(error),
        mica_ops::Error::Library { .. } => MicaError::new_err(sentences(error)),
        _ => PyValueError::new_err(sentences(error)),
    }
}

/// An error of the daemon, or of the way to it, as an exception.
pub(crate) fn of_daemon(error: &(dyn std::error::Error + 'static)) -> PyErr {
    let text = sentences(error);
    let control = error.downcast_ref::<mica_control::client::ControlError>();
    match control.is_some_and(|error| error.is_unreachable()) {
        true => NotConnectedError::new_err(text),
        false => MicaError::new_err(text),
    }
}
