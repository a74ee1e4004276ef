//! Containers of GPU code (fatbin, cubin, archive, PTX) read from untrusted bytes.
