//! Gives the shared library the name that programs look for.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Cargo calls the file libmica_c.so, because the library of the crate `mica` is libmica. Programs are linked
    // with -lmica and look for this name when they start. The number changes with the binary interface.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmica.so.0");
}
