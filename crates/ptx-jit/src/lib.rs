//! PTX to native code by Cranelift.
