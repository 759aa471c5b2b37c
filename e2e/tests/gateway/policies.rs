//! The patterns that policies are kept for, through the whole: files to the control service, its snapshot to the filter,
//! Envoy to workers and to providers outside.

mod outside;
mod patterns;
mod world;
