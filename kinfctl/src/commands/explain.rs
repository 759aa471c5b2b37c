//! `kinfctl explain`.

mod fleet;
mod request;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use kinference_api::policy_test::{TestRequest, TestState};
use kinference_api::{DEFAULT_NAMESPACE, ObjectKey, Problems, Resources, source};
use serde_json::json;

use self::request::Asked;
use super::{Output, validate};
use crate::live::{Live, Prompt};
use crate::paint::Paint;
use crate::scene::Scene;
use crate::told;

const EXAMPLES: &str = "Examples:
  kinfctl explain examples/policies --model glm-5.3 --tenant research --tag pii-detected --prompt-tokens 900
  kinfctl explain examples/policies --tenant research --request chat.json --state busy.yaml
  kinfctl explain examples/policies --tenant research --model glm-5.3 --output json | jq .decision
  kinfctl explain --control 127.0.0.1:18101 --request chat.json --tenant research --tags batch,pii-detected
  kinfctl explain --control 10.0.0.4:18101 --gateway-backend prod/main --model glm-5.3 --prompt-tokens 4000

With --control the decision is made on what the filters of the running control service were told a moment ago: the
rules in force, load and signals of the workers, and with --request the cached prefixes of that very prompt. The
prompt does not leave this machine. What one proxy did since is not in it.

A state is what a policy test has under `state`:
  workers: {glm/a: {queuedRequests: 9, cachedPrefixTokens: 640}, glm/b: {ready: false}}
  providers: {bedrock: {ready: false}}";

/// Explains what would become of a request: every rule and why it matches or not, every place and what speaks against it.
///
/// Ends with 0 wherever the request goes, and with 1 when the resources are not valid or the control service does not
/// answer.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Files and folders of resources; of a folder every .yaml, .yml and .json file in it and below.
    #[arg(required_unless_present = "control", conflicts_with = "control", value_name = "FILES")]
    paths: Vec<PathBuf>,
    /// Asks the running control service with this admin address, instead of reading files.
    #[arg(long, value_name = "HOST:PORT")]
    control: Option<String>,
    /// The requested model.
    #[arg(long, required_unless_present = "request")]
    model: Option<String>,
    /// Who asks. Default: nobody, which is 401 where the GatewayBackend has tenants and denies requests without one.
    #[arg(long)]
    tenant: Option<String>,
    /// A tag of the request, or several with commas between; may be repeated.
    #[arg(long = "tag", visible_alias = "tags", value_name = "TAG", value_delimiter = ',')]
    tags: Vec<String>,
    /// Tokens of the prompt. Default: 256; with --request a quarter of its bytes.
    #[arg(long, value_name = "N")]
    prompt_tokens: Option<u32>,
    /// The body of an OpenAI request (chat, completion or embedding), for the model and the size of the prompt; with
    /// --control also for the prompt itself.
    #[arg(long, visible_alias = "file", value_name = "FILE.json")]
    request: Option<PathBuf>,
    /// State of workers and providers. Default: all workers ready, idle and without cache, all providers ready.
    #[arg(long, value_name = "FILE.yaml", conflicts_with = "control")]
    state: Option<PathBuf>,
    /// The GatewayBackend: NAME or NAMESPACE/NAME. Default: the one that there is.
    #[arg(long, value_name = "NAME")]
    gateway_backend: Option<ObjectKey>,
    /// How the explanation is printed.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// How the explanation is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

pub(super) fn run(args: &Args) -> Result<Output> {
    match &args.control {
        Some(admin) => of_control_service(args, admin),
        None => of_files(args),
    }
}

fn of_control_service(args: &Args, admin: &str) -> Result<Output> {
    let asked = Asked::read(args)?;
    let mut request = asked.request.clone();
    let live = Live::fetch(admin, args.gateway_backend.as_ref())?;
    let snapshot = live.snapshot().context("the snapshot is empty")?;
    let prompt = Prompt { model: &request.model, body: asked.body(), tokens: request::tokens(&request) };
    let outcome = live.play(&prompt, request.tenant.as_deref().unwrap_or_default(), &request.tags)?;
    // The filter's own estimate, which is better than one by the size of the body.
    let estimate = outcome.trace.iter().flat_map(|trace| &trace.candidates).filter(|place| place.worker.is_some());
    request.prompt_tokens =
        estimate.map(|place| place.cached_tokens + place.uncached_tokens).max().or(request.prompt_tokens);
    let paint = Paint::for_stdout();
    let backend = &snapshot.config.backend.name;
    Ok(Output::success(match args.output {
        Format::Text => {
            let mut text = told::tables(&request, &outcome, "", paint);
            let place = format!("{backend}, epoch {} sequence {}", snapshot.epoch, snapshot.sequence);
            text.insert_str(0, &format!("{}  {place}\n", paint.bold("snapshot")));
            text.push_str(&fleet::tables(snapshot, outcome.trace.as_ref(), paint));
            if asked.body().is_none() {
                text.push_str("\nWithout --request the prompt is not known: no cached prefix is counted.\n");
            }
            text
        }
        Format::Json => {
            let mut value = told::value(&request, &outcome);
            value["snapshot"] = json!({
                "gatewayBackend": backend, "epoch": snapshot.epoch, "sequence": snapshot.sequence,
                "promptKnown": asked.body().is_some(),
                "workers": fleet::workers(snapshot, outcome.trace.as_ref()), "pools": fleet::pools(snapshot),
            });
            format!("{value:#}\n")
        }
    }))
}

fn of_files(args: &Args) -> Result<Output> {
    let paint = Paint::for_stdout();
    let resources = match source::load(&args.paths) {
        Ok(resources) => resources,
        Err(Problems(problems)) => return Ok(Output { text: validate::listing(&problems, paint)?, code: 1 }),
    };
    let state = match &args.state {
        None => TestState::default(),
        Some(path) => match source::load_state(path) {
            Ok(state) => state,
            Err(Problems(problems)) => return Ok(Output { text: validate::listing(&problems, paint)?, code: 1 }),
        },
    };
    let backend = backend(args, &resources)?;
    let request = Asked::read(args)?.request;
    let scene = Scene::new(&resources, &backend, &[&state])?;
    let unknown = scene.unknown(&state);
    if !unknown.is_empty() {
        bail!("the state names {}, which {backend} does not have", unknown.join(" and "));
    }
    // A request without tenant is one to the gateway. That tests leave open who asks is another matter.
    let stated = TestRequest { tenant: Some(request.tenant.clone().unwrap_or_default()), ..request.clone() };
    let outcome = scene.play(&stated);
    Ok(Output::success(match args.output {
        Format::Text => told::tables(&request, &outcome, "", paint),
        Format::Json => format!("{:#}\n", told::value(&request, &outcome)),
    }))
}

fn backend(args: &Args, resources: &Resources) -> Result<ObjectKey> {
    if let Some(key) = &args.gateway_backend {
        return Ok(key.clone());
    }
    let keys: Vec<&ObjectKey> = resources.backends.keys().collect();
    match keys.as_slice() {
        [key] => Ok((*key).clone()),
        [] => bail!("there is no GatewayBackend in these files"),
        several => {
            let plain =
                |key: &&ObjectKey| if key.namespace == DEFAULT_NAMESPACE { key.name.clone() } else { key.to_string() };
            let names: Vec<String> = several.iter().map(plain).collect();
            bail!("there are several GatewayBackends; add --gateway-backend with one of {}", names.join(", "))
        }
    }
}
