//! Serves one virtual GPU over the wire.
