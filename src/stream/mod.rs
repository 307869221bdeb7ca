//! # stream
