//! Requests with and without the filter, held against peers.

use super::super::gateway::{Pair, Point, Quantiles};
use super::super::peers::{EndpointPicker, GOALS, SMG};
use super::{Section, or_unknown, picker, times};
use crate::load::figure;

/// What workers publish, and so what figures of peers are of the same kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Events {
    /// New and evicted blocks of each prompt.
    New,
    /// Nothing new: they hold the shared prefixes.
    Quiet,
}

impl Events {
    fn pair(self, point: &Point) -> &Pair {
        match self {
            Self::New => &point.events,
            Self::Quiet => &point.quiet,
        }
    }
}

/// Times of requests, and throughput.
pub(super) fn requests(points: &[Point], events: Events) -> Section {
    let pair = |of: Quantiles| format!("{} / {}", figure(of.p50), figure(of.p95));
    let row = |point: &Point| {
        let Pair { bare, kinference: ours, added_ms } = events.pair(point);
        let peer = picker(point.kb, point.concurrency);
        let picker_adds = peer.map(|peer| match events {
            Events::New => figure(peer.precise.p50_ms - peer.bare_ms[0]),
            Events::Quiet => pair(Quantiles { p50: peer.ms[0] - peer.bare_ms[0], p95: peer.ms[1] - peer.bare_ms[1] }),
        });
        let picker_to_bare = peer.map(|peer| {
            let ms = if events == Events::New { peer.precise.p50_ms } else { peer.ms[0] };
            times(ms / peer.bare_ms[0])
        });
        let picker_serves = peer.map(|peer| match events {
            Events::New => peer.precise.requests_per_s,
            Events::Quiet => peer.requests_per_s,
        });
        let smg = SMG.iter().find(|(kb, ..)| *kb == point.kb);
        let smg = smg.map(|(_, added, _)| if point.concurrency == 1 { added[0] } else { added[1] });
        let smg = smg.filter(|_| events == Events::Quiet);
        vec![
            format!("{} KB, {}", point.kb, point.concurrency),
            pair(bare.first_ms),
            pair(ours.first_ms),
            pair(*added_ms),
            times(ours.first_ms.p50 / bare.first_ms.p50),
            or_unknown(picker_to_bare),
            or_unknown(picker_adds),
            smg.map_or_else(|| "-".to_owned(), figure),
            format!("{} -> {}", figure(bare.requests_per_s), figure(ours.requests_per_s)),
            times(ours.requests_per_s / bare.requests_per_s),
            or_unknown(picker_serves.map(figure)),
        ]
    };
    let header = vec![
        "prompt, concurrency",
        "bare Envoy p50 / p95 ms",
        "with the filter",
        "added",
        "p50 to bare",
        "llm-d's to its bare",
        "llm-d's picker adds",
        "SMG adds p50",
        "requests/s",
        "to bare",
        "llm-d's",
    ];
    let rows = points.iter().map(row).collect();
    match events {
        Events::Quiet => Section {
            title: "Requests, without new events: time to first byte, and throughput",
            header,
            rows,
            remark: "Kept-alive connections with TCP_NODELAY, eight streamed chunks, four workers that answer at once, closed loop. As with \
                     the peers, workers publish nothing for these requests; they hold the shared prefixes. Debug headers are on. llm-d's picker is \
                     in its default configuration, SMG 1.13.0 is `cache_aware`. Added: median over runs of the difference within a run."
                .into(),
        },
        Events::New => Section {
            title: "Requests, with KV events: time to first byte, and throughput",
            header,
            rows,
            remark: "The same, but workers publish for each prompt what an engine would: its new blocks, and as many evicted ones; bare Envoy's workers too. llm-d's \
                     picker follows events too (its precise mode)."
                .into(),
        },
    }
}

/// Processor time of requests.
pub(super) fn processor(points: &[Point], events: Events) -> Section {
    let row = |point: &Point| {
        let Pair { bare, kinference: ours, .. } = events.pair(point);
        let total = ours.envoy_cpu_s + ours.control_cpu_s;
        let picker = picker(point.kb, point.concurrency);
        let takes = |peer: &EndpointPicker| match events {
            Events::New => peer.precise.cpu_s,
            Events::Quiet => peer.cpu_s[0] + peer.cpu_s[1],
        };
        let to_bare = picker.map(|peer| takes(peer) / peer.bare_cpu_s);
        let peer = picker.map(takes);
        let goal = GOALS.iter().find(|(kb, _)| *kb == point.kb).map(|(_, goal)| *goal);
        let met =
            |goal: f64| format!("{} ({})", figure(goal), if ours.envoy_cpu_s < goal { "below" } else { "NOT below" });
        let smg = SMG.iter().find(|(kb, ..)| *kb == point.kb).map(|(_, _, cpu_s)| *cpu_s);
        let smg = smg.filter(|_| events == Events::Quiet);
        vec![
            format!("{} KB, {}", point.kb, point.concurrency),
            figure(bare.envoy_cpu_s),
            figure(ours.envoy_cpu_s),
            or_unknown(goal.map(met)),
            figure(ours.control_cpu_s),
            figure(total),
            times(total / bare.envoy_cpu_s),
            or_unknown(peer.map(figure)),
            or_unknown(peer.map(|peer| times(peer / total))),
            or_unknown(to_bare.map(times)),
            or_unknown(to_bare.map(|to_bare| times(to_bare * bare.envoy_cpu_s / total))),
            smg.map_or_else(|| "-".to_owned(), figure),
        ]
    };
    let (title, theirs, remark) = match events {
        Events::Quiet => (
            "Processor seconds for 1,000 requests, without new events",
            "llm-d: picker and Envoy",
            "From /proc/PID/stat. llm-d's picker is in its default configuration. Its machine and load generator took more for the bare Envoy \
             too (0.15 to 0.44 s): \"that to ours\" compares what each takes in units of its own bare Envoy.",
        ),
        Events::New => (
            "Processor seconds for 1,000 requests, with KV events",
            "llm-d: picker alone",
            "Control takes in each prompt's new and evicted blocks (16 tokens each) and tells the filters. llm-d's picker is in its precise mode.",
        ),
    };
    let header = vec![
        "prompt, concurrency",
        "bare Envoy",
        "Envoy with the filter",
        "goal",
        "control",
        "both",
        "to bare",
        theirs,
        "to ours",
        "llm-d's to its bare Envoy",
        "that to ours",
        "SMG",
    ];
    Section { title, header, rows: points.iter().map(row).collect(), remark: remark.into() }
}
