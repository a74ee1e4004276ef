//! libcuda.so.1: puts a virtual GPU between a program and the driver.
