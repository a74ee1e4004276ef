//! The engine: one virtual GPU.
