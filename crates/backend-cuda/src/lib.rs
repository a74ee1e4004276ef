//! NVIDIA GPUs through the real driver.
