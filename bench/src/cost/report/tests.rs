use super::super::gateway::{Figures, Pair, Quantiles};
use super::*;

fn report() -> Report {
    let figures = |p50: f64, cpu: f64| Figures {
        first_ms: Quantiles { p50, p95: 2.0 * p50 },
        requests_per_s: 1000.0 / p50,
        envoy_cpu_s: cpu,
        ..Figures::default()
    };
    let pair = |p50: f64, cpu| Pair {
        bare: figures(1.0, 0.4),
        kinference: figures(p50, cpu),
        added_ms: Quantiles { p50: p50 - 1.0, p95: 2.0 * p50 - 2.0 },
    };
    let point = |kb, concurrency| Point { kb, concurrency, quiet: pair(1.125, 0.9), events: pair(1.25, 0.95) };
    let ingest = |filters| Ingest { kind: "prefill", filters, cpu_s: 1.0 + filters as f64, ..Ingest::default() };
    Report {
        runs: 3,
        decisions: vec![Decision { kb: 220, p50_us: 118.0, p99_us: 300.0, count: 1000 }],
        gateway: vec![point(4, 1), point(220, 20)],
        memory: Some(Held::default()),
        streams: Some(Streams { envoy_bare_us: 20.0, envoy_us: 22.0, pieces_per_chunk: 1.0, ..Streams::default() }),
        events: vec![ingest(0), ingest(3)],
        index: Some(Index::default()),
        lag: Some(Lag { p50_ms: 15.0, p95_ms: 25.0, trials: 60 }),
        idle: vec![Idle { workers: 64, filter: true, control_percent: 6.0, ..Idle::default() }],
        ..Report::new(3, false)
    }
}

#[test]
fn figures_are_held_against_bare_envoy_and_peers() {
    for text in [tables(&report()), markdown(&report(), "the command")] {
        for (what, part) in [
            ("11.8 ms that the picker adds are a hundred times 118 us", "x 100"),
            ("the median against bare Envoy's, with events", "x 1.25"),
            ("the median against bare Envoy's, without", "x 1.12"),
            ("over the goal at 4 KB", "0.30 (NOT below)"),
            ("below the goal at 220 KB", "1.00 (below)"),
            ("the picker's and Envoy's 11.65 s against 0.9 s", "x 12.9"),
            ("the precise picker's 57 s against 0.95 s", "x 60.0"),
            ("a chunk", "x 1.10"),
            ("events with three filters against none", "x 4.00"),
            ("6 % of a core against 30 %", "x 0.20"),
        ] {
            assert!(text.contains(part), "{what}: {part} is not in\n{text}");
        }
    }
}

#[test]
fn every_row_has_a_cell_for_each_column() {
    for section in sections(&report()) {
        assert!(!section.rows.is_empty());
        for row in &section.rows {
            assert_eq!(row.len(), section.header.len(), "{}: {row:?}", section.title);
        }
    }
    assert!(sections(&Report::new(1, true)).is_empty());
}

#[test]
fn the_section_of_cost_is_replaced_and_all_else_stays() {
    let first = into_results("# Results\n\n## Demo\n\nmine\n", "one");
    assert!(first.starts_with("# Results\n\n## Demo\n\nmine\n\n## Cost\n\n"), "{first}");
    let more = first + "\n## Later\n";
    let second = into_results(&more, "two");
    assert!(
        second.contains("two")
            && !second.contains("one")
            && second.contains("mine")
            && second.ends_with("\n## Later\n")
    );
    assert_eq!(into_results(&second, "two"), second);
    assert!(into_results("", "one").starts_with("# Results\n"));
}
