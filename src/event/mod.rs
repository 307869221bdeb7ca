//! # event
