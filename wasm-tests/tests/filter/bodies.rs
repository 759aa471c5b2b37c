//! Bodies: in pieces, cut off, with trailers, too large.

use kinference_wasm_tests::fleet::{Fleet, MODEL};
use kinference_wasm_tests::http::{Answer, Request};
use kinference_wasm_tests::{Options, Proxy};

use crate::{connected, finished, serving, serving_as, started};

/// A completion request whose body has exactly `bytes` bytes.
fn of_size(bytes: usize) -> Request {
    let frame = r#"{"model":"tiny","prompt":""}"#.len();
    Request::post("/v1/completions", format!(r#"{{"model":"tiny","prompt":"{}"}}"#, "x".repeat(bytes - frame)))
}

#[test]
fn nothing_is_sent_on_before_the_body_is_complete() {
    let mut proxy = serving(&Fleet::new(1));
    let request = Request::chat(MODEL, "hello there");
    let body = request.pieces.concat();
    let exchange = proxy.open(0);
    proxy.request_headers(exchange, &request.headers, false);
    proxy.request_body(exchange, &body[..10], false);
    assert!(proxy.forwarded(exchange).is_none());
    proxy.request_body(exchange, &body[10..], true);
    assert_eq!(proxy.forwarded(exchange).unwrap().body, body);
}

#[test]
fn a_body_may_end_with_an_empty_piece_or_with_trailers() {
    let mut proxy = serving(&Fleet::new(1));
    let request = Request::chat(MODEL, "hello there");
    let mut with_empty_end = request.clone().chunked();
    with_empty_end.pieces.push(Vec::new());
    for request in [with_empty_end, request.clone().with_trailers(), request.clone().cut(5).with_trailers()] {
        let exchange = proxy.send(0, &request);
        let forwarded = proxy.forwarded(exchange).unwrap();
        assert_eq!((forwarded.body, forwarded.complete), (request.pieces.concat(), true));
    }
    // Trailers alone.
    let mut request = Request::new("POST", "/v1/completions");
    request.trailers = true;
    let exchange = proxy.send(0, &request);
    assert_eq!(proxy.received(exchange).status, 400);
}

#[test]
fn a_body_that_is_cut_off_leaves_nothing_behind() {
    let mut proxy = serving(&Fleet::new(1));
    let request = Request::chat(MODEL, "hello there");
    let exchange = proxy.open(0);
    proxy.request_headers(exchange, &request.headers, false);
    proxy.request_body(exchange, &request.pieces[0][..10], false);
    proxy.disconnect(exchange);
    assert!(proxy.forwarded(exchange).is_none());
    proxy.advance(1000);
    assert!(proxy.take_reports(0).is_empty());

    let exchange = proxy.send(0, &request);
    assert!(proxy.forwarded(exchange).is_some());
}

#[test]
fn the_proxy_may_answer_before_the_body_is_complete() {
    let mut proxy = Proxy::start(Options { hosts: Fleet::new(1).hosts(), buffer_limit: 1000, ..Options::default() })
        .unwrap()
        .unwrap();
    proxy.advance(100);
    assert!(proxy.push(0, &Fleet::new(1).full()));
    let exchange = proxy.send(0, &of_size(5000).cut(600));
    assert_eq!(proxy.received(exchange).status, 413);
    assert!(proxy.forwarded(exchange).is_none());
    proxy.advance(1000);
    assert!(proxy.take_reports(0).is_empty());
}

#[test]
fn an_announced_body_that_is_too_large_is_refused_unseen() {
    let mut fleet = Fleet::new(1);
    fleet.backend().request_body_limit = 10_000;
    let mut proxy = serving(&fleet);
    let exchange = proxy.open(0);
    proxy.request_headers(exchange, &of_size(10_001).headers, false);
    let received = proxy.received(exchange);
    assert_eq!(received.status, 413);
    assert_eq!(received.json()["error"]["code"], "request_too_large");
    assert!(received.json()["error"]["message"].as_str().unwrap().contains("10000"));
    let exchange = proxy.send(0, &of_size(10_000));
    assert!(proxy.forwarded(exchange).is_some());
}

#[test]
fn a_body_that_grows_too_large_is_refused_before_memory_is_harmed() {
    let mut proxy = serving(&Fleet::new(1));
    let before = proxy.memory_bytes(0);
    let exchange = proxy.open(0);
    proxy.request_headers(exchange, &of_size(100).chunked().headers, false);
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..60 {
        proxy.request_body(exchange, &piece, false);
    }
    let received = proxy.received(exchange);
    assert_eq!((received.status, received.complete), (413, true));
    assert!(proxy.forwarded(exchange).is_none());
    assert_eq!(proxy.memory_bytes(0), before);
    assert_eq!(proxy.value("kinference_filter_rejected_too_large"), 1);
}

#[test]
fn eight_mebibytes_pass_byte_for_byte() {
    let mut fleet = Fleet::new(3);
    let mut proxy = serving(&fleet);
    let request = of_size(8 << 20);
    let exchange = proxy.send(0, &request.clone().cut(64 << 10));
    assert!(proxy.forwarded(exchange).unwrap().body == request.pieces.concat());
    let exchange = proxy.send(0, &of_size((8 << 20) + 1));
    assert_eq!(proxy.received(exchange).status, 413);

    // The limit is the snapshot's.
    fleet.backend().request_body_limit = 16 << 20;
    fleet.epoch += 1;
    assert!(proxy.push(0, &fleet.full()));
    let exchange = proxy.send(0, &of_size(12 << 20));
    assert!(proxy.forwarded(exchange).is_some());
}

/// A quarter of what a VM may have; the copy of the largest body takes half of it.
const MOST_MEMORY: usize = 256 << 20;
/// Largest body that a GatewayBackend may ask for.
const LARGEST_BODY: usize = 128 << 20;

/// A request for a chat of `bytes` bytes that is made of `piece` over and over.
fn filled(bytes: usize, before: &str, piece: &str, after: &str) -> Request {
    let (head, tail) = (format!(r#"{{"model":"tiny",{before}"#), format!("{after}}}"));
    let times = (bytes - head.len() - tail.len()) / piece.len();
    Request::post("/v1/chat/completions", format!("{head}{}{tail}", piece.repeat(times)))
}

/// Bodies of few bytes that could become much in memory.
fn swelling(bytes: usize) -> Vec<Request> {
    let user = r#""messages":[{"role":"user","content":"#;
    let call = r#""messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":""#;
    vec![
        filled(bytes, r#""messages":[],"tools":""#, "x", r#"""#),
        filled(bytes, r#""messages":[],"tools":["#, "0,", "0]"),
        filled(bytes, r#""messages":[],"tools":["#, "{},", "{}]"),
        filled(bytes, r#""messages":[],"documents":["#, "[],", "[]]"),
        filled(bytes, r#""messages":[],"stream_options":["#, "0,", "0]"),
        filled(bytes, r#""messages":["#, r#"{"role":""},"#, r#"{"role":""}]"#),
        filled(bytes, &format!("{user}["), r#""","#, r#"""]}]"#),
        filled(bytes, &format!("{user}["), "{},", "{}]}]"),
        filled(bytes, &format!("{user}\""), r"\n", r#""}]"#),
        filled(bytes, &format!("{call}["), "0,", r#"0]"}}]}]"#),
    ]
}

#[test]
fn no_body_takes_more_memory_than_a_vm_has() {
    let fleet = Fleet::new(3);
    let mut proxy = serving(&fleet);
    for (number, request) in swelling(8 << 20).iter().enumerate() {
        let exchange = proxy.send(0, request);
        assert!(proxy.forwarded(exchange).is_some(), "body {number}");
        proxy.answer(exchange, &Answer::json(200, "{}"));
        assert!(proxy.memory_bytes(0) < MOST_MEMORY, "{} MiB after body {number}", proxy.memory_bytes(0) >> 20);
    }
}

#[test]
fn the_largest_bodies_that_may_be_asked_for_pass() {
    let mut fleet = Fleet::new(1);
    fleet.backend().request_body_limit = LARGEST_BODY as u64;
    let mut proxy =
        serving_as(&fleet, Options { buffer_limit: LARGEST_BODY, hosts: fleet.hosts(), ..Options::default() });
    let words = filled(LARGEST_BODY, r#""messages":[{"role":"user","content":""#, "word ", r#""}]"#);
    let tools = filled(LARGEST_BODY, r#""messages":[],"tools":["#, "{},", "{}]");
    let mut nonsense = of_size(LARGEST_BODY);
    let middle = LARGEST_BODY / 2;
    nonsense.pieces[0][middle..middle + 1000].fill(0xff);
    for (number, request) in [words, tools, nonsense].into_iter().enumerate() {
        let exchange = proxy.send(0, &request.clone().cut(1 << 20));
        let sent = proxy.forwarded(exchange).is_some_and(|sent| sent.body == request.pieces.concat());
        assert!(sent, "body {number}: status {}, {:?}", proxy.received(exchange).status, proxy.trap(0));
        proxy.answer(exchange, &Answer::json(200, "{}"));
        proxy.forget(exchange);
        assert!(proxy.memory_bytes(0) < MOST_MEMORY, "{} MiB after body {number}", proxy.memory_bytes(0) >> 20);
    }
}

#[test]
fn a_limit_holds_before_the_first_snapshot() {
    let mut proxy = connected(&Fleet::new(1), 1);
    let exchange = proxy.open(0);
    proxy.request_headers(exchange, &of_size((8 << 20) + 1).headers, false);
    assert_eq!(proxy.received(exchange).status, 413);
    let exchange = proxy.send(0, &of_size(8 << 20).chunked().cut(1 << 20));
    assert!(proxy.forwarded(exchange).is_some());
}

#[test]
fn without_stop_iteration_requests_hang() {
    // Envoy's behaviour that `allow_on_headers_stop_iteration` is there for; the generated configuration must set it.
    let fleet = Fleet::new(1);
    let options = Options { hosts: fleet.hosts(), stop_iteration: false, ..Options::default() };
    let mut proxy = Proxy::start(options).unwrap().unwrap();
    let exchange = proxy.send(0, &Request::chat(MODEL, "hi"));
    assert!(proxy.forwarded(exchange).is_none());
    assert_eq!(proxy.received(exchange).status, 0);
}

#[test]
fn the_answer_may_come_before_the_request_is_over() {
    let mut proxy = serving(&Fleet::new(1));
    let exchange = proxy.send(0, &Request::chat(MODEL, "hi"));
    proxy.answer(exchange, &Answer::json(500, r#"{"error":"x"}"#));
    assert_eq!(proxy.received(exchange).status, 500);
    proxy.advance(1000);
    let reports = proxy.take_reports(0);
    assert_eq!((started(&reports).len(), finished(&reports).len()), (1, 1));
}
