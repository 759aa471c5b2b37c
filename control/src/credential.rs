//! Credentials for providers: in memory only, and never in anything that is printed.

use std::collections::BTreeMap;
use std::fmt;

use kinference_api::ObjectKey;

/// Text that must not be seen. Its `Debug` says nothing of it, not even its length.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps the text.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text, for whoever sends it to where it belongs.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What a provider wants to see of us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// The token of `Authorization: Bearer`.
    pub token: Secret,
}

impl Credential {
    /// Value of the Authorization header.
    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.token.expose())
    }

    /// Takes a credential from the data of the Secret `secret`.
    ///
    /// # Errors
    /// What is missing or wrong, without any of it.
    pub fn from_data(secret: &ObjectKey, data: &BTreeMap<String, Vec<u8>>) -> Result<Self, String> {
        let Some(token) = data.get(TOKEN) else {
            let signing = SIGNING.iter().any(|key| data.contains_key(*key));
            let why = if signing { " (requests are not signed with access keys yet)" } else { "" };
            return Err(format!("Secret {secret} has no key `{TOKEN}`{why}; put the provider's API key there"));
        };
        let text = std::str::from_utf8(token).map(str::trim).unwrap_or_default();
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!(
                "key `{TOKEN}` of Secret {secret} is not a token; it must be printable ASCII without spaces"
            ));
        }
        Ok(Self { token: Secret::new(text.to_owned()) })
    }
}

/// The key of a Secret that holds a token.
const TOKEN: &str = "token";
/// Keys of Secrets that sign requests.
const SIGNING: [&str; 2] = ["accessKeyId", "secretAccessKey"];

/// By provider, for those that state credentials: the credential, or why there is none.
pub type Credentials = BTreeMap<ObjectKey, Result<Credential, String>>;

#[cfg(test)]
mod tests {
    use super::*;

    fn data(token: &[u8]) -> BTreeMap<String, Vec<u8>> {
        BTreeMap::from([("token".to_owned(), token.to_vec())])
    }

    #[test]
    fn a_token_is_taken_and_never_shown() {
        let key = ObjectKey::new("team", "bedrock");
        let credential = Credential::from_data(&key, &data(b"sk-12345\n")).unwrap();
        assert_eq!(credential.token.expose(), "sk-12345");
        assert!(!format!("{credential:?}").contains("12345"));
        for bad in [&b"two words"[..], b"", b"\xff\xfe", b"line\nbreak"] {
            let error = Credential::from_data(&key, &data(bad)).unwrap_err();
            assert!(error.contains("Secret team/bedrock") && !error.contains("words"), "{error}");
        }
        let error = Credential::from_data(&key, &BTreeMap::new()).unwrap_err();
        assert!(error.contains("no key `token`"), "{error}");
    }
}
