//! # copy
