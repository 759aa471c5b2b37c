//! Waiting for something to come about.

use std::time::{Duration, Instant};

use super::error::StackError;

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(20);

/// Looks again and again until `look` gives `Ok`; `Err` says what was seen instead.
///
/// # Errors
/// [`StackError::Timeout`] with what was seen last.
pub async fn until<T>(
    what: &str,
    limit: Duration,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> Result<T, StackError> {
    let start = Instant::now();
    let mut last = "nothing yet".to_owned();
    loop {
        let left = limit.saturating_sub(start.elapsed());
        match tokio::time::timeout(left.max(EVERY), look()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(seen)) => last = seen,
            Err(_) => {}
        }
        if start.elapsed() >= limit {
            return Err(StackError::Timeout { what: what.to_owned(), seconds: limit.as_secs_f64(), last });
        }
        tokio::time::sleep(EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_waits_and_gives_up_with_what_it_saw() {
        let mut looks = 0;
        let found = until("three", Duration::from_secs(5), async || {
            looks += 1;
            if looks == 3 { Ok(looks) } else { Err(format!("{looks}")) }
        });
        assert_eq!(found.await.unwrap(), 3);
        let never = until::<()>("the end", Duration::from_millis(30), async || Err("seven".into())).await;
        let message = never.unwrap_err().to_string();
        assert!(message.contains("the end") && message.contains("seven"), "{message}");
        let stuck = until::<()>("an answer", Duration::from_millis(30), async || std::future::pending().await).await;
        assert!(stuck.is_err());
    }
}
