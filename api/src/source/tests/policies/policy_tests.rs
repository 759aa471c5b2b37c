//! Policy tests of what is not there, or that expect what cannot be.

use super::said;

#[test]
fn tests_of_what_is_not_there_or_cannot_be() {
    let case = |case: &str| format!("cases:\n- {{name: c, {case}}}\n");
    for (test, expected) in [
        (case("request: {model: glm}, expect: {worker: big/a}"), vec![]),
        (
            case("request: {model: glm, promptToken: 9}, expect: {worker: big/a}"),
            vec!["t.yaml:5: cases[0].request.promptToken: unknown field (did you mean `promptTokens`?)"],
        ),
        (
            case("request: {model: glm}, expects: {worker: big/a}"),
            vec![
                "t.yaml:5: cases[0].expect: missing (the field is required)",
                "t.yaml:5: cases[0].expects: unknown field (did you mean `expect`?)",
            ],
        ),
        (
            case("request: {model: glm}, expect: {}"),
            vec![
                "t.yaml:5: cases[0].expect: nothing is expected (state worker, workerSet, provider, model, \
             rule, rejected or not)",
            ],
        ),
        (
            case("request: {model: glm}, expect: {not: {workers: big/a}}"),
            vec![
                "t.yaml:5: cases[0].expect.not: nothing is expected (state worker, workerSet, provider, \
             model, rule, rejected or not)",
                "t.yaml:5: cases[0].expect.not.workers: unknown field (did you mean `worker`?)",
            ],
        ),
        (
            case("request: {model: glm}, expect: {worker: big/a, provider: cloud}"),
            vec!["t.yaml:5: cases[0].expect: a worker and a provider together (a request goes to one of them)"],
        ),
        (
            case("request: {model: glm}, expect: {rejected: {status: 200}}"),
            vec!["t.yaml:5: cases[0].expect.rejected.status: 200 is out of range (400 to 599)"],
        ),
        (
            case("request: {model: glm}, expect: {rejected: {}, model: glm}"),
            vec![
                "t.yaml:5: cases[0].expect.rejected: a rejection and a place together (a rejected request \
             goes nowhere)",
            ],
        ),
        (
            case("request: {model: glm}, expect: {worker: bug/a}"),
            vec![
                "t.yaml:5: cases[0].expect.worker: GatewayBackend main has no worker set `bug` (did you mean \
             `big`?)",
            ],
        ),
        (
            case("request: {model: glm}, expect: {worker: big/b}"),
            vec!["t.yaml:5: cases[0].expect.worker: worker set `big` has no worker `b` (known here: a)"],
        ),
        (
            case("request: {model: glm}, expect: {worker: big}"),
            vec!["t.yaml:5: cases[0].expect.worker: `big` is no worker (write <worker set>/<worker>)"],
        ),
        (
            case("request: {model: glm}, expect: {worker: big/a/1}"),
            vec!["t.yaml:5: cases[0].expect.worker: `a` has no rank `1` (it has 1, from 0)"],
        ),
        (
            case("request: {model: glm}, expect: {provider: other}"),
            vec![
                "t.yaml:5: cases[0].expect.provider: GatewayBackend main has no provider `other` (known \
             here: cloud)",
            ],
        ),
        (
            case("request: {model: glm}, expect: {rule: rr}"),
            vec!["t.yaml:5: cases[0].expect.rule: there is no rule `rr` (did you mean `r`?)"],
        ),
        (
            case("request: {model: glm}, expect: {workerSet: small}"),
            vec![
                "t.yaml:5: cases[0].expect.workerSet: GatewayBackend main has no worker set `small` (known \
             here: big)",
            ],
        ),
        (
            case("request: {model: glm}, state: {workers: {big/a: {kvCacheUsage: 40}}}, expect: {model: glm}"),
            vec!["t.yaml:5: cases[0].state.workers[\"big/a\"].kvCacheUsage: 40 is out of range (0 to 1)"],
        ),
        (
            case("request: {model: glm}, state: {workers: {big/a: {queued: 1}}}, expect: {model: glm}"),
            vec![
                "t.yaml:5: cases[0].state.workers[\"big/a\"].queued: unknown field (did you mean \
             `queuedRequests`?)",
            ],
        ),
        (
            case(
                "request: {model: glm}, state: {workers: {big/a: {history: {queuedRequests: [[20s, 1]]}}}}, expect: {model: glm}",
            ),
            vec![
                "t.yaml:5: cases[0].state.workers[\"big/a\"].history.queuedRequests[0][0]: `20s` is not \
             before now (write it with a minus, such as -20s)",
            ],
        ),
        (
            case(
                "request: {model: glm}, state: {workers: {big/a: {history: {queuedRequests: [[-20s, -1]]}}}}, expect: {model: glm}",
            ),
            vec![
                "t.yaml:5: cases[0].state.workers[\"big/a\"].history.queuedRequests[0][1]: -1 is out of \
             range (0 or more)",
            ],
        ),
        (
            case("request: {model: glm}, state: {provider: {}}, expect: {model: glm}"),
            vec!["t.yaml:5: cases[0].state.provider: unknown field (did you mean `providers`?)"],
        ),
        (
            "gatewayBackend: mian\n".to_string() + &case("request: {model: glm}, expect: {model: glm}"),
            vec!["t.yaml:4: gatewayBackend: there is no GatewayBackend `mian` (namespace default has main)"],
        ),
        (
            "case: []\n".to_string(),
            vec![
                "t.yaml:1: cases: missing (the field is required)",
                "t.yaml:4: case: unknown field (did you mean `cases`?)",
            ],
        ),
        ("cases: []\n".to_string(), vec!["t.yaml:4: cases: the test has no case"]),
        (
            case("request: {model: glm}, expect: {model: glm}")
                + "- {name: c, request: {model: glm}, expect: {model: glm}}\n",
            vec!["t.yaml:6: cases[1].name: `c` is there twice"],
        ),
    ] {
        assert_eq!(said("", "", "  - {name: r, minimize: Cost}\n", &test), expected, "{test}");
    }
}
