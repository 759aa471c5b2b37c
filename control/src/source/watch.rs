//! Notices changes of the files, whatever way they are made: edited in place, renamed over, or swapped by a symbolic
//! link as a mounted ConfigMap is.
//!
//! The file system's notifications only make it quick. What decides is a fingerprint of the content, taken after every
//! notification and every two seconds besides, so that a lost notification costs no more than that.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::Loader;
use crate::state::{Faults, Input, Plan};

const POLL: Duration = Duration::from_secs(2);
/// The files must stay the same for this long before they are read: an editor may be in the middle of it.
const QUIET: Duration = Duration::from_millis(100);
/// After this many rounds that were not quiet they are read all the same.
const MAX_ROUNDS: u32 = 20;
const TOKENIZER_FILES: [&str; 3] = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];

/// A number that changes when a file of the configuration changes.
pub(super) fn config_fingerprint(folder: &Path) -> u64 {
    kinference_api::source::fingerprint(&[folder.to_path_buf()])
}

/// Tokenizers are large: their length and time of change tell.
pub(super) fn tokenizer_fingerprint(folder: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    for name in TOKENIZER_FILES {
        let metadata = std::fs::metadata(folder.join(name));
        metadata.map(|data| (data.len(), data.modified().ok())).ok().hash(&mut hasher);
    }
    hasher.finish()
}

/// Loads the configuration now and after every change, and tells the core.
pub async fn run(mut loader: Loader, core: mpsc::Sender<Input>, shutdown: CancellationToken) {
    let touched = Arc::new(Notify::new());
    let mut watcher = None;
    loop {
        if watcher.is_none() {
            watcher = watch(loader.folder(), touched.clone());
        }
        let (returned, result) = match tokio::task::spawn_blocking(move || load_if_changed(loader)).await {
            Ok(done) => done,
            Err(error) => {
                tracing::error!("reading the configuration failed: {error}");
                return;
            }
        };
        loader = returned;
        if let Some(result) = result
            && core.send(Input::Config(result)).await.is_err()
        {
            return;
        }
        tokio::select! {
            () = touched.notified() => {}
            () = tokio::time::sleep(POLL) => {}
            () = shutdown.cancelled() => return,
        }
    }
}

fn load_if_changed(mut loader: Loader) -> (Loader, Option<Result<Plan, Faults>>) {
    if !loader.changed() {
        return (loader, None);
    }
    if loader.loaded_before() {
        let mut seen = config_fingerprint(loader.folder());
        for _ in 0..MAX_ROUNDS {
            std::thread::sleep(QUIET);
            let now = config_fingerprint(loader.folder());
            if now == seen {
                break;
            }
            seen = now;
        }
        // Changed and changed back.
        if !loader.changed() {
            return (loader, None);
        }
    }
    let result = loader.load();
    (loader, Some(result))
}

fn watch(folder: &Path, touched: Arc<Notify>) -> Option<RecommendedWatcher> {
    let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Reading the files is an event too, and would make this go round for ever.
        if !matches!(event, Ok(notify::Event { kind: EventKind::Access(_), .. })) {
            touched.notify_one();
        }
    });
    let watched = watcher.and_then(|mut watcher| {
        watcher.watch(folder, RecursiveMode::Recursive)?;
        Ok(watcher)
    });
    watched.map_err(|error| tracing::debug!("no notifications for {}: {error}; polling", folder.display())).ok()
}
