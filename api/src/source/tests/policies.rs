//! Policies and tests that are broken, or valid and not what was meant, and the exact words for it.

mod policy_tests;
mod unused;

use super::file;
use crate::Problem;
use crate::source::examine_files;

/// Everything that policies can refer to. Each case changes one thing.
const FLEET: &str = "apiVersion: kinference.dev/v1alpha1
kind: GatewayBackend
metadata: {name: main}
spec:
  pools: [{name: gpu}]
  providers: [{name: cloud}]
  tenancy:
    identify: [{header: {name: x-tenant}}]
    tenants: [{name: research}]
  tags: {header: x-tags}
---
apiVersion: kinference.dev/v1alpha1
kind: InferencePool
metadata: {name: gpu}
spec: {workerSets: {names: [big]}}
---
apiVersion: kinference.dev/v1alpha1
kind: InferencePool
metadata: {name: spare}
spec: {workerSets: {names: [small]}}
---
apiVersion: kinference.dev/v1alpha1
kind: InferenceWorkerSet
metadata: {name: big}
spec:
  model: {name: glm, tokenizer: {path: glm}}
  workers: {static: [{name: a, address: 10.0.0.1}]}
---
apiVersion: kinference.dev/v1alpha1
kind: InferenceWorkerSet
metadata: {name: small}
spec:
  model: {name: qwen, tokenizer: {path: qwen}}
  workers: {static: [{name: a, address: 10.0.0.2}]}
---
apiVersion: kinference.dev/v1alpha1
kind: InferenceProvider
metadata: {name: cloud}
spec: {api: OpenAI, endpoint: 'https://x/v1', models: [{name: glm}]}
---
apiVersion: kinference.dev/v1alpha1
kind: InferenceProvider
metadata: {name: other}
spec: {api: OpenAI, endpoint: 'https://y/v1', models: [{name: llama}]}
";

/// What `kinfctl validate` says of the fleet with `from` replaced by `to`, which must be there, and these rules.
fn said(from: &str, to: &str, rules: &str, test: &str) -> Vec<String> {
    assert!(FLEET.contains(from), "the case does not apply: {from:?}");
    let mut files = vec![file("fleet.yaml", &FLEET.replacen(from, to, 1))];
    if !rules.is_empty() {
        let head = "apiVersion: kinference.dev/v1alpha1\nkind: InferencePolicy\nmetadata: {name: p}\nspec:\n  rules:\n";
        files.push(file("p.yaml", &format!("{head}{rules}")));
    }
    if !test.is_empty() {
        let head = "apiVersion: kinference.dev/v1alpha1\nkind: PolicyTest\nmetadata: {name: t}\n";
        files.push(file("t.yaml", &format!("{head}{test}")));
    }
    examine_files(files).problems.iter().map(Problem::to_string).collect()
}

/// Expects exactly these problems of rules; the first rule is on line 6.
fn rules(rules: &str, expected: &[&str]) {
    assert_eq!(said("", "", rules, ""), expected, "{rules}");
}

#[test]
fn what_is_meant_and_works_is_not_complained_about() {
    for text in [
        "  - {name: r, when: {models: [standard]}, candidates: {models: [glm]}}\n",
        "  - {name: r, when: {models: ['g*'], tenants: [research]}, minimize: Cost, ttftBudget: 1s}\n",
        "  - {name: r, when: {tags: {any: [a, b], none: [b]}}, require: {locality: Local}}\n",
        "  - {name: r, when: {models: [glm], tags: {all: [small]}}, candidates: {models: [glm]}}\n",
        "  - {name: r, when: {pools: [{name: gpu, signal: KvCacheUsage, atLeast: '0.5'}, \
         {name: gpu, signal: KvCacheUsage, below: '0.9'}]}, reject: {status: 429}}\n",
        "  - {name: r, require: {workers: [{signal: PredictedTTFT, max: '800'}]}, onEmpty: {action: Continue}}\n",
        "  - {name: a, when: {tags: {all: [x]}}, minimize: Cost}\n  - {name: b, minimize: QueuedRequests}\n",
    ] {
        rules(text, &[]);
    }
}

#[test]
fn rules_that_contradict_themselves() {
    for (text, expected) in [
        (
            "  - {name: r, when: {models: [glm]}}\n",
            "p.yaml:6: spec.rules[0]: the rule does nothing \
             (state candidates, minimize, require, fallback, onEmpty or reject)",
        ),
        (
            "  - {name: a b, minimize: Cost}\n",
            "p.yaml:6: spec.rules[0].name: `a b` is not a rule's name (at most 63 letters, digits, `-`, `_` and `.`)",
        ),
        (
            "  - {name: r, when: {tags: {all: [x, y], none: [y]}}, minimize: Cost}\n",
            "p.yaml:6: spec.rules[0].when.tags.all[1]: the rule can never match: `y` must be there and must not \
             (remove it from `all` or from `none`)",
        ),
        (
            "  - {name: r, when: {tags: {any: [x], none: [x, y]}}, minimize: Cost}\n",
            "p.yaml:6: spec.rules[0].when.tags.any: the rule can never match: every tag of `any` is in `none` \
             (remove one from `none`)",
        ),
        (
            "  - {name: r, when: {models: []}, minimize: Cost}\n",
            "p.yaml:6: spec.rules[0].when.models: the rule can never match: an empty list has no match \
             (leave it out to mean any)",
        ),
        (
            "  - {name: r, when: {tenants: [a*, a*]}, minimize: Cost}\n",
            "p.yaml:6: spec.rules[0].when.tenants[1]: `a*` is there twice",
        ),
        (
            "  - {name: r, when: {pools: [{name: gpu, signal: QueuedRequests, atLeast: '3'}, \
             {name: gpu, signal: QueuedRequests, below: '3'}]}, reject: {}}\n",
            "p.yaml:6: spec.rules[0].when.pools[1]: the rule can never match: this excludes an earlier condition on \
             the same pool (all conditions of `when` must hold together)",
        ),
        (
            "  - {name: r, minimize: PredictedTTFT, ttftBudget: 1s}\n",
            "p.yaml:6: spec.rules[0].ttftBudget: has no effect (it goes with minimize: Cost)",
        ),
        (
            "  - {name: r, minimize: Cost, reject: {status: 403}}\n",
            "p.yaml:6: spec.rules[0].minimize: warning: has no effect (the rule rejects all that it matches)",
        ),
        (
            "  - {name: r, when: {models: ['glm-.*']}, candidates: {models: [glm]}}\n",
            "p.yaml:6: spec.rules[0].when.models[0]: warning: `glm-.*` looks like another kind of pattern \
             (only `*` is special, for any text)",
        ),
    ] {
        rules(text, &[expected]);
    }
    assert_eq!(said("", "", "   []\n", ""), ["p.yaml:5: spec.rules: warning: the policy has no rule"]);
}

#[test]
fn bounds_that_make_no_sense() {
    let worker = |bound: &str| format!("  - {{name: r, require: {{workers: [{{{bound}}}]}}}}\n");
    let pool = |bound: &str| format!("  - {{name: r, when: {{pools: [{{name: gpu, {bound}}}]}}, reject: {{}}}}\n");
    let (of_worker, of_pool) = ("p.yaml:6: spec.rules[0].require.workers[0]", "p.yaml:6: spec.rules[0].when.pools[0]");
    for (text, place, expected) in [
        (
            worker("signal: QueuedRequests, max: '2', below: '3'"),
            of_worker,
            ": max and below are given together (give exactly one of max, below, atLeast)",
        ),
        (
            worker("signal: QueuedRequests, max: 2"),
            of_worker,
            ".max: the number `2` where a number in quotes such as \"0.75\" belongs",
        ),
        (
            worker("signal: PredictedTTFT, max: '900', over: 10s"),
            of_worker,
            ".over: PredictedTTFT has no window (it is of the request at hand; remove `over`)",
        ),
        (
            worker("signal: PredictedTTFT, max: '2'"),
            of_worker,
            ".max: warning: 2 ms is less than any worker takes (PredictedTTFT is in milliseconds)",
        ),
        (
            worker("signal: QueuedRequests, max: '2', aggregate: Max"),
            of_worker,
            ".aggregate: Max needs a window (add one, such as over: 30s)",
        ),
        (worker("signal: QueuedRequests, max: '2', over: 1h"), of_worker, ".over: 1h is out of range (100ms to 15m)"),
        (
            worker("signal: QueuedRequests, max: '2', over: 30"),
            of_worker,
            ".over: the number `30` where a duration such as 250ms or 10s belongs",
        ),
        (
            worker("signal: KvCacheUsage, below: '70'"),
            of_worker,
            ".below: KvCacheUsage is never above 1 (write a share such as \"0.9\")",
        ),
        (worker("signal: RunningRequests, below: '0'"), of_worker, ".below: nothing is below 0 (write max: \"0\")"),
        (worker("signal: KvCacheUsage, max: '1'"), of_worker, ".max: warning: holds whenever the signal is known"),
        (
            worker("signal: QueueLength, max: '1'"),
            of_worker,
            ".signal: unknown value `QueueLength` (write QueuedRequests, RunningRequests, KvCacheUsage, PredictedTTFT)",
        ),
        (
            pool("signal: PredictedTTFT, max: '900'"),
            of_pool,
            ".signal: PredictedTTFT is of a request on a worker, no pool has one \
             (write QueuedRequests, RunningRequests or KvCacheUsage)",
        ),
    ] {
        rules(&text, &[&format!("{place}{expected}")]);
    }
}

#[test]
fn references_to_what_is_not_there_or_not_of_the_backend() {
    for (text, expected) in [
        (
            "  - {name: r, when: {pools: [{name: gpus, signal: KvCacheUsage, atLeast: '0.9'}]}, reject: {}}\n",
            "p.yaml:6: spec.rules[0].when.pools[0].name: there is no InferencePool `gpus` \
             (namespace default has gpu, spare)",
        ),
        (
            "  - {name: r, when: {pools: [{name: spare, signal: KvCacheUsage, atLeast: '0.9'}]}, reject: {}}\n",
            "p.yaml:6: spec.rules[0].when.pools[0].name: GatewayBackend main does not have `spare` \
             (add it to its spec.pools)",
        ),
        (
            "  - {name: r, require: {pools: [gpus]}}\n",
            "p.yaml:6: spec.rules[0].require.pools[0]: there is no InferencePool `gpus` (namespace default has gpu, spare)",
        ),
        (
            "  - {name: r, require: {providers: [other]}}\n",
            "p.yaml:6: spec.rules[0].require.providers[0]: GatewayBackend main does not have `other` \
             (add it to its spec.providers)",
        ),
    ] {
        rules(text, &[expected]);
    }
    let namespace = said(
        "metadata: {name: main}",
        "metadata: {name: main, namespace: team}",
        "  - {name: r, minimize: Cost}\n",
        "",
    );
    assert_eq!(
        namespace,
        [
            "fleet.yaml:5: spec.pools[0].name: there is no InferencePool `gpu` (namespace team has none)",
            "fleet.yaml:6: spec.providers[0].name: there is no InferenceProvider `cloud` (namespace team \
             has none)",
            "p.yaml:4: spec: warning: the policy is for no gateway backend (namespace default has none)"
        ]
    );
    let second = "pools: [{name: gpu}]\n---\napiVersion: kinference.dev/v1alpha1\nkind: GatewayBackend\n\
        metadata: {name: canary}\nspec:\n  pools: [{name: spare}]";
    let two = said("pools: [{name: gpu}]", second, "  - {name: r, require: {pools: [spare]}}\n", "");
    assert_eq!(
        two,
        ["p.yaml:6: spec.rules[0].require.pools[0]: warning: GatewayBackend main does not have \
             `spare` (add it to its spec.pools)"]
    );
}

#[test]
fn what_is_not_in_force_yet() {
    for (from, to, expected) in [
        (
            "[{header: {name: x-tenant}}]",
            "[{apiKey: {secretSelector: {matchLabels: {a: b}}}}]",
            vec![
                "fleet.yaml:7: spec.tenancy: warning: no request can be identified, so every one gets 401 \
             (identify tenants by a header that the gateway's front sets, or write unidentified: Allow)",
                "fleet.yaml:8: spec.tenancy.identify[0].apiKey: warning: identification by API key is not in \
             force yet (it identifies nobody)",
            ],
        ),
        (
            "[{header: {name: x-tenant}}]",
            "[{header: {name: x-tenant}}, {jwt: {payloadHeader: x-jwt, claim: team}}]",
            vec![
                "fleet.yaml:8: spec.tenancy.identify[1].jwt: warning: identification by JWT is not in force \
             yet (it identifies nobody)",
            ],
        ),
        (
            "[{header: {name: x-tenant}}]",
            "[{header: {name: x-tenant}}, {header: {name: x-team}}]",
            vec![
                "fleet.yaml:8: spec.tenancy.identify[1].header: warning: a second header is not in force yet \
             (only the first one identifies)",
            ],
        ),
        (
            "{name: research}",
            "{name: research, priority: 3, limits: {requestsPerMinute: 5}, models: [gml]}",
            vec![
                "fleet.yaml:9: spec.tenancy.tenants[0].limits: warning: a tenant's limits are not in force \
             yet (nothing is limited)",
                "fleet.yaml:9: spec.tenancy.tenants[0].models[0]: warning: no model and no alias matches \
             `gml` (did you mean `glm`?)",
                "fleet.yaml:9: spec.tenancy.tenants[0].priority: warning: a tenant's priority is not in \
             force yet (all tenants have the same)",
            ],
        ),
        (
            "{header: x-tags}",
            "{header: x-tags, classifiers: [{tag: pii, pii: {kinds: [Email]}}]}",
            vec![
                "fleet.yaml:10: spec.tags.classifiers[0]: warning: a classifier is not in force yet (the tag \
             `pii` comes only from the tags header)",
            ],
        ),
    ] {
        assert_eq!(said(from, to, "", ""), expected, "{from} -> {to}");
    }
}
