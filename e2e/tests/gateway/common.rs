//! What the tests share.

use std::time::Duration;

use kinference_bench::load::Client;
use kinference_bench::sim::Config;
use kinference_bench::stack::{Balancing, Stack, StackOptions, until};
pub(crate) use kinference_e2e::{Reply, alone, chat, prompt, send};

/// Workers with times of a small, fast engine: a token takes 4 ms or less.
pub(crate) fn workers(count: usize) -> Config {
    Config { workers: count, time_scale: 0.5, ..Config::ephemeral() }
}

/// Workers that take no time.
pub(crate) fn instant_workers(count: usize) -> Config {
    Config { workers: count, time_scale: 0.0, ..Config::ephemeral() }
}

/// A stack with our filter.
pub(crate) async fn stack(sim: Config) -> Stack {
    stack_with(sim, Balancing::Kinference).await
}

/// A stack with any balancing.
pub(crate) async fn stack_with(sim: Config, balancing: Balancing) -> Stack {
    let options = StackOptions { sim, balancing, ..StackOptions::default() };
    match Stack::start(options).await {
        Ok(stack) => stack,
        Err(error) => panic!("{error}"),
    }
}

/// Sends a chat request through the gateway and reads what is said of it.
pub(crate) async fn ask(stack: &Stack, client: &Client, prompt: &str) -> Reply {
    Reply::of(&send(client, &chat(stack.model(), prompt, 4)).await.expect("an answer"))
}

/// Waits until every filter holds exactly the chunks that the control service knows of, and these are at least `least`.
pub(crate) async fn indexes_agree(stack: &Stack, least: u64) {
    let agreed = until("equal prefix indexes", Duration::from_secs(10), async || {
        let status = stack.status().await.map_err(|error| error.to_string())?;
        let chunks = status["backends"]["default/main"]["prefixIndex"]["chunks"].as_u64().unwrap_or_default();
        let filters = status["filters"].as_array().cloned().unwrap_or_default();
        let held: Vec<_> = filters.iter().map(|filter| filter["indexChunks"].as_u64().unwrap_or_default()).collect();
        let equal = held.len() >= 2 && held.iter().all(|held| *held == chunks);
        if equal && chunks >= least { Ok(()) } else { Err(format!("{chunks} chunks (of {least}), filters {held:?}")) }
    });
    if let Err(error) = agreed.await {
        panic!("{error}");
    }
}

/// The index of a worker by its destination header.
pub(crate) fn worker_of(destination: &str) -> usize {
    let digits = destination.rsplit('w').next().unwrap_or_default();
    digits.parse().unwrap_or_else(|_| panic!("{destination:?} names no worker of the stack"))
}

/// A figure of every worker.
pub(crate) async fn figures(stack: &Stack, name: &str) -> Vec<u64> {
    let stats = stack.worker_stats().await.expect("statistics");
    stats.iter().map(|worker| worker[name].as_u64().unwrap_or_default()).collect()
}
