//! # device
