//! PTX interpreter: the oracle of the compiler.
