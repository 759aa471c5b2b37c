//! The demo: the same requests through our filter and through the same Envoy with random balancing, on fresh processes.

mod points;
mod report;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::load::{LoadError, Options, Progress, Random, Summary, run, words};
use crate::stack::{Balancing, Cpu, Stack, StackError, StackOptions, own_cpu_seconds, until};

pub use points::{Point, engine, points};
pub use report::{Arm, Report, print};

/// The arms, the baseline first.
pub const ARMS: [Balancing; 2] = [Balancing::Random, Balancing::Kinference];

/// A request that takes longer than this counts as failed: longer than any queue of the load points.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Why the demo cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// A process.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// A setting.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// Runs every load point through both arms. `say` is told what is being done.
///
/// # Errors
/// A process that does not start, or ends by itself. Failed requests are figures, not errors.
pub async fn compare(points: &[Point], workers: usize, mut say: impl FnMut(&str)) -> Result<Report, DemoError> {
    let mut report = Report::default();
    for point in points {
        for balancing in ARMS {
            say(&format!("{}: {} on fresh workers, {}", point.name(), balancing.name(), point.describe()));
            let arm = measure(point, balancing, workers).await?;
            report.add(point, balancing, arm);
        }
    }
    Ok(report)
}

/// Runs one load point through one arm, on processes started for it.
async fn measure(point: &Point, balancing: Balancing, workers: usize) -> Result<Arm, DemoError> {
    let mut stack = start(balancing, workers, SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    warm_up(&stack).await?;
    let options = Options { model: stack.model().to_owned(), pace: point.pace, exact_answers: true, timeout: TIMEOUT };
    let (_, requests) = point.workload.shape.counts();
    let progress = Progress::new(&format!("{} / {}", point.name(), balancing.name()), requests);
    let (before, own_before, started) = (stack.cpu(), own_cpu_seconds(), Instant::now());
    let run = run(&stack.client(), &point.workload, &options, progress).await?;
    let (after, own) = (stack.cpu(), own_cpu_seconds() - own_before);
    let seconds = started.elapsed().as_secs_f64();
    if let Some(error) = stack.ended() {
        return Err(error.into());
    }
    let cpu =
        Cpu { envoy: after.envoy - before.envoy, control: after.control - before.control, sim: after.sim - before.sim };
    Ok(Arm { summary: Summary::of(&run, point.ttft_limit), cpu, load_cpu: own, seconds })
}

/// Sends one request and waits until the control service knows from it how many bytes a token has on average, as it does in
/// any fleet that has served anything; until then the filter's estimates rest on a guess. Every arm gets it.
async fn warm_up(stack: &Stack) -> Result<(), DemoError> {
    let measured = async || {
        let status = stack.status().await?;
        Ok::<_, StackError>(status["workerSets"]["default/simulated"]["bytesPerToken"].as_f64())
    };
    let guess = measured().await?;
    let text = words(&mut Random::new(0, 0), 500);
    let body = json!({"model": stack.model(), "max_tokens": 1, "messages": [{"role": "user", "content": text}]});
    stack.client().post("/v1/chat/completions", body.to_string()).await?;
    until("a measured length of tokens", Duration::from_secs(10), async || match measured().await {
        Ok(now) if now != guess => Ok(()),
        Ok(_) => Err("the guess".into()),
        Err(error) => Err(error.to_string()),
    })
    .await?;
    Ok(())
}

/// Starts a stack with the demo's workers.
///
/// # Errors
/// As [`Stack::start`].
pub async fn start(balancing: Balancing, workers: usize, listen: SocketAddr) -> Result<Stack, DemoError> {
    let options = StackOptions { sim: engine(workers), balancing, listen, ..StackOptions::default() };
    Ok(Stack::start(options).await?)
}
