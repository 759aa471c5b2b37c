//! Requests: what is routed, what is answered here, and that clients' bytes arrive as they were sent.

use kinference_protocol::v1;
use kinference_wasm_tests::fleet::{Fleet, MODEL, worker};
use kinference_wasm_tests::http::{Headers, Request};

use crate::{connected, serving};

#[test]
fn a_request_goes_to_a_worker_and_names_the_next_best() {
    let fleet = Fleet::new(5);
    let mut proxy = serving(&fleet);
    let exchange = proxy.send(0, &Request::chat(MODEL, "hello"));
    let forwarded = proxy.forwarded(exchange).unwrap();
    let destinations = forwarded.destinations();
    assert_eq!(destinations.len(), 3);
    assert_eq!(forwarded.address, destinations[0]);
    assert!(forwarded.complete);
    for destination in &destinations {
        assert!(fleet.hosts().contains(destination));
        assert_eq!(destinations.iter().filter(|other| *other == destination).count(), 1);
    }
    assert_eq!(proxy.value("kinference_filter_decisions"), 1);
}

#[test]
fn every_byte_of_a_body_arrives_as_it_was_sent() {
    let fleet = Fleet::new(2);
    let mut proxy = serving(&fleet);
    let bodies: [&[u8]; 5] = [
        br#"{"messages":[{"content":"<>&\u003c","role":"user"}],"model":"tiny"}"#,
        br#"{ "model" : "tiny" , "seed":9007199254740993, "temperature":1.0, "top_p":1e0, "prompt":"x" }"#,
        br#"{"model":"other","model":"tiny","prompt":"a","prompt":"b"}"#,
        "{\"model\":\"tiny\",\"prompt\":\"\u{e9}\\u00e9\\ud83d\\ude00\u{1f600}\"}\n\n".as_bytes(),
        br#"{"model":"\u0074iny","prompt":["a","b"],"x":-0,"y":1E400}"#,
    ];
    for body in bodies {
        for size in [1, 7, body.len()] {
            let exchange = proxy.send(0, &Request::post("/v1/completions", body).cut(size));
            let forwarded = proxy.forwarded(exchange).unwrap();
            assert_eq!(forwarded.body, body, "{}", String::from_utf8_lossy(body));
            assert_eq!(forwarded.headers.text("content-length"), Some(body.len().to_string()));
        }
    }
}

#[test]
fn a_client_never_chooses_the_worker() {
    let fleet = Fleet::new(3);
    let spoofed = |request: Request| {
        request
            .with("x-gateway-destination-endpoint", "6.6.6.6:80")
            .with("X-Gateway-Destination-Endpoint", "10.0.0.3:8000")
            .with("x-data-parallel-rank", "5")
    };
    let mut proxy = serving(&fleet);
    let exchange = proxy.send(0, &spoofed(Request::chat(MODEL, "hi")));
    let forwarded = proxy.forwarded(exchange).unwrap();
    assert_eq!(forwarded.destinations().len(), 3);
    assert!(!forwarded.destinations().contains(&"6.6.6.6:80".to_owned()));
    assert_eq!(forwarded.headers.get("x-data-parallel-rank"), None);

    // Where nothing is decided, the proxy picks, not the client.
    let mut proxy = connected(&fleet, 1);
    for request in [Request::chat(MODEL, "hi"), Request::new("GET", "/v1/models")] {
        let exchange = proxy.send(0, &spoofed(request));
        assert!(proxy.forwarded(exchange).unwrap().destinations().is_empty());
    }
}

#[test]
fn models_are_listed_here() {
    let mut fleet = Fleet::new(1);
    let other = v1::WorkerSet { id: 2, name: "default/large".into(), model: "large".into(), ..fleet.set().clone() };
    fleet.config.worker_sets.push(v1::WorkerSet { adapters: Vec::new(), ..other });
    let mut proxy = serving(&fleet);
    for path in ["/v1/models", "/v1/models/", "/v1/models?x=1"] {
        let exchange = proxy.send(0, &Request::new("GET", path));
        let received = proxy.received(exchange);
        assert_eq!((received.status, received.complete), (200, true));
        assert_eq!(received.headers.text("content-type").as_deref(), Some("application/json"));
        let list = received.json();
        assert_eq!(list["object"], "list");
        let ids: Vec<&str> =
            list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
        assert_eq!(ids, ["large", "tiny", "tiny-sql"]);
        assert!(proxy.forwarded(exchange).is_none());
    }
}

#[test]
fn other_paths_and_methods_are_refused() {
    let mut proxy = serving(&Fleet::new(1));
    let cases = [
        ("GET", "/", 404, "unknown_url"),
        ("POST", "/v1/files", 404, "unknown_url"),
        ("POST", "/v1/chat/completionsx", 404, "unknown_url"),
        ("GET", "/metrics", 404, "unknown_url"),
        ("GET", "/v1/chat/completions", 405, "method_not_supported"),
        ("POST", "/v1/models", 405, "method_not_supported"),
    ];
    for (method, path, status, code) in cases {
        let exchange = proxy.send(0, &Request::new(method, path));
        let received = proxy.received(exchange);
        assert_eq!(
            (received.status, received.json()["error"]["code"].as_str()),
            (status, Some(code)),
            "{method} {path}"
        );
        assert!(proxy.forwarded(exchange).is_none());
    }
}

#[test]
fn all_routed_paths_are_routed() {
    let mut proxy = serving(&Fleet::new(2));
    for path in
        ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/chat/completions/", "/v1/completions?a=b"]
    {
        let exchange = proxy.send(0, &Request::post(path, r#"{"model":"tiny","input":"x","messages":[]}"#));
        assert_eq!(proxy.forwarded(exchange).unwrap().destinations().len(), 2, "{path}");
    }
}

#[test]
fn bad_requests_are_told_what_is_wrong() {
    let mut proxy = serving(&Fleet::new(1));
    let cases: [(&[u8], &str, Option<&str>); 9] = [
        (b"", "empty", None),
        (b"  \n", "empty", None),
        (b"{\"model\":\"tiny\",", "ends early", None),
        (b"[1]", "not an object", None),
        (b"hello secret", "syntax error", None),
        (b"{\"prompt\":\"x\"}", "names no model", Some("model")),
        (b"{\"model\":7}", "non-empty string", Some("model")),
        (b"{\"model\":\"\"}", "non-empty string", Some("model")),
        (b"{\"model\":\"tiny\"}x", "syntax error", None),
    ];
    for (body, message, param) in cases {
        let exchange = proxy.send(0, &Request::post("/v1/completions", body));
        let received = proxy.received(exchange);
        let error = &received.json()["error"];
        assert_eq!(received.status, 400);
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(error["param"].as_str(), param);
        assert!(error["message"].as_str().unwrap().contains(message), "{error}");
        assert!(!error["message"].as_str().unwrap().contains("secret"));
        assert!(proxy.forwarded(exchange).is_none());
    }
    let exchange = proxy.send(0, &Request::new("POST", "/v1/completions"));
    assert_eq!(proxy.received(exchange).status, 400, "a request without a body at all");
    assert_eq!(proxy.value("kinference_filter_rejected_invalid"), 10);
}

#[test]
fn deeply_nested_bodies_do_no_harm() {
    let mut proxy = serving(&Fleet::new(1));
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let nested = format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
        for field in ["messages", "tools", "x", "model"] {
            let body = format!("{{\"model\":\"tiny\",\"{field}\":{nested}}}");
            let exchange = proxy.send(0, &Request::post("/v1/chat/completions", body));
            assert!(proxy.forwarded(exchange).is_some() || proxy.received(exchange).status == 400);
        }
    }
    let exchange = proxy.send(0, &Request::chat(MODEL, "still there"));
    assert!(proxy.forwarded(exchange).is_some());
}

#[test]
fn an_unknown_model_is_not_found() {
    let mut proxy = serving(&Fleet::new(2));
    let exchange = proxy.send(0, &Request::chat("no-such-model", "hi"));
    let received = proxy.received(exchange);
    assert_eq!(received.status, 404);
    assert_eq!(received.json()["error"]["code"], "model_not_found");
    assert_eq!(received.json()["error"]["param"], "model");
    assert!(proxy.forwarded(exchange).is_none());
    assert_eq!(proxy.value("kinference_filter_rejected_model"), 1);
}

#[test]
fn a_model_without_workers_is_unavailable() {
    let mut fleet = Fleet::new(2);
    for worker in &mut fleet.workers {
        worker.set_state(v1::WorkerState::Unready);
    }
    let mut proxy = serving(&fleet);
    let exchange = proxy.send(0, &Request::chat(MODEL, "hi"));
    let received = proxy.received(exchange);
    assert_eq!((received.status, received.headers.text("retry-after").as_deref()), (503, Some("1")));
    assert_eq!(received.json()["error"]["code"], "no_workers");
}

#[test]
fn a_rank_is_asked_for() {
    let mut fleet = Fleet::new(0);
    for rank in 0..2 {
        let mut worker = worker(rank, 1);
        worker.address = "[fd00::8]:8000".into();
        worker.data_parallel_rank = Some(rank);
        worker.load.as_mut().unwrap().strangers = if rank == 0 { 50.0 } else { 0.0 };
        fleet.workers.push(worker);
    }
    let mut proxy = serving(&fleet);
    let exchange = proxy.send(0, &Request::chat(MODEL, "hi").with("x-data-parallel-rank", "0"));
    let forwarded = proxy.forwarded(exchange).unwrap();
    assert_eq!(forwarded.headers.text("x-data-parallel-rank").as_deref(), Some("1"));
    assert_eq!(forwarded.destinations(), ["[fd00::8]:8000"]);
}

#[test]
fn headers_that_are_not_text_are_handled() {
    let mut proxy = serving(&Fleet::new(1));
    let raw = |name: &str| Request::chat(MODEL, "hi").with(name, [0xff, 0xfe, b'1']);
    let exchange = proxy.send(0, &raw("x-anything"));
    let forwarded = proxy.forwarded(exchange).unwrap();
    assert_eq!(forwarded.headers.get("x-anything").unwrap(), [0xff, 0xfe, b'1']);

    let exchange = proxy.send(0, &raw("content-length"));
    assert!(proxy.forwarded(exchange).is_some());

    for name in [":path", ":method"] {
        let mut request = Request::chat(MODEL, "hi");
        request.headers.set(name, &[b'/', 0xff]);
        let exchange = proxy.send(0, &request);
        assert!(matches!(proxy.received(exchange).status, 404 | 405));
    }
    let exchange = proxy.open(0);
    proxy.request_headers(exchange, &Headers::default(), true);
    assert_eq!(proxy.received(exchange).status, 404, "no headers at all");
}
