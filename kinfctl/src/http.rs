//! One GET of the control service's admin port.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use http::StatusCode;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

const TIMEOUT: Duration = Duration::from_secs(10);
/// A prefix index of the largest size, with what is around it.
const MAX_ANSWER: usize = 1 << 30;

/// The body that `http://ADDRESS/PATH` answers with.
///
/// # Errors
/// When there is no answer within 10 seconds, or one that is no success.
pub(crate) fn get(address: &str, path: &str) -> Result<Bytes> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let url = format!("http://{}/{path}", address.trim_start_matches("http://").trim_end_matches('/'));
    let uri: http::Uri = url.parse().with_context(|| format!("`{address}` is not an address; write HOST:PORT"))?;
    let answer = runtime.block_on(async { tokio::time::timeout(TIMEOUT, fetch(uri)).await });
    let Ok(answer) = answer else { bail!("no answer from {url} within {} seconds", TIMEOUT.as_secs()) };
    let (status, body) = answer.with_context(|| {
        format!("no answer from {url}; is kinference-control running, and is this its --admin address?")
    })?;
    if !status.is_success() {
        bail!("{url} answered {status}: {}", String::from_utf8_lossy(&body).trim());
    }
    Ok(body)
}

async fn fetch(uri: http::Uri) -> Result<(StatusCode, Bytes)> {
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let answer = client.get(uri).await.map_err(|error| match std::error::Error::source(&error) {
        Some(source) => anyhow::anyhow!("{source}"),
        None => anyhow::anyhow!("{error}"),
    })?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes();
    Ok((status, body))
}
