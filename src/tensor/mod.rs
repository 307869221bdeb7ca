//! # tensor
