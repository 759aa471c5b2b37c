//! The vLLM simulator, the load generator, the local stack and the demo.

pub mod demo;
pub mod load;
pub mod sim;
pub mod stack;
