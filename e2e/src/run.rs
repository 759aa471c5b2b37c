//! How a test runs.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::Mutex;

/// One at a time: each test has two cores' worth of processes.
static SERIAL: Mutex<()> = Mutex::const_new(());

/// Runs a test alone and within a time. Whatever the test started is still there when it panics, so that the ends of its logs are shown.
///
/// # Panics
/// The test does, or takes longer than `seconds`.
pub fn alone(seconds: u64, test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let _serial = SERIAL.lock().await;
        let mut test = pin!(test);
        let ended = tokio::time::timeout(Duration::from_secs(seconds), &mut test).await;
        assert!(ended.is_ok(), "the test took longer than {seconds} s");
    });
}
