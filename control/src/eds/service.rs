//! The xDS conversation: state of the world and delta.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource,
};
use envoy_types::pb::envoy::service::endpoint::v3::endpoint_discovery_service_server::EndpointDiscoveryService;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::assignments::{Assignments, type_url};
use super::peers::Peers;
use crate::metrics::Metrics;

/// Serves the newest assignments; `None` until there are any.
#[derive(Debug, Clone)]
pub struct EdsService {
    assignments: watch::Receiver<Option<Arc<Assignments>>>,
    peers: Arc<Peers>,
    metrics: Arc<Metrics>,
    shutdown: CancellationToken,
}

impl EdsService {
    /// Serves what `assignments` holds and follows it; streams end on `shutdown`.
    pub fn new(
        assignments: watch::Receiver<Option<Arc<Assignments>>>,
        peers: Arc<Peers>,
        metrics: Arc<Metrics>,
        shutdown: CancellationToken,
    ) -> Self {
        Self { assignments, peers, metrics, shutdown }
    }

    /// Runs one stream's conversation.
    fn converse<D: Dialect>(
        &self,
        mut requests: Streaming<D::Request>,
    ) -> BoxStream<'static, Result<D::Response, Status>> {
        let (sender, receiver) = mpsc::channel(2);
        let Self { mut assignments, peers, metrics, shutdown } = self.clone();
        tokio::spawn(async move {
            let mut dialect = D::default();
            let mut peer: Option<u64> = None;
            let mut nonce = 0u64;
            loop {
                tokio::select! {
                    request = requests.message() => {
                        let Ok(Some(request)) = request else { break };
                        let id = *peer.get_or_insert_with(|| peers.join(D::node(&request)));
                        let said = dialect.hear(request, &nonce.to_string());
                        match said {
                            Said::Acknowledged(version) => {
                                metrics.eds_acks.inc();
                                peers.update(id, |peer| { peer.acknowledged = version; peer.refused = None; });
                            }
                            Said::Refused(reason) => {
                                metrics.eds_nacks.inc();
                                tracing::warn!("an Envoy refused its endpoints: {reason}");
                                peers.update(id, |peer| peer.refused = Some(reason));
                            }
                            Said::Other => {}
                        }
                    }
                    changed = assignments.changed() => if changed.is_err() { break },
                    () = sender.closed() => break,
                    () = shutdown.cancelled() => break,
                }
                let Some(current) = assignments.borrow_and_update().clone() else { continue };
                if let (Some(id), Some((version, response))) =
                    (peer, dialect.answer(&current, &(nonce + 1).to_string()))
                {
                    nonce += 1;
                    metrics.eds_updates.inc();
                    peers.update(id, |peer| peer.sent = version);
                    if sender.send(Ok(response)).await.is_err() {
                        break;
                    }
                }
            }
            if let Some(id) = peer {
                peers.leave(id);
            }
        });
        ReceiverStream::new(receiver).boxed()
    }
}

/// What a request means, besides what it subscribes to.
#[derive(Debug, PartialEq)]
enum Said {
    Acknowledged(String),
    Refused(String),
    Other,
}

/// The two variants of the protocol.
trait Dialect: Default + Send + 'static {
    type Request: Send + 'static;
    type Response: Send + 'static;

    fn node(request: &Self::Request) -> &str;
    /// Takes a request; `nonce` is that of the newest response.
    fn hear(&mut self, request: Self::Request, nonce: &str) -> Said;
    /// The version and the response to send, when the peer lacks something.
    fn answer(&mut self, current: &Assignments, nonce: &str) -> Option<(String, Self::Response)>;
}

fn node_id(node: &Option<Node>) -> &str {
    node.as_ref().map_or("", |node| node.id.as_str())
}

#[derive(Default)]
struct StateOfTheWorld {
    names: BTreeSet<String>,
    /// Version and names of the newest response.
    sent: Option<(String, BTreeSet<String>)>,
}

impl Dialect for StateOfTheWorld {
    type Request = DiscoveryRequest;
    type Response = DiscoveryResponse;

    fn node(request: &DiscoveryRequest) -> &str {
        node_id(&request.node)
    }

    fn hear(&mut self, request: DiscoveryRequest, nonce: &str) -> Said {
        // A request that answers an older response than the newest says nothing about what is in force now.
        if !request.response_nonce.is_empty() && request.response_nonce != nonce {
            return Said::Other;
        }
        self.names = request.resource_names.into_iter().collect();
        match request.error_detail {
            Some(error) => Said::Refused(error.message),
            None if request.response_nonce.is_empty() => Said::Other,
            None => Said::Acknowledged(request.version_info),
        }
    }

    fn answer(&mut self, current: &Assignments, nonce: &str) -> Option<(String, DiscoveryResponse)> {
        let version = current.version_of(&self.names);
        if self.names.is_empty() || self.sent.as_ref().is_some_and(|sent| (&sent.0, &sent.1) == (&version, &self.names))
        {
            return None;
        }
        let resources: Vec<_> =
            self.names.iter().filter_map(|name| current.get(name)).map(|found| found.resource).collect();
        if resources.is_empty() {
            return None;
        }
        self.sent = Some((version.clone(), self.names.clone()));
        let response = DiscoveryResponse {
            version_info: version.clone(),
            resources,
            type_url: type_url(),
            nonce: nonce.to_owned(),
            ..Default::default()
        };
        Some((version, response))
    }
}

#[derive(Default)]
struct Delta {
    /// Subscribed names, each with the version that the peer was sent last.
    held: BTreeMap<String, String>,
    system_version: String,
}

impl Dialect for Delta {
    type Request = DeltaDiscoveryRequest;
    type Response = DeltaDiscoveryResponse;

    fn node(request: &DeltaDiscoveryRequest) -> &str {
        node_id(&request.node)
    }

    fn hear(&mut self, request: DeltaDiscoveryRequest, nonce: &str) -> Said {
        for name in request.resource_names_unsubscribe {
            self.held.remove(&name);
        }
        for name in request.resource_names_subscribe {
            // A repeated subscription asks for the resource again.
            let version = request.initial_resource_versions.get(&name).cloned().unwrap_or_default();
            self.held.insert(name, version);
        }
        match request.error_detail {
            Some(error) if request.response_nonce == nonce => Said::Refused(error.message),
            None if request.response_nonce == nonce => Said::Acknowledged(self.system_version.clone()),
            _ => Said::Other,
        }
    }

    fn answer(&mut self, current: &Assignments, nonce: &str) -> Option<(String, DeltaDiscoveryResponse)> {
        let mut resources = Vec::new();
        for (name, held) in &mut self.held {
            if let Some(found) = current.get(name)
                && found.version != *held
            {
                held.clone_from(&found.version);
                resources.push(Resource {
                    name: name.clone(),
                    version: found.version,
                    resource: Some(found.resource),
                    ..Default::default()
                });
            }
        }
        if resources.is_empty() {
            return None;
        }
        self.system_version = current.version_of(&self.held.keys().cloned().collect());
        let response = DeltaDiscoveryResponse {
            system_version_info: self.system_version.clone(),
            resources,
            type_url: type_url(),
            nonce: nonce.to_owned(),
            ..Default::default()
        };
        Some((self.system_version.clone(), response))
    }
}

#[async_trait]
impl EndpointDiscoveryService for EdsService {
    type StreamEndpointsStream = BoxStream<'static, Result<DiscoveryResponse, Status>>;
    type DeltaEndpointsStream = BoxStream<'static, Result<DeltaDiscoveryResponse, Status>>;

    async fn stream_endpoints(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamEndpointsStream>, Status> {
        Ok(Response::new(self.converse::<StateOfTheWorld>(request.into_inner())))
    }

    async fn delta_endpoints(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaEndpointsStream>, Status> {
        Ok(Response::new(self.converse::<Delta>(request.into_inner())))
    }

    async fn fetch_endpoints(&self, request: Request<DiscoveryRequest>) -> Result<Response<DiscoveryResponse>, Status> {
        let Some(current) = self.assignments.borrow().clone() else {
            return Err(Status::unavailable("the control service has no valid configuration yet"));
        };
        let mut dialect = StateOfTheWorld::default();
        dialect.hear(request.into_inner(), "");
        match dialect.answer(&current, "") {
            Some((_, response)) => Ok(Response::new(response)),
            None if dialect.names.is_empty() => {
                Err(Status::invalid_argument("name the clusters whose endpoints you want"))
            }
            None => Err(Status::unavailable("nothing is known of these clusters yet")),
        }
    }
}
