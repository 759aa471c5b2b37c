//! Broken input and the exact words for it.

use super::problems;

mod not_yet;

const HEAD: &str = "apiVersion: kinference.dev/v1alpha1\n";

/// A valid worker set; `spec` starts on line 4. Each case changes one thing.
const WORKER_SET: &str = "kind: InferenceWorkerSet
metadata: {name: tiny}
spec:
  model:
    name: tiny
    tokenizer:
      path: model
  workers:
    port: 8000
    static:
    - name: a
      address: 127.0.0.1
      port: 18200
      kvEventsPort: 18300
    - name: b
      address: 127.0.0.1
      port: 18201
      kvEventsPort: 18301
  kvEvents:
    port: 5557
  metrics:
    interval: 250ms
";

const BACKEND: &str = "kind: GatewayBackend
metadata: {name: main}
spec:
  pools:
  - name: gpu
  prefixIndex:
    chunkBytes: 256
  requestBodyLimit: 8Mi
  staleAfter: 10s
---
apiVersion: kinference.dev/v1alpha1
kind: InferencePool
metadata: {name: gpu}
spec:
  workerSets:
    selector: {}
";

/// Replaces `from`, which must be there, and expects exactly these problems.
fn case(document: &str, from: &str, to: &str, expected: &[&str]) {
    let text = format!("{HEAD}{document}");
    assert!(text.contains(from), "the case does not apply: {from:?}");
    let found = problems("f.yaml", &text.replacen(from, to, 1));
    assert_eq!(found, expected, "{from:?} -> {to:?}");
}

#[test]
fn the_documents_that_cases_break_are_valid() {
    assert_eq!(problems("f.yaml", &format!("{HEAD}{WORKER_SET}")), [""; 0]);
    assert_eq!(problems("f.yaml", &format!("{HEAD}{BACKEND}")), [""; 0]);
}

#[test]
fn headers() {
    for (from, to, expected) in [
        (
            "kinference.dev/v1alpha1",
            "kinference.dev/v1",
            "f.yaml:1: apiVersion: unknown apiVersion `kinference.dev/v1` (write kinference.dev/v1alpha1)",
        ),
        ("apiVersion: kinference.dev/v1alpha1\n", "", "f.yaml:1: apiVersion: missing (the field is required)"),
        (
            "InferenceWorkerSet",
            "InferenceWorkerset2",
            "f.yaml:2: kind: unknown kind `InferenceWorkerset2` (did you mean `InferenceWorkerSet`?)",
        ),
        (
            "InferenceWorkerSet",
            "Deployment",
            "f.yaml:2: kind: unknown kind `Deployment` (known here: GatewayBackend, InferencePolicy, InferencePool, \
             InferenceProvider, InferenceWorkerSet, PolicyTest)",
        ),
        ("kind: InferenceWorkerSet", "kind: 3", "f.yaml:2: kind: not a piece of text"),
        ("metadata: {name: tiny}", "metadata: {}", "f.yaml:3: metadata.name: missing (the field is required)"),
        ("metadata: {name: tiny}\n", "", "f.yaml:1: metadata.name: missing (the field is required)"),
        (
            "{name: tiny}",
            "{name: Tiny_1}",
            "f.yaml:3: metadata.name: `Tiny_1` is not a name that Kubernetes takes \
             (use lower-case letters, digits and `-`)",
        ),
        (
            "{name: tiny}",
            "{name: tiny, namespace: a.b}",
            "f.yaml:3: metadata.namespace: `a.b` is not a namespace that Kubernetes takes \
             (use lower-case letters, digits and `-`)",
        ),
        (
            "{name: tiny}",
            "{name: tiny, lables: {}}",
            "f.yaml:3: metadata.lables: unknown field (did you mean `labels`?)",
        ),
        ("spec:", "spce:", "f.yaml:1: spec: missing (the field is required)"),
    ] {
        let mut expected = vec![expected];
        if to == "spce:" {
            expected.push("f.yaml:4: spce: unknown field (did you mean `spec`?)");
        }
        case(WORKER_SET, from, to, &expected);
    }
}

#[test]
fn yaml_itself() {
    for (from, to, expected) in [
        (
            "    name: tiny\n",
            "    name: tiny\n    name: other\n",
            "f.yaml:7: not valid YAML: spec.model: the key `name` is there twice",
        ),
        (
            "    port: 8000\n",
            "\tport: 8000\n",
            "f.yaml:10: not valid YAML: found character that cannot start any token, while scanning for the next token",
        ),
        ("name: a", "name: *a", "f.yaml:12: not valid YAML: unknown anchor"),
        (
            "name: a",
            "name: !secret a",
            "f.yaml:12: not valid YAML: spec.workers.static[0].name: YAML tags (!name) have no meaning here",
        ),
    ] {
        case(WORKER_SET, from, to, &[expected]);
    }
    assert_eq!(
        problems("f.yaml", "- a\n"),
        ["f.yaml:1: not a resource (a document is a mapping with apiVersion, kind, metadata and spec)"]
    );
    assert_eq!(problems("f.json", "{\"kind\": \"InferencePool\",\n}"), ["f.json:2: not valid JSON: trailing comma"]);
}

#[test]
fn fields_and_their_types() {
    for (from, to, expected) in [
        (
            "      port: 18201",
            "      prot: 18201",
            &["f.yaml:18: spec.workers.static[1].prot: unknown field (did you mean `port`?)"][..],
        ),
        (
            "  workers:",
            "  replicas: 3\n  colour: red\n  workers:",
            &[
                "f.yaml:9: spec.replicas: unknown field (known here: engine, kvEvents, metrics, model, role, workers)",
                "f.yaml:10: spec.colour: unknown field (known here: engine, kvEvents, metrics, model, role, workers)",
            ],
        ),
        (
            "port: 8000",
            "port: eighty",
            &["f.yaml:10: spec.workers.port: `eighty` is the name of a port, which only Pods have \
               (static workers need a number)"],
        ),
        (
            "port: 8000",
            "port: 70000",
            &["f.yaml:10: spec.workers.port: the number `70000` where a port from 1 to 65535 or the name of a \
               container's port belongs"],
        ),
        (
            "port: 18201",
            "port: -1",
            &["f.yaml:18: spec.workers.static[1].port: the number `-1` where a whole number from 0 to 65535 belongs"],
        ),
        ("    name: tiny\n", "", &["f.yaml:5: spec.model.name: missing (the field is required)"]),
        (
            "  metrics:",
            "  engine: vllm\n  metrics:",
            &["f.yaml:22: spec.engine: unknown value `vllm` (write vLLM, SGLang, TensorRTLLM)"],
        ),
        (
            "interval: 250ms",
            "interval: 250",
            &["f.yaml:23: spec.metrics.interval: the number `250` where a duration such as 250ms or 10s belongs"],
        ),
        (
            "interval: 250ms",
            "interval: 250 ms",
            &["f.yaml:23: spec.metrics.interval: `250 ms` is not a duration \
                 (write a number with a unit, such as 250ms, 10s, 1m30s or 2h)"],
        ),
        (
            "      path: model",
            "      path: [model]",
            &["f.yaml:8: spec.model.tokenizer.path: a list where text belongs"],
        ),
        (
            "  kvEvents:\n    port: 5557\n",
            "  kvEvents: yes\n",
            &["f.yaml:20: spec.kvEvents: the text \"yes\" where a mapping belongs"],
        ),
    ] {
        case(WORKER_SET, from, to, expected);
    }
}

#[test]
fn worker_sets() {
    for (from, to, expected) in [
        (
            "      path: model",
            "      path: model\n      configMap: {name: x}",
            "f.yaml:7: spec.model.tokenizer: path and configMap are given together \
             (give exactly one of path, configMap, huggingFace)",
        ),
        (
            "      path: model",
            "      {}",
            "f.yaml:7: spec.model.tokenizer: none of path, configMap, huggingFace is given \
             (give exactly one of path, configMap, huggingFace)",
        ),
        (
            "    port: 8000",
            "    selector: {matchLabels: {app: x}}",
            "f.yaml:9: spec.workers: selector and static are given together (give exactly one of selector, static)",
        ),
        ("name: b", "name: a", "f.yaml:16: spec.workers.static[1].name: `a` is there twice"),
        (
            "name: b",
            "name: b/1",
            "f.yaml:16: spec.workers.static[1].name: `b/1` is not a worker's name \
             (at most 63 letters, digits, `-`, `_` and `.`)",
        ),
        (
            "port: 18201",
            "port: 18200",
            "f.yaml:18: spec.workers.static[1].port: port 18200 of 127.0.0.1 is also the port of worker `a` \
             (every worker needs an address or ports of its own)",
        ),
        (
            "kvEventsPort: 18301",
            "kvEventsPort: 18300",
            "f.yaml:19: spec.workers.static[1].kvEventsPort: port 18300 of 127.0.0.1 is also the kvEventsPort of \
             worker `a` (every worker needs an address or ports of its own)",
        ),
        (
            "    port: 8000",
            "    dataParallelSize: 2",
            "f.yaml:19: spec.workers.static[1].kvEventsPort: port 18301 of 127.0.0.1 is also the kvEventsPort of \
             worker `a` (every worker needs an address or ports of its own)",
        ),
        (
            "    port: 8000",
            "    dataParallelSize: 0",
            "f.yaml:10: spec.workers.dataParallelSize: 0 is out of range (1 to 256)",
        ),
        ("port: 8000", "port: 0", "f.yaml:10: spec.workers.port: 0 is no port (1 to 65535)"),
        (
            "address: 127.0.0.1",
            "address: worker-a.local",
            "f.yaml:13: spec.workers.static[0].address: `worker-a.local` is not the IP address of a worker \
             (write an IP address such as 10.0.0.7 or fd00::8; names of hosts are not looked up)",
        ),
        (
            "address: 127.0.0.1",
            "address: '[fd00::8]'",
            "f.yaml:13: spec.workers.static[0].address: `[fd00::8]` is not the IP address of a worker \
             (write IPv6 without brackets and without port)",
        ),
        (
            "address: 127.0.0.1",
            "address: 127.0.0.1:8000",
            "f.yaml:13: spec.workers.static[0].address: `127.0.0.1:8000` is not the IP address of a worker \
             (the port belongs into `port`)",
        ),
        (
            "address: 127.0.0.1",
            "address: 0.0.0.0",
            "f.yaml:13: spec.workers.static[0].address: `0.0.0.0` is not the IP address of a worker \
             (write the address that the worker is reached at)",
        ),
        ("interval: 250ms", "interval: 0s", "f.yaml:23: spec.metrics.interval: 0s is out of range (10ms to 1m)"),
        (
            "    interval: 250ms",
            "    path: metrics",
            "f.yaml:23: spec.metrics.path: `metrics` is not a path (start with `/`)",
        ),
        (
            "    static:\n    - name: a\n      address: 127.0.0.1\n      port: 18200\n      kvEventsPort: 18300\n    - name: b\n      address: 127.0.0.1\n      port: 18201\n      kvEventsPort: 18301\n",
            "    selector: {}\n",
            "f.yaml:11: spec.workers.selector: selects every Pod of the namespace \
             (state matchLabels or matchExpressions)",
        ),
    ] {
        case(WORKER_SET, from, to, &[expected]);
    }
    case(
        WORKER_SET,
        "  kvEvents:\n    port: 5557\n",
        "",
        &[
            "f.yaml:15: spec.workers.static[0].kvEventsPort: the worker set has no KV events \
             (add spec.kvEvents, or remove the port)",
            "f.yaml:19: spec.workers.static[1].kvEventsPort: the worker set has no KV events \
             (add spec.kvEvents, or remove the port)",
        ],
    );
}

#[test]
fn backends_and_pools() {
    for (from, to, expected) in [
        (
            "  - name: gpu",
            "  - name: cpu",
            "f.yaml:6: spec.pools[0].name: there is no InferencePool `cpu` (namespace default has gpu)",
        ),
        ("  - name: gpu", "  - name: gpu\n  - name: gpu", "f.yaml:7: spec.pools[1].name: `gpu` is there twice"),
        ("  pools:\n  - name: gpu\n", "", "f.yaml:4: spec: serves nothing (name at least one pool or provider)"),
        (
            "chunkBytes: 256",
            "chunkBytes: 300",
            "f.yaml:8: spec.prefixIndex.chunkBytes: 300 is no power of two from 16 to 65536 (256 suits most)",
        ),
        (
            "chunkBytes: 256",
            "chunkBytes: 131072",
            "f.yaml:8: spec.prefixIndex.chunkBytes: 131072 is no power of two from 16 to 65536 (256 suits most)",
        ),
        (
            "chunkBytes: 256",
            "maxBytes: 1Ki",
            "f.yaml:8: spec.prefixIndex.maxBytes: 1Ki is out of range (64Ki to 512Mi)",
        ),
        (
            "requestBodyLimit: 8Mi",
            "requestBodyLimit: 1Gi",
            "f.yaml:9: spec.requestBodyLimit: 1Gi is out of range (1Ki to 128Mi)",
        ),
        (
            "requestBodyLimit: 8Mi",
            "requestBodyLimit: 8MB",
            "f.yaml:9: spec.requestBodyLimit: `8MB` is not a size \
             (write a whole number with a unit, such as 256Ki, 64Mi or 1Gi)",
        ),
        ("staleAfter: 10s", "staleAfter: 0s", "f.yaml:10: spec.staleAfter: 0s is out of range (1s to 1h)"),
        (
            "    selector: {}",
            "    names: [tiny]",
            "f.yaml:17: spec.workerSets.names[0]: there is no InferenceWorkerSet `tiny` (namespace default has none)",
        ),
        (
            "metadata: {name: gpu}",
            "metadata: {name: gpu, namespace: team}",
            "f.yaml:6: spec.pools[0].name: there is no InferencePool `gpu` (namespace default has none)",
        ),
        (
            "kind: InferencePool\nmetadata: {name: gpu}\nspec:\n  workerSets:\n    selector: {}",
            "kind: InferencePool\nmetadata: {name: gpu}\nspec:\n  workerSets:\n    selector: {}\n---\n\
             apiVersion: kinference.dev/v1alpha1\nkind: InferencePool\nmetadata: {name: gpu}\n\
             spec: {workerSets: {names: []}}",
            "f.yaml:21: metadata.name: there are two InferencePools named default/gpu (the other is in line 12)",
        ),
        (
            "  staleAfter: 10s",
            "  tenancy: {identify: [{}], tenants: []}",
            "f.yaml:10: spec.tenancy.identify[0]: none of apiKey, jwt, header is given \
             (give exactly one of apiKey, jwt, header)",
        ),
        (
            "  staleAfter: 10s",
            "  tags: {header: 'x tags'}",
            "f.yaml:10: spec.tags.header: `x tags` is not a header's name (letters, digits and `-`)",
        ),
        (
            "  staleAfter: 10s",
            "  tags: {classifiers: [{tag: t, http: {url: 'ftp://x'}}]}",
            "f.yaml:10: spec.tags.classifiers[0].http.url: `ftp://x` is not a URL \
             (start with https:// or http:// and a host)",
        ),
        (
            "  staleAfter: 10s",
            "  tenancy: {tenants: [{name: t, limits: {concurrentRequests: 0}}]}",
            "f.yaml:10: spec.tenancy.tenants[0].limits.concurrentRequests: a limit of 0 lets nothing through \
             (to keep a tenant out, give it `models: []`)",
        ),
    ] {
        case(BACKEND, from, to, &[expected]);
    }
}

#[test]
fn providers_and_policies() {
    let provider = "kind: InferenceProvider
metadata: {name: p}
spec:
  api: OpenAI
  endpoint: https://api.example.com/v1
  models: [{name: m}]
";
    for (from, to, expected) in [
        ("api: OpenAI", "api: Bedrock", "f.yaml:4: spec.region: missing (Bedrock needs a region)"),
        (
            "https://api.example.com/v1",
            "api.example.com",
            "f.yaml:6: spec.endpoint: `api.example.com` is not a URL (start with https:// or http:// and a host)",
        ),
        (
            "https://api.example.com/v1",
            "http://api.example.com/v1\n  credentials: {secretRef: {name: k}}",
            "f.yaml:6: spec.endpoint: credentials would go over the network in plain text (use https://)",
        ),
        (
            "https://api.example.com/v1",
            "https://me:secret@api.example.com/v1",
            "f.yaml:6: spec.endpoint: `https://me:secret@api.example.com/v1` has a user name (credentials belong in a \
             Secret)",
        ),
        ("[{name: m}]", "[]", "f.yaml:7: spec.models: the provider offers no model (list at least one)"),
        (
            "{name: m}",
            "{name: m, pricePerMillionTokens: {input: 0.6, output: \"1\"}}",
            "f.yaml:7: spec.models[0].pricePerMillionTokens.input: the number `0.6` where a number in quotes such as \
             \"0.75\" belongs",
        ),
    ] {
        case(provider, from, to, &[expected]);
    }
    let policy = "kind: InferencePolicy
metadata: {name: p}
spec:
  rules:
  - name: r
    require:
      workers:
      - {signal: KvCacheUsage, below: \"0.7\"}
";
    for (from, to, expected) in [
        (
            ", below: \"0.7\"",
            "",
            "f.yaml:9: spec.rules[0].require.workers[0]: none of max, below, atLeast is given \
             (give exactly one of max, below, atLeast)",
        ),
        (
            "0.7",
            "70",
            "f.yaml:9: spec.rules[0].require.workers[0].below: KvCacheUsage is never above 1 \
             (write a share such as \"0.9\")",
        ),
        (
            "  - name: r",
            "  - name: r\n    fallback: [{providers: [bedrock]}]",
            "f.yaml:7: spec.rules[0].fallback[0].providers[0]: there is no InferenceProvider `bedrock` \
             (namespace default has none)",
        ),
        (
            "  - name: r",
            "  - name: r\n    reject: {status: 200}",
            "f.yaml:7: spec.rules[0].reject.status: 200 is out of range (400 to 599)",
        ),
        (
            "  rules:",
            "  gatewayBackends: [{name: main}]\n  rules:",
            "f.yaml:5: spec.gatewayBackends[0].name: there is no GatewayBackend `main` (namespace default has none)",
        ),
    ] {
        case(policy, from, to, &[expected]);
    }
}
