//! A real Envoy with the real filter, the real control service and simulated workers, each test on processes of its own.

mod check;
mod common;
mod errors;
mod fleet;
mod load;
mod loss;
mod policies;
mod requests;
mod tls;
