//! A document to a typed resource.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer};
use serde_json::Value;

use super::MAX_FILE_VALUES;
use super::message::translate;
use super::probe::Probe;
use super::sink::Sink;
use super::suggest::{self, Shape};
use super::text::{Document, ParseError, Text};
use crate::policy_test::{PolicyTest, PolicyTestSpec, TestState};
use crate::resources::{is_label, is_resource_name};
use crate::{
    API_VERSION, DEFAULT_NAMESPACE, FieldPath, Kind, ObjectKey, Origin, Problem, Resource, Resources, Severity,
};

/// The kind of documents that hold policy tests.
const POLICY_TEST: &str = "PolicyTest";

/// Fields of `metadata` that Kubernetes adds; files that were exported from a cluster have them.
const CLUSTER_METADATA: [&str; 10] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "uid",
];

/// What could not be read, and so must not be reported as missing.
#[derive(Default)]
pub(super) struct Unread {
    /// Resources whose kind and name are known.
    pub(super) resources: BTreeSet<(Kind, ObjectKey)>,
    /// Something of which not even that is known.
    pub(super) anything: bool,
}

impl Unread {
    pub(super) fn is_empty(&self) -> bool {
        !self.anything && self.resources.is_empty()
    }

    pub(super) fn may_hold(&self, resource: &(Kind, ObjectKey)) -> bool {
        self.anything || self.resources.contains(resource)
    }
}

/// Reads every document of a file. One without any is a mistake, most likely a write that failed: what was in it, and a
/// policy above all, must not go without a word.
pub(super) fn read_all(text: &Text, tests: Tests, resources: &mut Resources, sink: &mut Sink, unread: &mut Unread) {
    let mut is_empty = true;
    let mut budget = MAX_FILE_VALUES;
    for (index, document) in text.documents().enumerate() {
        let origin = Origin::File { file: text.path.clone(), document: index };
        let mut reader = Reader { text, document, origin, tests, resource: None, sink, unread };
        is_empty &= !reader.read(&mut budget, resources);
    }
    if is_empty {
        unread.anything = true;
        sink.push(Problem {
            file: text.path.clone(),
            line: 1,
            path: String::new(),
            severity: Severity::Error,
            message: "the file holds no resource".into(),
            remedy: "delete the file if that is meant, or end its name in something else than .yaml, .yml and .json"
                .into(),
            resource: None,
        });
    }
}

/// Reads a file that holds nothing but the state of a policy test.
pub(super) fn read_state(text: &Text, sink: &mut Sink) -> Option<TestState> {
    let origin = Origin::File { file: text.path.clone(), document: 0 };
    let document = text.document(0)?;
    let mut unread = Unread::default();
    let mut budget = MAX_FILE_VALUES;
    let mut reader = Reader { text, document, origin, tests: Tests::Read, resource: None, sink, unread: &mut unread };
    match reader.document.read(Probe { budget: &mut budget }) {
        Ok(_) => reader.strict::<TestState>(Shape::State),
        Err(error) => {
            reader.unparsable(error);
            None
        }
    }
}

/// What becomes of policy tests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tests {
    /// They are read and checked.
    Read,
    /// They are passed over.
    Skip,
}

struct Reader<'a> {
    text: &'a Text,
    document: Document<'a>,
    origin: Origin,
    tests: Tests,
    /// Whose problems are found, once that is known.
    resource: Option<(Kind, ObjectKey)>,
    sink: &'a mut Sink,
    unread: &'a mut Unread,
}

/// What every document has.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    api_version: Option<Value>,
    kind: Option<Value>,
    metadata: Option<Value>,
}

/// A resource as files have it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body<S> {
    metadata: Metadata,
    spec: S,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    labels: BTreeMap<String, String>,
    // Read so that it is a known field with the right type.
    #[serde(default, rename = "annotations")]
    _annotations: BTreeMap<String, String>,
}

impl Reader<'_> {
    fn problem(&mut self, path: &FieldPath, message: impl Into<String>, remedy: impl Into<String>) {
        if !self.sink.admit(&self.origin, Severity::Error) {
            return;
        }
        self.sink.push(Problem {
            file: self.text.path.clone(),
            line: self.document.line_of(path),
            path: path.to_string(),
            severity: Severity::Error,
            message: message.into(),
            remedy: remedy.into(),
            resource: self.resource.clone(),
        });
    }

    fn unparsable(&mut self, error: ParseError) {
        self.unread.anything = true;
        self.sink.push(Problem {
            file: self.text.path.clone(),
            line: error.line,
            path: String::new(),
            severity: Severity::Error,
            message: format!("not valid {}: {}", self.document.language(), error.message),
            remedy: String::new(),
            resource: None,
        });
    }

    /// Reads the document; false when there is nothing in it.
    fn read(&mut self, budget: &mut usize, resources: &mut Resources) -> bool {
        match self.document.read(Probe { budget }) {
            Ok(true) => self.content(resources),
            Ok(false) => return false,
            Err(error) => self.unparsable(error),
        }
        true
    }

    fn content(&mut self, resources: &mut Resources) {
        let Some((shape, key)) = self.header() else { return };
        let kind = match shape {
            Shape::Resource(kind) => kind,
            Shape::PolicyTest if self.tests == Tests::Skip => return,
            Shape::PolicyTest | Shape::State => return self.policy_test(key, resources),
        };
        self.resource = Some((kind, key.clone()));
        let read = match kind {
            Kind::GatewayBackend => self.resource(kind, &key, &mut resources.backends),
            Kind::InferencePool => self.resource(kind, &key, &mut resources.pools),
            Kind::InferenceProvider => self.resource(kind, &key, &mut resources.providers),
            Kind::InferencePolicy => self.resource(kind, &key, &mut resources.policies),
            Kind::InferenceWorkerSet => self.resource(kind, &key, &mut resources.worker_sets),
        };
        if !read {
            self.unread.resources.insert((kind, key));
        }
    }

    /// The document's kind and key; None when its header is wrong.
    fn header(&mut self) -> Option<(Shape, ObjectKey)> {
        let root = FieldPath::root();
        let Ok(header) = self.document.read(PhantomData::<Header>) else {
            self.unread.anything = true;
            self.problem(&root, "not a resource", "a document is a mapping with apiVersion, kind, metadata and spec");
            return None;
        };
        let before = self.sink.len();
        let api_version = self.word(&root.key("apiVersion"), header.api_version.as_ref());
        if let Some(version) = api_version.filter(|version| version != API_VERSION) {
            let message = format!("unknown apiVersion `{version}`");
            self.problem(&root.key("apiVersion"), message, format!("write {API_VERSION}"));
        }
        let kind_name = self.word(&root.key("kind"), header.kind.as_ref());
        let shape = kind_name.as_deref().and_then(|name| match name {
            POLICY_TEST => Some(Shape::PolicyTest),
            _ => Kind::ALL.into_iter().find(|kind| kind.as_str() == name).map(Shape::Resource),
        });
        if let (None, Some(name)) = (shape, &kind_name) {
            let mut known = Kind::ALL.map(|kind| kind.to_string()).to_vec();
            known.push(POLICY_TEST.to_string());
            let remedy = suggest::remedy(name, &known);
            self.problem(&root.key("kind"), format!("unknown kind `{name}`"), remedy);
        }
        let key = self.key(header.metadata.as_ref());
        if self.sink.len() == before {
            return shape.zip(key);
        }
        match (shape, key) {
            (Some(Shape::Resource(kind)), Some(key)) => drop(self.unread.resources.insert((kind, key))),
            (None, _) | (Some(Shape::Resource(_)), None) => self.unread.anything = true,
            // Nothing refers to a test.
            (Some(_), _) => {}
        }
        None
    }

    /// A required piece of text.
    fn word(&mut self, path: &FieldPath, value: Option<&Value>) -> Option<String> {
        match value {
            Some(Value::String(text)) if !text.is_empty() => Some(text.clone()),
            None | Some(Value::Null) => {
                self.problem(path, "missing", "the field is required");
                None
            }
            Some(_) => {
                self.problem(path, "not a piece of text", "");
                None
            }
        }
    }

    fn key(&mut self, metadata: Option<&Value>) -> Option<ObjectKey> {
        let place = FieldPath::root().key("metadata");
        let get = |field: &str| metadata.and_then(|m| m.get(field));
        let name = self.word(&place.key("name"), get("name"));
        let namespace = match get("namespace") {
            None | Some(Value::Null) => Some(DEFAULT_NAMESPACE.to_string()),
            given => self.word(&place.key("namespace"), given),
        };
        for (field, value, is_name) in
            [("name", &name, is_resource_name as fn(&str) -> bool), ("namespace", &namespace, is_label)]
        {
            if let Some(text) = value.as_ref().filter(|text| !is_name(text)) {
                let message = format!("`{text}` is not a {field} that Kubernetes takes");
                self.problem(&place.key(field), message, "use lower-case letters, digits and `-`");
            }
        }
        Some(ObjectKey::new(namespace?, name?))
    }

    /// Reads the document as a resource; false when something is wrong with it.
    fn resource<S: DeserializeOwned>(
        &mut self,
        kind: Kind,
        key: &ObjectKey,
        into: &mut BTreeMap<ObjectKey, Resource<S>>,
    ) -> bool {
        let before = self.sink.len();
        if let Some(body) = self.strict::<Body<S>>(Shape::Resource(kind)) {
            match into.get(key) {
                Some(first) => {
                    let first = self.first_place(&first.origin);
                    let name = FieldPath::root().key("metadata").key("name");
                    let message = format!("there are two {kind}s named {key}");
                    self.problem(&name, message, format!("the other is in {first}"));
                }
                None => {
                    let resource = Resource {
                        key: key.clone(),
                        labels: body.metadata.labels,
                        spec: body.spec,
                        origin: self.origin.clone(),
                    };
                    into.insert(key.clone(), resource);
                }
            }
        }
        self.sink.len() == before
    }

    fn policy_test(&mut self, key: ObjectKey, resources: &mut Resources) {
        let Some(spec) = self.strict::<PolicyTestSpec>(Shape::PolicyTest) else { return };
        let place = |index: usize| FieldPath::root().key("cases").index(index);
        let case_lines = (0..spec.cases.len()).map(|index| self.document.line_of(&place(index))).collect();
        resources.policy_tests.push(PolicyTest { key, spec, origin: self.origin.clone(), case_lines });
    }

    /// Reads the document as a `T`, and reports every unknown field and what keeps it from being one.
    fn strict<T: DeserializeOwned>(&mut self, shape: Shape) -> Option<T> {
        let mut notes = Notes::default();
        let value = self.document.read(Strict::<T>::new(&mut notes));
        for path in notes.unknown {
            let field = path.last_key().unwrap_or_default();
            let known = suggest::fields(shape, &path.parent().unwrap_or_default());
            let (message, remedy) = if field == "<<" {
                ("YAML merge keys are not supported", "write the fields out".to_string())
            } else {
                ("unknown field", suggest::remedy(field, &known))
            };
            self.problem(&path, message, remedy);
        }
        match value {
            Ok(value) => Some(value),
            Err(error) => {
                let told = translate(notes.failed.unwrap_or_default(), &error.message);
                self.problem(&told.path, told.message, told.remedy);
                None
            }
        }
    }

    fn first_place(&self, origin: &Origin) -> String {
        let document = match origin {
            Origin::File { file, document } if *file == self.text.path => self.text.document(*document),
            Origin::File { .. } | Origin::Cluster => None,
        };
        match document {
            Some(document) => format!("line {}", document.line_of(&FieldPath::root())),
            None => origin.file().display().to_string(),
        }
    }
}

/// What was noted while a document was read.
#[derive(Default)]
struct Notes {
    unknown: Vec<FieldPath>,
    failed: Option<FieldPath>,
}

/// Reads a `T` and notes every unknown field, and where reading failed. The types themselves let unknown fields pass:
/// a cluster may serve a newer version of them.
struct Strict<'n, T> {
    notes: &'n mut Notes,
    of: PhantomData<T>,
}

impl<'n, T> Strict<'n, T> {
    fn new(notes: &'n mut Notes) -> Self {
        Strict { notes, of: PhantomData }
    }
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Strict<'_, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        let mut track = serde_path_to_error::Track::new();
        let tracked = serde_path_to_error::Deserializer::new(deserializer, &mut track);
        let unknown = &mut self.notes.unknown;
        let result = serde_ignored::deserialize(tracked, |path| {
            let path = FieldPath::from(&path);
            if !is_expected(&path) {
                unknown.push(path);
            }
        });
        if result.is_err() {
            self.notes.failed = Some(FieldPath::from(&track.path()));
        }
        result
    }
}

/// True for what [`Body`] does not read and files may well have.
fn is_expected(path: &FieldPath) -> bool {
    let parent = path.parent().unwrap_or_default();
    let field = path.last_key().unwrap_or_default();
    match parent.last_key() {
        // `metadata` of a resource is read; that of a policy test is only a header.
        None => parent.steps().is_empty() && ["apiVersion", "kind", "metadata", "status"].contains(&field),
        Some("metadata") if parent.steps().len() == 1 => {
            ["name", "namespace"].contains(&field) || CLUSTER_METADATA.contains(&field)
        }
        Some(_) => false,
    }
}
