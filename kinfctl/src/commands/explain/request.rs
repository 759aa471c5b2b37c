//! The request that is explained, from flags and a file.

use std::fs;

use anyhow::{Context, Result};
use kinference_api::policy_test::{DEFAULT_PROMPT_TOKENS, TestRequest};
use kinference_routing::openai::{Endpoint, parse};
use serde_json::Value;

use super::Args;

/// What is asked.
pub(super) struct Asked {
    /// In the words of policy tests.
    pub(super) request: TestRequest,
    file: Option<(Endpoint, Vec<u8>)>,
}

impl Asked {
    /// Reads what the flags and the file say; a flag goes before the file.
    pub(super) fn read(args: &Args) -> Result<Asked> {
        let mut request = TestRequest {
            tenant: args.tenant.clone(),
            model: String::new(),
            tags: args.tags.clone(),
            prompt_tokens: args.prompt_tokens,
        };
        let mut file = None;
        if let Some(path) = &args.request {
            let body = fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
            let value: Value =
                serde_json::from_slice(&body).with_context(|| format!("{} is not JSON", path.display()))?;
            let endpoint = match (value.get("messages"), value.get("input")) {
                (Some(_), _) => Endpoint::ChatCompletions,
                (None, Some(_)) => Endpoint::Embeddings,
                (None, None) => Endpoint::Completions,
            };
            let parsed = parse(endpoint, &body).with_context(|| format!("{} is not a request", path.display()))?;
            request.model = parsed.model.name.into_owned();
            request.prompt_tokens = request.prompt_tokens.or(u32::try_from(body.len() / 4).ok());
            file = Some((endpoint, body));
        }
        if let Some(model) = &args.model {
            request.model.clone_from(model);
        }
        Ok(Asked { request, file })
    }

    /// The request's body, where there is one, and where it would be sent.
    pub(super) fn body(&self) -> Option<(Endpoint, &[u8])> {
        self.file.as_ref().map(|(endpoint, body)| (*endpoint, body.as_slice()))
    }
}

/// Tokens of the prompt where only figures are known.
pub(super) fn tokens(request: &TestRequest) -> u32 {
    request.prompt_tokens.unwrap_or(DEFAULT_PROMPT_TOKENS)
}
