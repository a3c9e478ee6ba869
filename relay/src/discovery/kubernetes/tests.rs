//! Against an API server of our own, which says what it is told to.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::super::{Sightings, SourceReplicas};
use super::*;
use crate::config::{Discovery, Place, Port};
use crate::engine::way::Way;
use crate::index::Duplicates;

type Watch = mpsc::UnboundedSender<Result<Bytes, io::Error>>;

/// What the API server says.
#[derive(Default)]
struct Says {
    /// Slices in a list; none where everything fails.
    list: Option<Vec<Value>>,
    /// Each watch that begins, with the resource version that it begins at.
    watches: Option<mpsc::Sender<(String, Watch)>>,
}

type Shared = Arc<Mutex<Says>>;

async fn slices(State(says): State<Shared>, query: Query<HashMap<String, String>>) -> Response {
    assert_eq!(query["labelSelector"], "kubernetes.io/service-name=engines");
    if says.lock().unwrap().list.is_none() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    if query.get("watch").is_some_and(|watch| watch != "false") {
        let (sender, receiver) = mpsc::unbounded_channel();
        let watches = says.lock().unwrap().watches.clone().unwrap();
        let version = query["resourceVersion"].clone();
        let _ = watches.send((version, sender)).await;
        return Body::from_stream(UnboundedReceiverStream::new(receiver)).into_response();
    }
    let items = says.lock().unwrap().list.clone();
    axum::Json(json!({
        "kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"resourceVersion": "10"}, "items": items,
    }))
    .into_response()
}

fn slice(name: &str, endpoints: &[(&str, Value)]) -> Value {
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|(ip, conditions)| json!({"addresses": [ip], "conditions": conditions}))
        .collect();
    json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"name": name, "namespace": "llm", "resourceVersion": "11",
            "labels": {"kubernetes.io/service-name": "engines"}},
        "addressType": if name.contains("v6") { "IPv6" } else { "IPv4" },
        "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8000, "protocol": "TCP"},
            {"name": "events", "port": 5557, "protocol": "TCP"}],
    })
}

fn ready() -> Value {
    json!({"ready": true, "serving": true, "terminating": false})
}

fn event(kind: &str, object: &Value) -> Bytes {
    format!("{}\n", json!({"type": kind, "object": object})).into()
}

struct Bench {
    says: Shared,
    found: mpsc::Receiver<SourceReplicas>,
    watches: mpsc::Receiver<(String, Watch)>,
    sightings: Sightings,
    tasks: Vec<JoinHandle<()>>,
    kubeconfig: PathBuf,
}

impl Bench {
    async fn new(list: Option<Vec<Value>>) -> Self {
        let (sender, watches) = mpsc::channel(16);
        let says = Arc::new(Mutex::new(Says { list, watches: Some(sender) }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let path = "/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices";
        let app = axum::Router::new()
            .route(path, axum::routing::get(slices))
            .with_state(Arc::clone(&says));
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let file = format!("warmpath-kube-{}-{}.yaml", std::process::id(), fresh());
        let kubeconfig = std::env::temp_dir().join(file);
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "k", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "llm"}}],
        });
        std::fs::write(&kubeconfig, text.to_string()).unwrap();
        let place = Place::Kubernetes {
            service: "engines".into(),
            namespace: None,
            kubeconfig: Some(kubeconfig.clone()),
        };
        let discovery = Discovery {
            place,
            port: Port::Name("http".into()),
            pool: "eu".into(),
            model: 0,
            store: None,
            weight: 100,
            adapters: None,
            events_port: Some(Port::Name("events".into())),
            replay_port: Some(Port::Number(5558)),
            duplicates: Duplicates::Doubt,
            ranks: None,
        };
        let (sender, found) = mpsc::channel(1);
        let sightings = Sightings::default();
        let following = tokio::spawn(Source::new(4, discovery, sender, &sightings).follow());
        Self { says, found, watches, sightings, tasks: vec![serving, following], kubeconfig }
    }

    /// The next table: endpoints, and whether they take nothing new.
    async fn next(&mut self) -> Vec<(String, bool)> {
        let found = tokio::time::timeout(Duration::from_secs(20), self.found.recv());
        let (place, replicas) = found.await.expect("it never came").unwrap();
        assert_eq!(place, 4);
        replicas.iter().map(|r| (r.endpoint.to_string(), r.draining)).collect()
    }

    async fn watch(&mut self) -> (String, Watch) {
        let watch = tokio::time::timeout(Duration::from_secs(20), self.watches.recv());
        watch.await.expect("it never watched").unwrap()
    }

    fn list(&self, list: Option<Vec<Value>>) {
        self.says.lock().unwrap().list = list;
    }

    /// Whether it answers, replicas and failures.
    fn numbers(&self) -> [u64; 3] {
        self.sightings.all()[0].1
    }

    async fn until(&self, what: impl Fn([u64; 3]) -> bool) {
        let came = async {
            while !what(self.numbers()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let came = tokio::time::timeout(Duration::from_secs(20), came).await;
        assert!(came.is_ok(), "it never came to that: {:?}", self.numbers());
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        let _ = std::fs::remove_file(&self.kubeconfig);
    }
}

fn fresh() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn takes(ip: &str) -> (String, bool) {
    (format!("{ip}:8000"), false)
}

fn drains(ip: &str) -> (String, bool) {
    (format!("{ip}:8000"), true)
}

#[tokio::test]
async fn slices_are_listed_then_watched_and_conditions_say_who_takes_requests() {
    let first = slice("a", &[("10.0.0.1", ready()), ("10.0.0.2", json!({"ready": false}))]);
    let mut bench = Bench::new(Some(vec![first.clone()])).await;
    assert_eq!(bench.next().await, [takes("10.0.0.1"), drains("10.0.0.2")]);
    let (version, watch) = bench.watch().await;
    assert_eq!(version, "10");
    // It is ready, and in a second slice there is another one. An event may come in pieces.
    let grown = slice("a", &[("10.0.0.1", ready()), ("10.0.0.2", json!({}))]);
    let line = event("MODIFIED", &grown);
    watch.send(Ok(line.slice(..40))).unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    watch.send(Ok(line.slice(40..))).unwrap();
    assert_eq!(bench.next().await, [takes("10.0.0.1"), takes("10.0.0.2")]);
    let second = slice("b", &[("10.0.0.3", ready())]);
    watch.send(Ok(event("ADDED", &second))).unwrap();
    assert_eq!(bench.next().await.len(), 3);
    // One goes: it finishes what it has, then it is gone.
    let leaving = |serving| json!({"ready": false, "serving": serving, "terminating": true});
    watch.send(Ok(event("MODIFIED", &slice("b", &[("10.0.0.3", leaving(true))])))).unwrap();
    assert_eq!(bench.next().await[2], drains("10.0.0.3"));
    watch.send(Ok(event("MODIFIED", &slice("b", &[("10.0.0.3", leaving(false))])))).unwrap();
    assert_eq!(bench.next().await.len(), 2);
    watch.send(Ok(event("DELETED", &grown))).unwrap();
    assert_eq!(bench.next().await, [], "it is the API's word that there are none");
    assert_eq!(bench.numbers(), [1, 0, 0]);
}

#[tokio::test]
async fn what_the_api_no_longer_remembers_is_listed_anew() {
    let mut bench = Bench::new(Some(vec![slice("a", &[("10.0.0.1", ready())])])).await;
    assert_eq!(bench.next().await, [takes("10.0.0.1")]);
    let (_, watch) = bench.watch().await;
    bench.list(Some(vec![slice("a", &[("10.0.0.9", ready())])]));
    let expired = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too old resource version: 1 (10)", "reason": "Expired", "code": 410});
    watch.send(Ok(event("ERROR", &expired))).unwrap();
    assert_eq!(bench.next().await, [takes("10.0.0.9")]);
    assert_eq!(bench.numbers(), [1, 1, 1]);
}

#[tokio::test]
async fn a_failing_api_takes_nobody_away() {
    // It fails from the start: nothing is told.
    let mut bench = Bench::new(None).await;
    bench.until(|[answers, _, failures]| answers == 0 && failures >= 1).await;
    assert!(bench.found.try_recv().is_err());
    bench.list(Some(vec![slice("a", &[("10.0.0.1", ready())])]));
    assert_eq!(bench.next().await, [takes("10.0.0.1")]);
    // The connection is cut in the middle of an event, and then the API is gone for a while.
    let (_, watch) = bench.watch().await;
    let failures = bench.numbers()[2];
    bench.list(None);
    watch.send(Ok("{\"type\": \"DEL".into())).unwrap();
    watch.send(Err(io::Error::other("cut"))).unwrap();
    bench.until(|[answers, _, now]| answers == 0 && now >= failures + 2).await;
    assert!(bench.found.try_recv().is_err(), "what was known stays");
    assert_eq!(bench.numbers()[1], 1);
    bench.list(Some(vec![slice("a", &[("10.0.0.1", ready()), ("10.0.0.2", ready())])]));
    assert_eq!(bench.next().await, [takes("10.0.0.1"), takes("10.0.0.2")]);
    // A watch that ends in order goes on where it was.
    let (_, watch) = bench.watch().await;
    drop(watch);
    let (_, watch) = bench.watch().await;
    watch.send(Ok(event("DELETED", &slice("a", &[])))).unwrap();
    assert_eq!(bench.next().await, []);
}

#[tokio::test]
async fn ports_have_names_and_a_pod_of_two_families_is_one_replica() {
    let both = [slice("v6", &[("fd00::1", ready())]), slice("v4", &[("10.0.0.1", ready())])];
    let bench = Bench::new(Some(both.to_vec())).await;
    let mut bench = bench;
    let found = tokio::time::timeout(Duration::from_secs(20), bench.found.recv());
    let (_, replicas) = found.await.unwrap().unwrap();
    let [replica] = &replicas[..] else { panic!("{replicas:?}") };
    let events = replica.events.as_ref().unwrap();
    assert_eq!(events.way, Way::Connect("10.0.0.1:5557".into()));
    assert_eq!(events.replay.as_deref(), Some("10.0.0.1:5558"));
    let (_, watch) = bench.watch().await;
    watch.send(Ok(event("DELETED", &both[1]))).unwrap();
    assert_eq!(bench.next().await, [("[fd00::1]:8000".to_owned(), false)]);
    // Without the port's name there is no place to send requests to.
    let mut nameless = slice("v6", &[("fd00::1", ready())]);
    nameless["ports"] = json!([{"port": 8000}]);
    watch.send(Ok(event("MODIFIED", &nameless))).unwrap();
    assert_eq!(bench.next().await, []);
}
