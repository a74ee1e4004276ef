//! Gives the library the driver's own name, and keeps it loaded once loaded.
//!
//! The loader matches `dlopen("libcuda.so.1")` by this name, so a preloaded shim is found whatever
//! file it lies in. Programs that close the driver must not unload code that threads still run.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
