//! `kinference-load`: the load generator.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Parser, ValueEnum};
use kinference_bench::load::{
    Arrival, Client, Endpoint, Options, Pace, Progress, Shape, Summary, Workload, first_model, run,
};

/// Sends one of three workloads to an OpenAI endpoint and reports what a client sees.
///
/// Requests are streaming chat completions. The same flags and seed give the same requests. Without --concurrency sessions
/// arrive at --rate, however slow the answers are; with it, a fixed number runs at any time.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The endpoint, with or without /v1 at the end
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// The model to ask for [default: the first that the endpoint lists]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// What the prompts have in common
    #[arg(long, value_enum, default_value = "shared-prefix")]
    workload: Kind,
    /// Requests of the control workload
    #[arg(long, value_name = "N", default_value_t = 200)]
    requests: usize,
    /// Tokens of a prompt (control) or of a conversation's first message (multiturn), about
    #[arg(long, value_name = "N", default_value_t = 2000)]
    prompt_tokens: usize,
    /// Groups of the shared-prefix workload
    #[arg(long, value_name = "N", default_value_t = 20)]
    groups: usize,
    /// Requests of each group
    #[arg(long, value_name = "N", default_value_t = 10)]
    requests_per_group: usize,
    /// Tokens of a group's system prompt, about
    #[arg(long, value_name = "N", default_value_t = 4000)]
    prefix_tokens: usize,
    /// Tokens of a question (shared-prefix, and later turns of multiturn), about
    #[arg(long, value_name = "N", default_value_t = 100)]
    question_tokens: usize,
    /// Conversations of the multiturn workload
    #[arg(long, value_name = "N", default_value_t = 40)]
    conversations: usize,
    /// Turns of each conversation
    #[arg(long, value_name = "N", default_value_t = 5)]
    turns: usize,
    /// Tokens of each answer
    #[arg(long, value_name = "N", default_value_t = 128)]
    answer_tokens: usize,
    /// Let the engine end an answer early; for endpoints that refuse vLLM's ignore_eos
    #[arg(long)]
    no_exact_answers: bool,
    /// Sessions that arrive per second
    #[arg(long, value_name = "R", default_value_t = 5.0, conflicts_with = "concurrency")]
    rate: f64,
    /// How they are spread
    #[arg(long, value_enum, default_value = "poisson")]
    arrival: Arrival,
    /// Sessions that run at any time
    #[arg(long, value_name = "N")]
    concurrency: Option<usize>,
    /// Seeds all text, the order and the arrivals
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Time to first token in milliseconds up to which a request counts as good
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    ttft_limit_ms: u64,
    /// Seconds after which a request counts as failed
    #[arg(long, value_name = "S", default_value_t = 120)]
    timeout_s: u64,
    /// A header to send along, as "name: value"; may be repeated
    #[arg(long = "header", value_name = "HEADER", value_parser = header)]
    headers: Vec<(String, String)>,
    /// Sent as "authorization: Bearer KEY"
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Write the figures to a file as JSON; - is standard output, then without the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// Prompts share nothing
    Control,
    /// Groups of prompts share a long system prompt
    SharedPrefix,
    /// Each turn carries all turns before it
    Multiturn,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("write it as \"name: value\"")?;
    Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
}

impl Arguments {
    fn workload(&self) -> Workload {
        let shape = match self.workload {
            Kind::Control => Shape::Control { requests: self.requests, prompt_tokens: self.prompt_tokens },
            Kind::SharedPrefix => Shape::SharedPrefix {
                groups: self.groups,
                requests_per_group: self.requests_per_group,
                prefix_tokens: self.prefix_tokens,
                question_tokens: self.question_tokens,
            },
            Kind::Multiturn => Shape::Multiturn {
                conversations: self.conversations,
                turns: self.turns,
                opening_tokens: self.prompt_tokens,
                question_tokens: self.question_tokens,
            },
        };
        Workload { shape, answer_tokens: self.answer_tokens, seed: self.seed }
    }

    fn pace(&self) -> Pace {
        match self.concurrency {
            Some(concurrency) => Pace::Closed { concurrency },
            None => Pace::Open { rate: self.rate, arrival: self.arrival },
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut headers = arguments.headers.clone();
    headers.extend(arguments.api_key.iter().map(|key| ("authorization".to_owned(), format!("Bearer {key}"))));
    let client = Client::new(Endpoint::parse(&arguments.url)?, headers);
    let model = match &arguments.model {
        Some(model) => model.clone(),
        None => first_model(&client).await?,
    };
    let workload = arguments.workload();
    let options = Options {
        model,
        pace: arguments.pace(),
        exact_answers: !arguments.no_exact_answers,
        timeout: Duration::from_secs(arguments.timeout_s),
    };
    let (_, requests) = workload.shape.counts();
    let progress = Progress::new(workload.shape.name(), requests);
    let run = tokio::select! {
        run = run(&client, &workload, &options, progress) => run?,
        _ = tokio::signal::ctrl_c() => bail!("interrupted; nothing is reported"),
    };
    let summary = Summary::of(&run, Duration::from_millis(arguments.ttft_limit_ms));
    let json = serde_json::to_string_pretty(&summary)?;
    match arguments.json.as_deref() {
        Some(path) if path.as_os_str() == "-" => {
            writeln!(std::io::stdout(), "{json}")?;
        }
        path => {
            if let Some(path) = path {
                std::fs::write(path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
            }
            write!(std::io::stdout(), "{}", summary.table(workload.shape.name()))?;
        }
    }
    if summary.errors == summary.requests {
        bail!("every request failed");
    }
    Ok(())
}
