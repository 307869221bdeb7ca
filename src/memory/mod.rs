//! # memory
