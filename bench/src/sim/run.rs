//! A worker's event loops: steps at their times, sockets, and nothing of the scheduling itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use zeromq::ZmqError;

use super::engine::StepLoad;
use super::error::SimError;
use super::events::encode_batch;
use super::http;
use super::publisher::{Publisher, bind_replay, serve_replay};
use super::sockets::{Addresses, Listeners};
use super::worker::{Worker, unix_time};

/// An engine that is late by more than this gives up catching up.
const MAX_LAG: Duration = Duration::from_millis(20);

/// Runs a worker on the current runtime for as long as that lives. Tells `ready` once all sockets accept, or why they cannot.
pub(super) async fn run(worker: Arc<Worker>, listeners: Listeners, ready: oneshot::Sender<Result<(), SimError>>) {
    let opened = open(&worker, listeners).await;
    let (result, http) = match opened {
        Ok(http) => (Ok(()), Some(http)),
        Err(error) => (Err(error), None),
    };
    // Whoever started this waits for it, or is being dropped and will end this task.
    let _ = ready.send(result);
    if let Some(http) = http {
        http::serve(http, worker).await;
    }
}

/// Opens the event sockets, starts the engine, and returns the listener of the HTTP server.
async fn open(worker: &Arc<Worker>, listeners: Listeners) -> Result<TcpListener, SimError> {
    let Addresses { http, kv, replay } = worker.addresses;
    let bind = |source| SimError::Bind { what: "the HTTP server", addr: http, source };
    let zmq = |what, addr| move |error: ZmqError| SimError::Bind { what, addr, source: std::io::Error::other(error) };
    let mut publisher = None;
    if worker.config().kv_events {
        publisher = Some(Publisher::bind(listeners.kv).await.map_err(zmq("the event publisher", kv))?);
        let socket = bind_replay(listeners.replay).await.map_err(zmq("the replay socket", replay))?;
        tokio::spawn(serve_replay(socket, worker.clone()));
    }
    listeners.http.set_nonblocking(true).map_err(bind)?;
    let listener = TcpListener::from_std(listeners.http).map_err(bind)?;
    tokio::spawn(steps(worker.clone(), publisher));
    Ok(listener)
}

/// Runs the engine's steps. Steps of a busy engine follow each other on an exact schedule, so that the timer's
/// granularity of a millisecond delays single tokens but never adds up.
async fn steps(worker: Arc<Worker>, mut publisher: Option<Publisher>) {
    let instant = worker.config().time_scale == 0.0;
    let mut end = Instant::now();
    loop {
        worker.responsive().await;
        let load = worker.engine().begin_step(worker.now());
        let Some(load) = load else {
            worker.work.notified().await;
            end = Instant::now();
            continue;
        };
        if instant {
            // Lets readers take their tokens one by one, as they would come.
            tokio::task::yield_now().await;
        } else {
            end = step_end(&worker, end, load);
            sleep_until(end).await;
            worker.responsive().await;
        }
        let events = worker.engine().end_step(worker.now());
        if let (Some(publisher), false) = (&mut publisher, events.is_empty()) {
            let payload = encode_batch(unix_time().as_secs_f64(), &events, 0);
            let messages = worker.delivery().push(payload);
            publisher.send(messages).await;
        }
    }
}

fn step_end(worker: &Worker, last: Instant, load: StepLoad) -> Instant {
    let start = last.max(Instant::now() - MAX_LAG);
    start + worker.config().step_time(load)
}
