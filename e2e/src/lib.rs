//! End-to-end tests: a real Envoy with the real filter, the real control service, and simulated workers.
//!
//! The tests are in `tests/gateway`. They need the programs and the filter to be built, which `cargo xtask test` does first.
