//! What passes through the proxy.

/// Headers in their order; names are in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, Vec<u8>)>);

impl Headers {
    /// Headers with these names and values.
    #[must_use]
    pub fn of(pairs: &[(&str, &str)]) -> Self {
        Self(pairs.iter().map(|(name, value)| (name.to_lowercase(), value.as_bytes().to_vec())).collect())
    }

    /// The value of a header; several of one name are joined by commas, as Envoy does.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Vec<u8>> {
        let values: Vec<&[u8]> = self.0.iter().filter(|(n, _)| n == name).map(|(_, value)| value.as_slice()).collect();
        if values.is_empty() { None } else { Some(values.join(b",".as_slice())) }
    }

    /// The same, as text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<String> {
        self.get(name).map(|value| String::from_utf8_lossy(&value).into_owned())
    }

    /// Adds a header.
    pub fn add(&mut self, name: &str, value: &[u8]) {
        self.0.push((name.to_lowercase(), value.to_vec()));
    }

    /// Sets a header, in the place of all others of that name.
    pub fn set(&mut self, name: &str, value: &[u8]) {
        self.remove(name);
        self.add(name, value);
    }

    /// Removes all headers of a name.
    pub fn remove(&mut self, name: &str) {
        let name = name.to_lowercase();
        self.0.retain(|(n, _)| *n != name);
    }

    /// Names and values, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// There is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A request as a client sends it.
#[derive(Debug, Clone)]
pub struct Request {
    /// Its headers, with `:method` and `:path`.
    pub headers: Headers,
    /// Its body, in the pieces in which it arrives.
    pub pieces: Vec<Vec<u8>>,
    /// It ends with trailers.
    pub trailers: bool,
}

impl Request {
    /// A request without a body.
    #[must_use]
    pub fn new(method: &str, path: &str) -> Self {
        let headers =
            Headers::of(&[(":method", method), (":path", path), (":authority", "gateway"), (":scheme", "http")]);
        Self { headers, pieces: Vec::new(), trailers: false }
    }

    /// A POST with a body in one piece, its length announced.
    #[must_use]
    pub fn post(path: &str, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        let mut request = Self::new("POST", path);
        request.headers.set("content-type", b"application/json");
        request.headers.set("content-length", body.len().to_string().as_bytes());
        request.pieces = vec![body];
        request
    }

    /// A chat request of one user message.
    #[must_use]
    pub fn chat(model: &str, text: &str) -> Self {
        let body = serde_json::json!({"model": model, "messages": [{"role": "user", "content": text}], "stream": true});
        Self::post("/v1/chat/completions", body.to_string())
    }

    /// A completion request.
    #[must_use]
    pub fn completion(model: &str, prompt: &str) -> Self {
        Self::post("/v1/completions", serde_json::json!({"model": model, "prompt": prompt}).to_string())
    }

    /// With another header.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.add(name, value.as_ref());
        self
    }

    /// With its body cut into pieces of `size` bytes.
    #[must_use]
    pub fn cut(mut self, size: usize) -> Self {
        let body = self.pieces.concat();
        self.pieces = body.chunks(size).map(<[u8]>::to_vec).collect();
        self
    }

    /// With its length not announced.
    #[must_use]
    pub fn chunked(mut self) -> Self {
        self.headers.remove("content-length");
        self
    }

    /// With trailers at its end.
    #[must_use]
    pub fn with_trailers(mut self) -> Self {
        self.trailers = true;
        self
    }
}

/// An answer as a worker sends it.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Its headers, with `:status`.
    pub headers: Headers,
    /// Its body, in the pieces in which it arrives.
    pub pieces: Vec<Vec<u8>>,
    /// It ends with trailers.
    pub trailers: bool,
}

impl Answer {
    /// A JSON answer in one piece.
    #[must_use]
    pub fn json(status: u16, body: &str) -> Self {
        let headers = Headers::of(&[(":status", &status.to_string()), ("content-type", "application/json")]);
        Self { headers, pieces: vec![body.as_bytes().to_vec()], trailers: false }
    }

    /// A stream of events.
    #[must_use]
    pub fn events(pieces: &[&str]) -> Self {
        let headers = Headers::of(&[(":status", "200"), ("content-type", "text/event-stream; charset=utf-8")]);
        Self { headers, pieces: pieces.iter().map(|piece| piece.as_bytes().to_vec()).collect(), trailers: false }
    }

    /// With trailers at its end.
    #[must_use]
    pub fn with_trailers(mut self) -> Self {
        self.trailers = true;
        self
    }
}

/// What reached a worker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forwarded {
    /// `ip:port` of the worker.
    pub address: String,
    /// Headers.
    pub headers: Headers,
    /// Body so far.
    pub body: Vec<u8>,
    /// The request is complete.
    pub complete: bool,
}

impl Forwarded {
    /// The hosts that the filter asked for, best first.
    #[must_use]
    pub fn destinations(&self) -> Vec<String> {
        let header = self.headers.text("x-gateway-destination-endpoint").unwrap_or_default();
        header.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }
}

/// What reached the client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Received {
    /// HTTP status; 0 before the headers.
    pub status: u16,
    /// Headers.
    pub headers: Headers,
    /// Body so far.
    pub body: Vec<u8>,
    /// The answer is complete.
    pub complete: bool,
}

impl Received {
    /// The body as JSON; null when it is none.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}
