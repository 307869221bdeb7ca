//! tcuda's own kernels: device code embedded as PTX, and the Rust twins that the simulated device runs.
