//! The vLLM simulator, the load generator, the local stack, the demo and the measurement of cost.

pub mod cost;
pub mod demo;
pub mod load;
pub mod sim;
pub mod stack;
