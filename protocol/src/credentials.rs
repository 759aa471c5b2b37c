//! A configuration for people's eyes.

use crate::v1;

impl v1::Config {
    /// The same without what providers are shown to prove who asks.
    #[must_use]
    pub fn without_credentials(&self) -> Self {
        let mut config = self.clone();
        for provider in &mut config.providers {
            // Whole, so that a field that is added is looked at here.
            let v1::Provider {
                name: _,
                cluster: _,
                authority: _,
                base_path: _,
                authorization,
                models: _,
                request_timeout_ms: _,
                ready: _,
            } = provider;
            authorization.clear();
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn nothing_of_a_credential_is_left() {
        let provider = |name: &str| v1::Provider {
            name: name.into(),
            authorization: "Bearer sk-secret".into(),
            ready: true,
            ..Default::default()
        };
        let config = v1::Config { providers: vec![provider("a"), provider("b")], ..Default::default() };
        let bytes = config.without_credentials().encode_to_vec();
        assert!(!bytes.windows(9).any(|window| window == b"sk-secret"));
        let decoded = v1::Config::decode(bytes.as_slice()).unwrap();
        assert!(decoded.providers.iter().all(|provider| provider.ready), "the rest stays");
    }
}
