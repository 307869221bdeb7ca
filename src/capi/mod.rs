//! # capi
