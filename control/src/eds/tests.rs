//! The service over loopback gRPC, with the client that Envoy's own types generate.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::{Node, address, socket_address};
use envoy_types::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, lb_endpoint};
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use envoy_types::pb::envoy::service::endpoint::v3::endpoint_discovery_service_client::EndpointDiscoveryServiceClient;
use envoy_types::pb::envoy::service::endpoint::v3::endpoint_discovery_service_server::EndpointDiscoveryServiceServer;
use envoy_types::pb::google::rpc::Status as RpcStatus;
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::Streaming;
use tonic::transport::{Channel, Server};

use super::{Assignments, CLUSTER, EdsService, Endpoints, Peers};
use crate::metrics::Metrics;

const DEADLINE: Duration = Duration::from_secs(30);
/// Long enough for a message that must not come to come.
const QUIET: Duration = Duration::from_millis(300);

struct Control {
    client: EndpointDiscoveryServiceClient<Channel>,
    assignments: watch::Sender<Option<Arc<Assignments>>>,
    peers: Arc<Peers>,
    shutdown: CancellationToken,
}

async fn control() -> Control {
    let (assignments, seen) = watch::channel(None);
    let peers = Arc::new(Peers::default());
    let shutdown = CancellationToken::new();
    let eds = EdsService::new(seen, peers.clone(), Arc::new(Metrics::default()), shutdown.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = EndpointDiscoveryServiceServer::new(eds);
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener)));
    let client = EndpointDiscoveryServiceClient::connect(format!("http://{address}")).await.unwrap();
    Control { client, assignments, peers, shutdown }
}

impl Control {
    fn set(&self, addresses: &[&str]) {
        let addresses: BTreeSet<SocketAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let endpoints = Endpoints { workers: addresses, ..Endpoints::default() };
        let backends = BTreeMap::from([("default/main".to_owned(), endpoints)]);
        self.assignments.send_replace(Some(Arc::new(Assignments::new(&backends, &BTreeSet::new()))));
    }

    /// A backend is in force, and another exists and is not.
    fn set_broken(&self, broken: &str) {
        let backends = BTreeMap::from([("default/other".to_owned(), Endpoints::default())]);
        let assignments = Assignments::new(&backends, &BTreeSet::from([broken.to_owned()]));
        self.assignments.send_replace(Some(Arc::new(assignments)));
    }

    async fn until_peer(&self, wanted: impl Fn(&super::Peer) -> bool) {
        let wait = async {
            while !self.peers.list().iter().any(&wanted) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(DEADLINE, wait).await.expect("the status never says so");
    }
}

async fn next<T>(stream: &mut Streaming<T>) -> T {
    tokio::time::timeout(DEADLINE, stream.message())
        .await
        .expect("no response came")
        .unwrap()
        .expect("the stream ended")
}

async fn nothing<T: std::fmt::Debug>(stream: &mut Streaming<T>) {
    let came = tokio::time::timeout(QUIET, stream.message()).await;
    assert!(came.is_err(), "a response without a change: {came:?}");
}

fn addresses(assignment: &[u8]) -> Vec<String> {
    let assignment = ClusterLoadAssignment::decode(assignment).unwrap();
    let endpoints = assignment.endpoints.into_iter().flat_map(|locality| locality.lb_endpoints);
    let of = |endpoint| match endpoint {
        Some(lb_endpoint::HostIdentifier::Endpoint(endpoint)) => endpoint.address.unwrap().address.unwrap(),
        other => panic!("{other:?}"),
    };
    endpoints
        .map(|endpoint| match of(endpoint.host_identifier) {
            address::Address::SocketAddress(socket) => match socket.port_specifier {
                Some(socket_address::PortSpecifier::PortValue(port)) => format!("{}|{port}", socket.address),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        })
        .collect()
}

fn request(response: Option<&DiscoveryResponse>, error: Option<&str>) -> DiscoveryRequest {
    DiscoveryRequest {
        node: Some(Node { id: "envoy-1".into(), ..Default::default() }),
        resource_names: vec![CLUSTER.into()],
        version_info: response.map(|response| response.version_info.clone()).unwrap_or_default(),
        response_nonce: response.map(|response| response.nonce.clone()).unwrap_or_default(),
        error_detail: error.map(|message| RpcStatus { message: message.into(), ..Default::default() }),
        ..Default::default()
    }
}

#[tokio::test]
async fn state_of_the_world() {
    let mut control = control().await;
    let (say, outgoing) = mpsc::channel(8);
    say.send(request(None, None)).await.unwrap();
    let mut hear = control.client.stream_endpoints(ReceiverStream::new(outgoing)).await.unwrap().into_inner();
    nothing(&mut hear).await;
    control.set(&["10.0.0.1:8000", "[fd00::8]:8001"]);
    let first = next(&mut hear).await;
    assert_eq!(first.type_url, "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment");
    assert_eq!(addresses(&first.resources[0].value), ["10.0.0.1|8000", "fd00::8|8001"]);
    say.send(request(Some(&first), None)).await.unwrap();
    control.until_peer(|peer| peer.node == "envoy-1" && peer.acknowledged == first.version_info).await;
    control.set(&["10.0.0.1:8000", "[fd00::8]:8001"]);
    nothing(&mut hear).await;

    control.set(&["10.0.0.1:8000"]);
    let second = next(&mut hear).await;
    assert_ne!((&second.version_info, &second.nonce), (&first.version_info, &first.nonce));
    assert_eq!(addresses(&second.resources[0].value), ["10.0.0.1|8000"]);
    let mut refusal = request(Some(&second), Some("malformed"));
    refusal.version_info = first.version_info.clone();
    say.send(refusal).await.unwrap();
    control.until_peer(|peer| peer.refused.as_deref() == Some("malformed")).await;
    nothing(&mut hear).await;

    // A late answer to the first response changes nothing.
    say.send(request(Some(&first), None)).await.unwrap();
    nothing(&mut hear).await;
    assert!(control.peers.list()[0].refused.is_some());
    control.set(&[]);
    let third = next(&mut hear).await;
    assert!(addresses(&third.resources[0].value).is_empty());
    say.send(request(Some(&third), None)).await.unwrap();
    control.until_peer(|peer| peer.refused.is_none() && peer.acknowledged == third.version_info).await;

    // Another cluster is asked for.
    let mut more = request(Some(&third), None);
    more.resource_names.push("kinference_workers/default/main".into());
    say.send(more).await.unwrap();
    assert_eq!(next(&mut hear).await.resources.len(), 2);
    control.shutdown.cancel();
    let ended = tokio::time::timeout(DEADLINE, hear.message()).await.unwrap();
    assert!(matches!(ended, Ok(None)), "{ended:?}");
    let wait = async {
        while !control.peers.list().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.expect("a peer that is gone stays listed");
}

#[tokio::test]
async fn delta() {
    let mut control = control().await;
    control.set(&["10.0.0.1:8000"]);
    let (say, outgoing) = mpsc::channel(8);
    let subscribe = DeltaDiscoveryRequest {
        node: Some(Node { id: "envoy-2".into(), ..Default::default() }),
        resource_names_subscribe: vec![CLUSTER.into(), "kinference_workers/default/gone".into()],
        ..Default::default()
    };
    say.send(subscribe).await.unwrap();
    let mut hear = control.client.delta_endpoints(ReceiverStream::new(outgoing)).await.unwrap().into_inner();
    let first = next(&mut hear).await;
    let of = |response: &DeltaDiscoveryResponse| {
        let listed = response.resources.iter();
        listed
            .map(|one| (one.name.clone(), addresses(&one.resource.as_ref().unwrap().value)))
            .collect::<BTreeMap<_, _>>()
    };
    assert_eq!(of(&first)[CLUSTER], ["10.0.0.1|8000"]);
    assert!(of(&first)["kinference_workers/default/gone"].is_empty());
    let answer = |response: &DeltaDiscoveryResponse| DeltaDiscoveryRequest {
        response_nonce: response.nonce.clone(),
        ..Default::default()
    };
    say.send(answer(&first)).await.unwrap();
    control.until_peer(|peer| peer.node == "envoy-2" && peer.acknowledged == first.system_version_info).await;
    control.set(&["10.0.0.1:8000", "10.0.0.2:8000"]);
    let second = next(&mut hear).await;
    assert_eq!(of(&second).len(), 1, "only what changed");
    assert_eq!(of(&second)[CLUSTER], ["10.0.0.1|8000", "10.0.0.2|8000"]);
    let unsubscribe = DeltaDiscoveryRequest { resource_names_unsubscribe: vec![CLUSTER.into()], ..answer(&second) };
    say.send(unsubscribe).await.unwrap();
    control.until_peer(|peer| peer.acknowledged == second.system_version_info).await;
    control.set(&["10.0.0.3:8000"]);
    nothing(&mut hear).await;
}

#[tokio::test]
async fn a_single_request_gets_a_single_answer() {
    let mut control = control().await;
    assert_eq!(control.client.fetch_endpoints(request(None, None)).await.unwrap_err().code(), tonic::Code::Unavailable);
    control.set(&["10.0.0.1:8000"]);
    let response = control.client.fetch_endpoints(request(None, None)).await.unwrap().into_inner();
    assert_eq!(addresses(&response.resources[0].value), ["10.0.0.1|8000"]);
}

#[tokio::test]
async fn an_envoy_is_told_nothing_of_a_backend_that_is_not_in_force() {
    let mut control = control().await;
    control.set_broken("default/main");
    let name = "kinference_workers/default/main";
    let world = DiscoveryRequest { resource_names: vec![name.into()], ..request(None, None) };
    let delta = DeltaDiscoveryRequest { resource_names_subscribe: vec![name.into()], ..Default::default() };
    let refused = control.client.fetch_endpoints(world.clone()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    let (say, outgoing) = mpsc::channel(8);
    say.send(world).await.unwrap();
    let mut hear = control.client.stream_endpoints(ReceiverStream::new(outgoing)).await.unwrap().into_inner();
    let (say_delta, outgoing) = mpsc::channel(8);
    say_delta.send(delta).await.unwrap();
    let mut hear_delta = control.client.delta_endpoints(ReceiverStream::new(outgoing)).await.unwrap().into_inner();
    nothing(&mut hear).await;
    nothing(&mut hear_delta).await;
    control.set(&["10.0.0.1:8000"]);
    assert_eq!(addresses(&next(&mut hear).await.resources[0].value), ["10.0.0.1|8000"]);
    let listed = next(&mut hear_delta).await.resources.remove(0);
    assert_eq!(addresses(&listed.resource.unwrap().value), ["10.0.0.1|8000"]);
}
