//! Debug output of the one message that holds a secret.

use std::fmt;

use crate::v1::Provider;

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authorization = if self.authorization.is_empty() { "none" } else { "hidden" };
        f.debug_struct("Provider")
            .field("name", &self.name)
            .field("cluster", &self.cluster)
            .field("authority", &self.authority)
            .field("base_path", &self.base_path)
            .field("authorization", &format_args!("{authorization}"))
            .field("models", &self.models)
            .field("request_timeout_ms", &self.request_timeout_ms)
            .field("ready", &self.ready)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_shown_wherever_the_message_is_part_of() {
        let provider = Provider { name: "cloud".into(), authorization: "Bearer s3cret".into(), ..Provider::default() };
        let config = crate::v1::Config { providers: vec![provider], ..Default::default() };
        let sections = crate::v1::Sections { config: Some(config), ..Default::default() };
        let shown = format!("{sections:?} {sections:#?}");
        assert!(shown.contains("cloud") && shown.contains("hidden"), "{shown}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}
