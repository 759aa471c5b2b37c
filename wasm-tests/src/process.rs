//! What the VMs of one proxy process share.

use std::collections::{BTreeMap, HashMap};

use kinference_protocol::v1;

/// How the control service's cluster behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// It takes streams.
    Up,
    /// Streams end at once.
    Down,
    /// The proxy has no such cluster.
    NoCluster,
}

/// A metric's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Metric {
    /// Counters and gauges.
    Value(u64),
    /// All values of a histogram.
    Histogram(Vec<u64>),
}

/// A stream to the control service.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) vm: usize,
    pub(crate) cluster: String,
    pub(crate) method: String,
    pub(crate) open: bool,
    /// Its end has yet to be told to the VM, with this status.
    pub(crate) closing: Option<u32>,
    pub(crate) said: Vec<v1::FilterMessage>,
}

/// The process.
#[derive(Debug)]
pub(crate) struct Process {
    /// Nanoseconds since 1970.
    pub(crate) now: u64,
    pub(crate) node_id: String,
    pub(crate) shared: HashMap<Vec<u8>, (Vec<u8>, u32)>,
    versions: u32,
    pub(crate) metrics: Vec<(String, Metric)>,
    pub(crate) logs: Vec<String>,
    pub(crate) control: Control,
    /// In the order in which they were opened; the token is the place plus 1.
    pub(crate) streams: Vec<Stream>,
    /// Hosts of the worker cluster: whether they take connections.
    pub(crate) hosts: BTreeMap<String, bool>,
}

impl Process {
    pub(crate) fn new() -> Self {
        Self {
            now: 1_790_000_000_000_000_000,
            node_id: "proxy-1".to_owned(),
            shared: HashMap::new(),
            versions: 0,
            metrics: Vec::new(),
            logs: Vec::new(),
            control: Control::Up,
            streams: Vec::new(),
            hosts: BTreeMap::new(),
        }
    }

    pub(crate) fn share(&mut self, key: &[u8], value: &[u8], version: u32) -> bool {
        if let Some((_, held)) = self.shared.get(key)
            && version != 0
            && *held != version
        {
            return false;
        }
        self.versions += 1;
        self.shared.insert(key.to_vec(), (value.to_vec(), self.versions));
        true
    }

    pub(crate) fn stream(&mut self, token: u32) -> Option<&mut Stream> {
        self.streams.get_mut(usize::try_from(token).ok()?.checked_sub(1)?)
    }
}
