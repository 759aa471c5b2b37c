//! Rules that never match or never count, and fallbacks that are never used.

use super::{rules, said};

#[test]
fn rules_that_never_match() {
    let tagless = said(
        "  tags: {header: x-tags}\n",
        "",
        "  - {name: r, when: {tags: {any: [pii]}}, require: {locality: Local}}\n",
        "",
    );
    assert_eq!(
        tagless,
        ["p.yaml:6: spec.rules[0].when.tags.any[0]: warning: no request ever has the tag `pii` (state \
             spec.tags of the gateway backend: a header of the gateway's front, or a classifier)"]
    );
    let nobody = said(
        "    identify: [{header: {name: x-tenant}}]\n",
        "    unidentified: Allow\n",
        "  - {name: r, when: {tenants: [research]}, minimize: Cost}\n",
        "",
    );
    assert_eq!(
        nobody,
        ["p.yaml:6: spec.rules[0].when.tenants: warning: the rule can never match: no request has a \
             tenant (state spec.tenancy.identify of the gateway backend)"]
    );
    rules(
        "  - {name: r, when: {models: [gml]}, minimize: Cost}\n",
        &["p.yaml:6: spec.rules[0].when.models[0]: warning: no model and no alias matches `gml` (did \
             you mean `glm`?)"],
    );
    rules(
        "  - {name: r, when: {tenants: [reserch]}, minimize: Cost}\n",
        &["p.yaml:6: spec.rules[0].when.tenants[0]: warning: no tenant `reserch` is listed (did you \
             mean `research`?)"],
    );
}

#[test]
fn candidates_and_fallbacks_that_are_never_used() {
    for (text, expected) in [
        (
            "  - {name: r, when: {models: [std]}, candidates: {models: [gml]}}\n",
            vec![
                "p.yaml:6: spec.rules[0].candidates.models[0]: warning: nobody serves `gml` (did you mean \
             `glm`?)",
            ],
        ),
        (
            "  - {name: r, when: {models: [std]}, candidates: {models: [llama]}}\n",
            vec![
                "p.yaml:6: spec.rules[0].candidates.models[0]: warning: nobody serves `llama` (known here: \
             glm)",
            ],
        ),
        (
            "  - {name: a, when: {models: [std]}, candidates: {models: [glm]}}\n  \
             - {name: b, when: {models: [new]}, candidates: {models: [std]}}\n",
            vec![
                "p.yaml:7: spec.rules[1].candidates.models[0]: `std` is an alias, and candidates are not \
             expanded again (name the models that it stands for)",
            ],
        ),
        (
            "  - {name: r, when: {models: [glm]}, candidates: {models: [qwen]}}\n",
            vec![
                "p.yaml:6: spec.rules[0].candidates.models[0]: warning: nobody serves `qwen` (known here: \
             glm)",
                "p.yaml:6: spec.rules[0].when.models[0]: warning: hides the model `glm` of worker set `big` \
             (add it to the candidates, or choose a name that no model has)",
            ],
        ),
        (
            "  - {name: r, require: {locality: Local}, fallback: [{providers: [cloud]}]}\n",
            vec![
                "p.yaml:6: spec.rules[0].fallback[0].providers[0]: `cloud` can never be used: the rule \
             requires locality Local (move the fallback to a rule of its own, or drop one of the two)",
            ],
        ),
        (
            "  - {name: r, require: {providers: []}, fallback: [{providers: [cloud]}]}\n",
            vec![
                "p.yaml:6: spec.rules[0].fallback[0].providers[0]: `cloud` can never be used: it is not of \
             the rule's require.providers (add it there, or drop the fallback)",
            ],
        ),
        (
            "  - {name: r, require: {locality: External}, fallback: [{models: [glm]}]}\n",
            vec![
                "p.yaml:6: spec.rules[0].fallback[0].models: these can never be used: the rule requires \
             locality External, and models are on workers (name providers instead)",
                "p.yaml:6: spec.rules[0].require.locality: warning: nothing can satisfy this: candidates are \
             workers, and no rule falls back to a provider (add a fallback with providers)",
            ],
        ),
        (
            "  - {name: r, require: {locality: External}}\n",
            vec![
                "p.yaml:6: spec.rules[0].require.locality: warning: nothing can satisfy this: candidates are \
             workers, and no rule falls back to a provider (add a fallback with providers)",
            ],
        ),
        (
            "  - {name: r, when: {models: [llama]}, fallback: [{providers: [cloud]}]}\n",
            vec![
                "p.yaml:6: spec.rules[0].fallback[0].providers[0]: warning: `cloud` does not offer llama (it \
             offers glm; name one in the tier's models)",
                "p.yaml:6: spec.rules[0].when.models[0]: warning: no model and no alias matches `llama` \
             (known here: glm)",
            ],
        ),
        (
            "  - {name: r, fallback: [{models: [gml]}]}\n",
            vec![
                "p.yaml:6: spec.rules[0].fallback[0].models[0]: warning: nobody serves `gml` (did you mean \
             `glm`?)",
            ],
        ),
        (
            "  - {name: r, fallback: [{}]}\n",
            vec!["p.yaml:6: spec.rules[0].fallback[0]: an empty tier (name providers or models)"],
        ),
        (
            "  - {name: r, when: {models: [glm]}, require: {pools: []}}\n",
            vec![
                "p.yaml:6: spec.rules[0].require.pools: warning: no worker of glm is in these pools (name a \
             pool that serves it)",
            ],
        ),
        (
            "  - {name: a, when: {models: [glm]}, fallback: [{providers: [cloud]}]}\n  \
             - {name: b, require: {locality: Local}}\n",
            vec![
                "p.yaml:6: spec.rules[0].fallback[0].providers[0]: warning: `cloud` can never be used: rule \
             `p/b` forbids it for all that this one matches (what one rule forbids, no other rule brings \
             back)",
            ],
        ),
    ] {
        rules(text, &expected);
    }
    let offers = said(
        "models: [{name: glm}]",
        "models: [{name: llama}]",
        "  - {name: r, when: {models: [std]}, candidates: {models: [llama]}}\n",
        "",
    );
    assert_eq!(
        offers,
        ["p.yaml:6: spec.rules[0].candidates.models[0]: warning: candidates are workers, and only \
             providers offer `llama` (add a fallback to one of them)"]
    );
    let outside = said(
        "pools: [{name: gpu}]",
        "pools: [{name: gpu}, {name: spare}]",
        "  - {name: r, require: {pools: [gpu]}, fallback: [{models: [qwen]}]}\n",
        "",
    );
    assert_eq!(
        outside,
        ["p.yaml:6: spec.rules[0].fallback[0].models[0]: warning: can never be used: no worker of \
             qwen is in the rule's require.pools (add a pool that serves it)"]
    );
    rules(
        "  - {name: r, fallback: [{providers: [other]}]}\n",
        &["p.yaml:6: spec.rules[0].fallback[0].providers[0]: GatewayBackend main does not have `other` \
             (add it to its spec.providers)"],
    );
}

#[test]
fn rules_that_never_count() {
    for (text, expected) in [
        (
            "  - {name: a, minimize: Cost}\n  - {name: b, when: {models: [glm]}, minimize: QueuedRequests}\n",
            vec![
                "p.yaml:7: spec.rules[1]: warning: always shadowed: rule `p/a` comes first and matches all \
             that this one does (put this rule before it, or narrow the other's `when`)",
            ],
        ),
        (
            "  - {name: a, when: {models: ['*']}, onEmpty: {action: Continue}}\n  \
             - {name: b, require: {locality: Local}, onEmpty: {action: Reject}}\n",
            vec![
                "p.yaml:7: spec.rules[1].onEmpty: warning: never counts: rule `p/a` comes first and matches \
             all that this one does (put this rule before it, or narrow the other's `when`)",
            ],
        ),
        (
            "  - {name: a, when: {models: [glm]}, minimize: Cost}\n  - {name: b, when: {models: ['gl*']}, reject: {}}\n",
            vec![
                "p.yaml:6: spec.rules[0]: warning: never counts: rule `p/b` rejects all that this one \
             matches (remove it, or narrow the other's `when`)",
            ],
        ),
    ] {
        rules(text, &expected);
    }
}
