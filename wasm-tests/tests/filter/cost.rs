//! What it costs: fuel of a decision and of a streamed piece, memory over many requests.

use kinference_wasm_tests::fleet::{Fleet, MODEL};
use kinference_wasm_tests::fuel;
use kinference_wasm_tests::http::{Answer, Request};

use crate::serving;

#[test]
fn decisions_are_as_cheap_as_the_table_says() {
    let measured = fuel::measure().unwrap();
    let kept = fuel::kept().unwrap();
    print!("{}", fuel::table(&measured, &kept));
    fuel::check(&measured, &kept).unwrap();
}

#[test]
fn memory_does_not_grow_with_requests() {
    let fleet = Fleet::new(4);
    let mut proxy = serving(&fleet);
    let mut after_warm_up = 0;
    for i in 0..20_000u64 {
        let text = format!("{i} {}", fuel::prose(600 + (i % 50) as usize * 20));
        let exchange = proxy.send(0, &Request::chat(MODEL, &text));
        match i % 10 {
            0 => proxy.disconnect(exchange),
            1 => proxy.answer(exchange, &Answer::json(500, "{}")),
            _ => proxy.answer(exchange, &Answer::events(&["data: a\n\n", "data: [DONE]\n\n"])),
        }
        proxy.forget(exchange);
        if i % 20 == 0 {
            proxy.advance(100);
            assert!(proxy.push(0, &fleet.heartbeat()));
            proxy.take_said(0);
        }
        if i == 4_000 {
            after_warm_up = proxy.memory_bytes(0);
        }
    }
    assert!(proxy.memory_bytes(0) <= after_warm_up, "{} bytes, {after_warm_up} before", proxy.memory_bytes(0));
    assert!(after_warm_up < 64 << 20);
}

#[test]
fn a_streamed_piece_costs_next_to_nothing() {
    let fleet = Fleet::new(4);
    let mut proxy = serving(&fleet);
    let exchange = proxy.send(0, &Request::chat(MODEL, "hi"));
    proxy.response_headers(exchange, &Answer::events(&[]).headers, false);
    proxy.response_body(exchange, b"data: first\n\n", false);
    proxy.take_fuel(0);
    for _ in 0..100 {
        proxy.response_body(exchange, b"data: {\"choices\":[{\"delta\":{\"content\":\"word\"}}]}\n\n", false);
    }
    let fuel = proxy.take_fuel(0) / 100;
    assert!(fuel < 400, "{fuel} fuel for each piece");
}
