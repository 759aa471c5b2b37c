//! Answers: who gave them, what is told to the client, and what is reported.

use kinference_protocol::v1;
use kinference_wasm_tests::fleet::{Fleet, MODEL};
use kinference_wasm_tests::http::{Answer, Request};
use kinference_wasm_tests::{Exchange, Proxy};

use crate::{finished, first_tokens, serving, started};

const JSON: &str = r#"{"id":"x","choices":[{"message":{"content":"\"usage\":{}"}}],"usage":{"prompt_tokens":326,"total_tokens":334,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":320}},"kv_transfer_params":null}"#;

fn streaming(include_usage: bool) -> Request {
    let body = format!(
        r#"{{"model":"tiny","stream":true,"stream_options":{{"include_usage":{include_usage}}},"messages":[{{"role":"user","content":"hi"}}]}}"#
    );
    Request::post("/v1/chat/completions", body)
}

fn reports(proxy: &mut Proxy) -> Vec<v1::Report> {
    proxy.advance(300);
    proxy.take_reports(0)
}

fn worker_of(fleet: &Fleet, address: &str) -> u32 {
    fleet.workers.iter().find(|worker| worker.address == address).unwrap().id
}

/// Sends a request whose worker refuses connections; gives the worker and the exchange.
fn send_to_dead_worker(fleet: &Fleet, proxy: &mut Proxy, request: &Request) -> (u32, Exchange) {
    let probe = proxy.send(0, request);
    let address = proxy.forwarded(probe).unwrap().address;
    proxy.answer(probe, &Answer::json(200, JSON));
    reports(proxy);
    proxy.set_host(&address, false);
    (worker_of(fleet, &address), proxy.send(0, request))
}

#[test]
fn the_client_learns_which_model_answered() {
    let mut fleet = Fleet::new(2);
    fleet.backend().debug_headers = false;
    let mut proxy = serving(&fleet);
    let exchange = proxy.send(0, &Request::chat("tiny-sql", "hi"));
    proxy.answer(exchange, &Answer::json(200, JSON));
    let received = proxy.received(exchange);
    assert_eq!(received.body, JSON.as_bytes());
    assert_eq!(received.headers.text("x-kinference-model").as_deref(), Some("tiny-sql"));
    for name in ["destination", "predicted-cached-tokens", "predicted-ttft-ms", "epoch", "rule"] {
        assert_eq!(received.headers.get(&format!("x-kinference-{name}")), None);
    }
}

#[test]
fn debug_headers_explain_the_decision() {
    let mut fleet = Fleet::new(2);
    let prompt = "a prompt that is long enough for some chunks. ".repeat(40);
    fleet.cache(1, &Fleet::chat_text(&prompt));
    fleet.sequence = 3;
    let mut proxy = serving(&fleet);
    let exchange = proxy.send(0, &Request::chat(MODEL, &prompt));
    proxy.answer(exchange, &Answer::json(200, JSON));
    let headers = proxy.received(exchange).headers;
    let text = |name: &str| headers.text(&format!("x-kinference-{name}")).unwrap();
    assert_eq!(text("model"), MODEL);
    assert_eq!(text("destination"), "default/tiny/w1");
    assert_eq!(text("epoch"), "7:3");
    let whole_chunks = Fleet::chat_text(&prompt).len() / 256 * 256;
    assert_eq!(text("predicted-cached-tokens"), (whole_chunks / 4).to_string());
    let ttft: f32 = text("predicted-ttft-ms").parse().unwrap();
    assert!((20.0..60.0).contains(&ttft), "{ttft}");
}

#[test]
fn a_whole_answer_is_reported_with_its_usage() {
    let fleet = Fleet::new(2);
    let mut proxy = serving(&fleet);
    let exchange = proxy.send(0, &Request::completion(MODEL, &"x".repeat(4000)));
    let worker = worker_of(&fleet, &proxy.forwarded(exchange).unwrap().address);
    proxy.advance(90);
    proxy.answer(exchange, &Answer::json(200, JSON));
    let reports = reports(&mut proxy);

    let [(by, start)] = &started(&reports)[..] else { panic!("{reports:?}") };
    assert_eq!(*by, Some(worker));
    assert_eq!((start.model.as_str(), start.prompt_tokens, start.cached_tokens), (MODEL, 1000, 0));
    assert!(start.predicted_ttft_ms > 20.0);
    assert!(start.chunks.is_empty(), "the engine's events tell of its prefixes");
    let [(by, first)] = first_tokens(&reports)[..] else { panic!("{reports:?}") };
    assert_eq!((by, first.after_ms), (Some(worker), 90));
    let [(by, end)] = finished(&reports)[..] else { panic!("{reports:?}") };
    assert_eq!(by, Some(worker));
    let expected = v1::Finished {
        status: 200,
        after_ms: 90,
        prompt_tokens: Some(326),
        cached_tokens: Some(320),
        completion_tokens: Some(8),
        aborted: false,
        connect_failure: false,
    };
    assert_eq!(end, expected);
    assert!(reports.iter().all(|report| report.request == reports[0].request));
}

#[test]
fn usage_is_found_however_an_answer_is_cut() {
    let mut proxy = serving(&Fleet::new(1));
    for size in [1, 13, 100] {
        let exchange = proxy.send(0, &Request::completion(MODEL, "x"));
        let mut answer = Answer::json(200, "");
        answer.pieces = JSON.as_bytes().chunks(size).map(<[u8]>::to_vec).collect();
        proxy.answer(exchange, &answer);
        assert_eq!(finished(&reports(&mut proxy))[0].1.cached_tokens, Some(320), "pieces of {size}");
    }
    // Of a large piece, only the end can matter.
    let exchange = proxy.send(0, &Request::completion(MODEL, "x"));
    let large = format!("{{\"choices\":\"{}\",{}", "y".repeat(3 << 20), &JSON[1..]);
    proxy.answer(exchange, &Answer::json(200, &large));
    assert_eq!(finished(&reports(&mut proxy))[0].1.cached_tokens, Some(320));
}

#[test]
fn a_stream_is_reported_with_usage_only_when_it_was_asked_for() {
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}"#;
    let text =
        format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"a\"}}}}]}}\n\ndata: {usage}\n\ndata: [DONE]\n\n");
    for (asked, expected) in [(true, Some(3)), (false, None)] {
        for cut in [usize::MAX, 120, 17, 1] {
            let mut proxy = serving(&Fleet::new(1));
            let exchange = proxy.send(0, &streaming(asked));
            let pieces: Vec<&str> =
                text.as_bytes().chunks(cut.min(text.len())).map(|c| str::from_utf8(c).unwrap()).collect();
            proxy.answer(exchange, &Answer::events(&pieces));
            assert_eq!(proxy.received(exchange).body, text.as_bytes());
            let reports = reports(&mut proxy);
            assert_eq!(finished(&reports)[0].1.completion_tokens, expected, "pieces of {cut}");
            assert_eq!(first_tokens(&reports).len(), 1);
        }
    }
}

#[test]
fn the_first_token_is_the_first_byte_of_the_body() {
    let mut proxy = serving(&Fleet::new(1));
    let exchange = proxy.send(0, &streaming(false));
    proxy.advance(40);
    proxy.response_headers(exchange, &Answer::events(&[]).headers, false);
    proxy.advance(60);
    proxy.response_body(exchange, b"", false);
    assert!(first_tokens(&proxy.take_reports(0)).is_empty());
    proxy.response_body(exchange, b"data: 1\n\n", false);
    proxy.advance(500);
    let early = proxy.take_reports(0);
    assert_eq!(first_tokens(&early)[0].1.after_ms, 100, "reported while the answer goes on");
    proxy.response_body(exchange, b"data: 2\n\n", true);
    let late = reports(&mut proxy);
    assert!(first_tokens(&late).is_empty());
    assert_eq!(finished(&late)[0].1.after_ms, 600);
}

#[test]
fn answers_end_with_trailers_or_without_a_body_too() {
    let mut proxy = serving(&Fleet::new(1));
    let exchange = proxy.send(0, &streaming(true));
    proxy.answer(exchange, &Answer::events(&["data: x\n\n"]).with_trailers());
    assert!(!finished(&reports(&mut proxy))[0].1.aborted);

    let exchange = proxy.send(0, &streaming(true));
    let mut answer = Answer::json(204, "");
    answer.pieces.clear();
    proxy.answer(exchange, &answer);
    let reports = reports(&mut proxy);
    assert_eq!((finished(&reports)[0].1.status, finished(&reports)[0].1.aborted), (204, false));
    assert!(first_tokens(&reports).is_empty());
}

#[test]
fn a_worker_that_refuses_a_request_teaches_no_first_token() {
    let mut proxy = serving(&Fleet::new(1));
    let exchange = proxy.send(0, &streaming(true));
    proxy.answer(exchange, &Answer::json(400, r#"{"error":{"message":"too long"}}"#));
    assert_eq!(proxy.received(exchange).status, 400);
    let reports = reports(&mut proxy);
    assert!(first_tokens(&reports).is_empty());
    assert_eq!(finished(&reports)[0].1.status, 400);
}

#[test]
fn a_client_that_leaves_ends_its_request() {
    let mut proxy = serving(&Fleet::new(1));
    // Before the answer, and amid it.
    let exchange = proxy.send(0, &streaming(true));
    proxy.disconnect(exchange);
    let exchange = proxy.send(0, &streaming(true));
    proxy.response_headers(exchange, &Answer::events(&[]).headers, false);
    proxy.response_body(exchange, b"data: x\n\n", false);
    proxy.disconnect(exchange);
    let reports = reports(&mut proxy);
    let ends = finished(&reports);
    assert_eq!(ends.iter().map(|(_, end)| (end.status, end.aborted)).collect::<Vec<_>>(), [(0, true), (200, true)]);

    // Nothing is counted as running there any more.
    let exchange = proxy.send(0, &streaming(true));
    proxy.answer(exchange, &Answer::json(200, JSON));
    proxy.advance(300);
    assert_eq!(started(&proxy.take_reports(0))[0].1.running, 0);
}

#[test]
fn a_dead_worker_costs_no_request_and_is_avoided() {
    let fleet = Fleet::new(4);
    let mut proxy = serving(&fleet);
    let (dead, exchange) = send_to_dead_worker(&fleet, &mut proxy, &streaming(true));
    let forwarded = proxy.forwarded(exchange).unwrap();
    assert_eq!(forwarded.address, forwarded.destinations()[1]);
    let other = worker_of(&fleet, &forwarded.address);
    proxy.advance(50);
    proxy.answer(exchange, &Answer::json(200, JSON));
    let received = proxy.received(exchange);
    assert_eq!(received.status, 200);
    assert_eq!(received.headers.text("x-kinference-destination"), Some(format!("default/tiny/w{other}")));

    let reports = reports(&mut proxy);
    let ends: Vec<_> = finished(&reports).iter().map(|(worker, end)| (*worker, end.connect_failure)).collect();
    assert_eq!(ends, [(Some(dead), true), (Some(other), false)]);
    let starts: Vec<_> = started(&reports).iter().map(|(worker, _)| *worker).collect();
    assert_eq!(starts, [Some(dead), Some(other)]);
    assert!(first_tokens(&reports).is_empty(), "its time includes the failed attempt");

    for _ in 0..20 {
        let exchange = proxy.send(0, &streaming(true));
        let destinations = proxy.forwarded(exchange).unwrap().destinations();
        assert_ne!(worker_of(&fleet, &destinations[0]), dead);
        proxy.answer(exchange, &Answer::json(200, JSON));
    }
    assert_eq!(proxy.value("kinference_filter_connect_failures"), 1);
}

#[test]
fn a_request_that_moved_is_in_flight_where_it_went() {
    let fleet = Fleet::new(2);
    let mut proxy = serving(&fleet);
    let request = Request::chat(MODEL, &"x".repeat(40_000));
    let (dead, exchange) = send_to_dead_worker(&fleet, &mut proxy, &request);
    proxy.response_headers(exchange, &Answer::events(&[]).headers, false);
    let other = 1 - dead;
    // Back up: the busy one is the one that took the request over.
    proxy.set_host(&fleet.workers[dead as usize].address, true);
    proxy.advance(6_000);
    assert!(proxy.push(0, &fleet.heartbeat()));
    let next = proxy.send(0, &Request::chat(MODEL, &"y".repeat(40_000)));
    assert_ne!(worker_of(&fleet, &proxy.forwarded(next).unwrap().address), other);
}

#[test]
fn a_whole_answer_is_not_queued_prefill_until_its_end() {
    let fleet = Fleet::new(1);
    let mut proxy = serving(&fleet);
    reports(&mut proxy);
    let exchange = proxy.send(0, &Request::completion(MODEL, &"x".repeat(4_000)));
    let estimated: Vec<_> = reports(&mut proxy)
        .into_iter()
        .filter_map(|report| match report.event {
            Some(v1::report::Event::FirstToken(first)) => Some(first.estimated),
            _ => None,
        })
        .collect();
    assert_eq!(estimated, [true]);
    proxy.answer(exchange, &Answer::json(200, JSON));
}

#[test]
fn the_first_byte_of_a_whole_answer_is_a_first_token_only_where_there_is_no_second() {
    let fleet = Fleet::new(1);
    let mut proxy = serving(&fleet);
    for (tokens, seen) in [(1, 1), (2, 0)] {
        let exchange = proxy.send(0, &Request::completion(MODEL, "hi"));
        proxy.advance(400);
        // 300 more.
        reports(&mut proxy);
        let body = format!(r#"{{"usage":{{"prompt_tokens":9,"completion_tokens":{tokens}}}}}"#);
        let mut answer = Answer::json(200, &body);
        let piece = answer.pieces.remove(0);
        answer.pieces = vec![piece[..9].to_vec(), piece[9..].to_vec()];
        proxy.response_headers(exchange, &answer.headers, false);
        proxy.response_body(exchange, &answer.pieces[0], false);
        proxy.advance(40);
        proxy.response_body(exchange, &answer.pieces[1], true);
        let first: Vec<_> = reports(&mut proxy)
            .into_iter()
            .filter_map(|report| match report.event {
                Some(v1::report::Event::FirstToken(first)) if !first.estimated => Some(first.after_ms),
                _ => None,
            })
            .collect();
        assert_eq!(first.len(), seen, "{first:?}");
        assert!(first.iter().all(|after| *after == 700), "its first byte, not its last: {first:?}");
    }
}

#[test]
fn when_no_worker_can_be_reached_the_client_gets_503_and_all_are_suspect() {
    let fleet = Fleet::new(2);
    let mut proxy = serving(&fleet);
    for host in fleet.hosts() {
        proxy.set_host(&host, false);
    }
    let exchange = proxy.send(0, &streaming(true));
    assert_eq!(proxy.received(exchange).status, 503);
    let reports = reports(&mut proxy);
    let failed: Vec<_> = finished(&reports).into_iter().filter(|(_, end)| end.connect_failure).collect();
    assert_eq!(failed.len(), 2);
    // They are used all the same when nothing else is left, and trusted again once they answer.
    for host in fleet.hosts() {
        proxy.set_host(&host, true);
    }
    let exchange = proxy.send(0, &streaming(true));
    assert_eq!(proxy.forwarded(exchange).unwrap().destinations().len(), 2);
}

#[test]
fn a_host_that_the_proxy_does_not_know_yet_did_not_fail() {
    let fleet = Fleet::new(3);
    let mut proxy = serving(&fleet);
    let probe = proxy.send(0, &streaming(true));
    let unknown = proxy.forwarded(probe).unwrap().address;
    proxy.answer(probe, &Answer::json(200, JSON));
    reports(&mut proxy);
    proxy.remove_host(&unknown);
    let exchange = proxy.send(0, &streaming(true));
    proxy.answer(exchange, &Answer::json(200, JSON));
    let reports = reports(&mut proxy);
    assert!(finished(&reports).iter().all(|(_, end)| !end.connect_failure), "{reports:?}");
    assert_eq!(proxy.value("kinference_filter_connect_failures"), 0);
    let answering = worker_of(&fleet, &proxy.forwarded(exchange).unwrap().address);
    assert_eq!(finished(&reports).last().unwrap().0, Some(answering));
}

#[test]
fn a_worker_that_breaks_off_is_avoided() {
    let fleet = Fleet::new(3);
    let mut proxy = serving(&fleet);
    let exchange = proxy.send(0, &streaming(true));
    let broken = proxy.forwarded(exchange).unwrap().address;
    proxy.response_headers(exchange, &Answer::events(&[]).headers, false);
    proxy.response_body(exchange, b"data: x\n\n", false);
    proxy.break_upstream(exchange);
    assert!(finished(&reports(&mut proxy))[0].1.aborted);
    let exchange = proxy.send(0, &streaming(true));
    assert_ne!(proxy.forwarded(exchange).unwrap().destinations()[0], broken);
}
