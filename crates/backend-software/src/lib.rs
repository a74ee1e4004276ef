//! The software GPU: CUDA kernels on the CPU.
