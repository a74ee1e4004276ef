//! libnvidia-ml.so.1: shows the virtual GPU to monitoring tools.
