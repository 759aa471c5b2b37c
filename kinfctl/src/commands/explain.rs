//! `kinfctl explain`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use kinference_api::policy_test::{TestRequest, TestState};
use kinference_api::{DEFAULT_NAMESPACE, ObjectKey, Problems, Resources, source};
use kinference_routing::openai::{Endpoint, parse};
use serde_json::Value;

use super::{Output, validate};
use crate::paint::Paint;
use crate::scene::Scene;
use crate::told;

const EXAMPLES: &str = "Examples:
  kinfctl explain examples/policies --model glm-5.3 --tenant research --tag pii-detected --prompt-tokens 900
  kinfctl explain examples/policies --request chat.json --state busy.yaml
  kinfctl explain examples/policies --model glm-5.3 --output json | jq .decision

A state is what a policy test has under `state`:
  workers: {glm/a: {queuedRequests: 9, cachedPrefixTokens: 640}, glm/b: {ready: false}}
  providers: {bedrock: {ready: false}}";

/// Explains what would become of a request: every rule and why it matches or not, every place and what speaks against it.
///
/// Ends with 0 wherever the request goes, and with 1 when the resources are not valid.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Files and folders of resources; of a folder every .yaml, .yml and .json file in it and below.
    #[arg(required = true, value_name = "FILES")]
    paths: Vec<PathBuf>,
    /// The requested model.
    #[arg(long, required_unless_present = "request")]
    model: Option<String>,
    /// Who asks.
    #[arg(long)]
    tenant: Option<String>,
    /// A tag of the request; may be repeated.
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// Tokens of the prompt. Default: 256; with --request a quarter of its bytes.
    #[arg(long, value_name = "N")]
    prompt_tokens: Option<u32>,
    /// The body of an OpenAI request (chat, completion or embedding), for the model and the size of the prompt.
    #[arg(long, value_name = "FILE.json")]
    request: Option<PathBuf>,
    /// State of workers and providers. Default: all workers ready, idle and without cache, all providers ready.
    #[arg(long, value_name = "FILE.yaml")]
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
    let request = request(args)?;
    let scene = Scene::new(&resources, &backend, &[&state])?;
    let unknown = scene.unknown(&state);
    if !unknown.is_empty() {
        bail!("the state names {}, which {backend} does not have", unknown.join(" and "));
    }
    let outcome = scene.play(&request);
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

fn request(args: &Args) -> Result<TestRequest> {
    let mut request = TestRequest {
        tenant: args.tenant.clone(),
        model: String::new(),
        tags: args.tags.clone(),
        prompt_tokens: args.prompt_tokens,
    };
    if let Some(path) = &args.request {
        let body = fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
        let value: Value = serde_json::from_slice(&body).with_context(|| format!("{} is not JSON", path.display()))?;
        let endpoint = match (value.get("messages"), value.get("input")) {
            (Some(_), _) => Endpoint::ChatCompletions,
            (None, Some(_)) => Endpoint::Embeddings,
            (None, None) => Endpoint::Completions,
        };
        let parsed = parse(endpoint, &body).with_context(|| format!("{} is not a request", path.display()))?;
        request.model = parsed.model.name.into_owned();
        request.prompt_tokens = request.prompt_tokens.or(u32::try_from(body.len() / 4).ok());
    }
    if let Some(model) = &args.model {
        request.model.clone_from(model);
    }
    Ok(request)
}
