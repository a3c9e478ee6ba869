//! The relay as a service: reload, admin endpoint, and what engines' APIs tell.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod access;
#[path = "../common/mod.rs"]
mod common;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use warmpath_proto::v1::replica::State;
use warmpath_proto::v1::{Down, Hello, PolicyPool, Pools, Replica, Up, down, up};

use common::relay::{
    Follower, Publisher, Relay, api, api_at, configuration, life, one_replica, retry,
};

async fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

/// Status and body.
async fn ask(admin: SocketAddr, method: &str, path: &str) -> (u16, String) {
    let mut stream = tokio::net::TcpStream::connect(admin).await.unwrap();
    stream.write_all(format!("{method} {path} HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[tokio::test]
async fn a_reload_adds_and_removes_without_touching_the_rest() {
    let (frames, expected) = life();
    let (first, second) = (api().await, api().await);
    let mut publisher = Publisher::bind("tcp://127.0.0.1:0").await;
    let events = format!("{{ connect: \"{}\" }}", publisher.address);
    let yaml = one_replica(first.address, &events);
    let relay = Relay::with(&yaml).await;
    publisher.subscribed().await;
    let mut follower = Follower::open(&relay, vec![]).await;
    publisher.publish(&frames[0]).await;
    follower.until_keys(&expected[0]).await;
    let slot = follower.view.replicas[0].slot;

    // A second replica, one more adapter, which the first one has, and that one drains: its view
    // stays.
    let more = yaml
        .replace("[lora-a]", "[lora-a, lora-b]")
        .replace(
            "model: demo, events",
            "model: demo, draining: true, weight: 2, adapters: [lora-b], events",
        )
        .replace(
            "replicas:\n",
            &format!(
                "replicas:\n- {{ endpoint: \"{}\", pool: us, model: demo }}\n",
                second.address
            ),
        );
    relay.reload.send(configuration(&more)).await.unwrap();
    follower
        .until("two replicas and two adapters", |view| {
            let of_first = view.replicas.iter().find(|r| r.slot == slot);
            view.replicas.len() == 2
                && view.replicas.iter().any(|r| r.pool == "us" && r.state() == State::Ready)
                && of_first.is_some_and(|r| {
                    r.state() == State::Draining && r.weight == 200 && r.adapters == ["lora-b"]
                })
                && view.models[0].adapters.len() == 2
        })
        .await;
    assert_eq!(follower.view.held[&slot], expected[0]);
    publisher.publish(&frames[1]).await;
    follower.until("events of the first", |view| view.held[&slot] == expected[1]).await;

    // Another model version: what was known under the old one is void. Then it leaves.
    let other = yaml.replace("version: \"1\"", "version: \"2\"");
    relay.reload.send(configuration(&other)).await.unwrap();
    follower
        .until("a new life", |view| view.replicas.len() == 1 && view.replicas[0].slot != slot)
        .await;
    assert!(follower.view.keys().is_empty());
    assert_eq!(follower.view.models[0].version, "2");
    let none = &other[..other.find("replicas:").unwrap()];
    relay.reload.send(configuration(none)).await.unwrap();
    follower.until("nobody left", |view| view.replicas.is_empty()).await;
    relay.stop().await;
}

#[tokio::test]
async fn the_admin_endpoint_names_holders_and_drains() {
    let (frames, expected) = life();
    let api = api().await;
    let mut publisher = Publisher::bind("tcp://127.0.0.1:0").await;
    let admin: SocketAddr = ([127, 0, 0, 1], free_port().await).into();
    let events = format!("{{ connect: \"{}\" }}", publisher.address);
    let yaml = format!("admin: {admin}\n{}", one_replica(api.address, &events));
    let relay = Relay::with(&yaml).await;
    publisher.subscribed().await;
    let mut follower = Follower::open(&relay, vec![]).await;
    publisher.publish(&frames[0]).await;
    follower.until_keys(&expected[0]).await;
    follower.until("ready", |view| view.state() == State::Ready).await;

    let key = expected[0].first().unwrap();
    let (status, body) = ask(admin, "GET", &format!("/holders?key={key:?}")).await;
    assert_eq!(status, 200);
    assert!(body.contains(&api.address.to_string()), "{body}");
    let (_, body) = ask(admin, "GET", &format!("/holders?key={}", "0".repeat(64))).await;
    assert_eq!(body, "[]");
    for wrong in ["x", "+1111111111111111111111111111111", "\u{e9}"] {
        assert_eq!(ask(admin, "GET", &format!("/holders?key={wrong}")).await.0, 400, "{wrong}");
    }

    let path = format!("/drain?endpoint={}", api.address);
    assert_eq!(ask(admin, "POST", &path).await.0, 200);
    follower.until("draining", |view| view.state() == State::Draining).await;
    assert_eq!(ask(admin, "DELETE", &path).await.0, 200);
    follower.until("ready again", |view| view.state() == State::Ready).await;
    assert_eq!(ask(admin, "POST", "/drain?endpoint=127.0.0.1:1").await.0, 404);
    assert_eq!(ask(admin, "GET", &path).await.0, 405, "looking changes nothing");
    relay.stop().await;
}

#[tokio::test]
async fn names_are_looked_up_and_their_addresses_are_replicas() {
    let api = api().await;
    let yaml = one_replica(api.address, "{}");
    let models = &yaml[..yaml.find("replicas:").unwrap()];
    let dns =
        format!("- {{ dns: localhost, port: {}, pool: eu, model: demo }}", api.address.port());
    let relay = Relay::with(&format!("{models}discovery:\n{dns}\n")).await;
    let mut follower = Follower::open(&relay, vec![]).await;
    let endpoint = api.address.to_string();
    follower
        .until("the replica", |view| {
            let replica = view.replicas.iter().find(|replica| replica.endpoint == endpoint);
            replica.is_some_and(|replica| replica.state() == State::Ready)
        })
        .await;
    relay.stop().await;
}

fn listing(model: &str, adapters: &[&str]) -> String {
    let adapters = adapters.iter().map(|id| format!(r#",{{"id":"{id}","parent":"{model}"}}"#));
    format!(r#"{{"data":[{{"id":"{model}","parent":null}}{}]}}"#, adapters.collect::<String>())
}

#[tokio::test]
async fn engines_say_which_model_and_adapters_they_serve() {
    let api = api().await;
    *api.models.lock().unwrap() = listing("another", &[]);
    let admin: SocketAddr = ([127, 0, 0, 1], free_port().await).into();
    let yaml = one_replica(api.address, "{}")
        .replace("name: demo,", "name: demo, from_engine: true,")
        .replace("interval_ms: 20,", "interval_ms: 20, models_ms: 20,")
        .replace(", events: {}", "");
    let relay = Relay::with(&format!("admin: {admin}\n{yaml}")).await;
    let mut follower = Follower::open(&relay, vec![]).await;
    follower.until("loads", |view| !view.loads.is_empty()).await;
    assert_eq!(follower.view.state(), State::Down, "it serves another model");
    let (_, metrics) = ask(admin, "GET", "/metrics").await;
    let line = metrics.lines().find(|line| line.starts_with("warmpath_relay_replica_wrong_model{"));
    assert!(line.unwrap().ends_with(" 1"), "{line:?}");
    assert!(ask(admin, "GET", "/status").await.1.contains(r#""wrong_model":"another""#));

    *api.models.lock().unwrap() = listing("demo", &["sql"]);
    let adapters = |names: [&'static str; 2]| {
        move |view: &common::relay::View| {
            view.state() == State::Ready && view.models[0].adapters == names
        }
    };
    follower.until("the adapter", adapters(["lora-a", "sql"])).await;
    *api.models.lock().unwrap() = listing("demo", &["math"]);
    follower.until("the other one", adapters(["lora-a", "math"])).await;
    // What can't be read changes nothing; another model does.
    *api.models.lock().unwrap() = "?".to_owned();
    retry(async || {
        let (_, text) = ask(admin, "GET", "/metrics").await;
        let mut lines = text.lines();
        let line =
            lines.find(|line| line.starts_with("warmpath_relay_replica_polls_failed_total{"))?;
        line.rsplit(' ').next()?.parse::<u32>().ok().filter(|failed| *failed >= 2)
    })
    .await;
    assert_eq!(follower.view.state(), State::Ready);
    *api.models.lock().unwrap() = listing("another", &[]);
    follower.until("taken out", |view| view.state() == State::Down).await;
    follower.until("its names, too", |view| view.models[0].adapters == ["lora-a"]).await;
    relay.stop().await;
}

#[tokio::test]
async fn an_adapter_is_known_where_it_is_loaded() {
    let (first, second) = (api().await, api().await);
    *first.models.lock().unwrap() = listing("demo", &[]);
    *second.models.lock().unwrap() = listing("demo", &["lora-a"]);
    let admin: SocketAddr = ([127, 0, 0, 1], free_port().await).into();
    let ranks = [0, 1].map(|rank| {
        format!("- {{ endpoint: \"{}\", rank: {rank}, pool: eu, model: demo }}\n", second.address)
    });
    let yaml = one_replica(first.address, "{}")
        .replace("name: demo,", "name: demo, from_engine: true,")
        .replace("interval_ms: 20,", "interval_ms: 20, models_ms: 20,")
        .replace(", events: {}", "")
        .replace("polling:", &format!("{}polling:", ranks.concat()));
    let relay = Relay::with(&format!("admin: {admin}\n{yaml}")).await;
    let mut follower = Follower::open(&relay, vec![]).await;
    let rows = |view: &common::relay::View| -> Vec<(u32, Option<String>)> {
        let row = |row: &Replica| (row.slot, row.adapters_known.then(|| row.adapters.join(" ")));
        view.replicas.iter().map(row).collect()
    };
    let known = |adapters: [&str; 3]| {
        let of = |(slot, names): (u32, &str)| (slot, Some(names.to_owned()));
        let expected: Vec<_> = (0..).zip(adapters).map(of).collect();
        move |view: &common::relay::View| rows(view) == expected
    };
    follower.until("each engine's", known(["", "lora-a", "lora-a"])).await;
    let status: serde_json::Value =
        serde_json::from_str(&ask(admin, "GET", "/status").await.1).unwrap();
    assert_eq!(status["replicas"][0]["adapters"], serde_json::json!([]));
    assert_eq!(status["replicas"][2]["adapters"], serde_json::json!(["lora-a"]));
    let (_, metrics) = ask(admin, "GET", "/metrics").await;
    for (name, value) in [("adapters_known", "1"), ("adapters", "1")] {
        let series = format!("warmpath_relay_replica_{name}{{endpoint=\"{}\"", second.address);
        let mut lines = metrics.lines().filter(|line| line.starts_with(&series));
        assert!(lines.all(|line| line.ends_with(&format!(" {value}"))), "{metrics}");
        assert!(metrics.contains(&series), "{name}");
    }
    // Loaded and unloaded at run time: told, under the same slots.
    *first.models.lock().unwrap() = listing("demo", &["lora-a", "sql"]);
    *second.models.lock().unwrap() = listing("demo", &["math"]);
    follower.until("what changed", known(["lora-a sql", "math", "math"])).await;
    // Nothing is known of one that is down.
    first.serving.abort();
    follower
        .until("nothing of the first", |view| {
            view.state() == State::Down && rows(view)[0] == (0, None)
        })
        .await;
    assert_eq!(rows(&follower.view)[1].1.as_deref(), Some("math"));
    relay.stop().await;
}

fn pools(pools: &[(&str, &str)]) -> Up {
    let row = |(name, model): &(&str, &str)| PolicyPool {
        name: (*name).to_owned(),
        model: (*model).to_owned(),
    };
    let pools = pools.iter().map(row).collect();
    Up { body: Some(up::Body::Pools(Pools { pools, incomplete: false })) }
}

#[tokio::test]
async fn a_pool_that_the_gateways_policy_cannot_use_is_shown() {
    let api = api().await;
    let admin: SocketAddr = ([127, 0, 0, 1], free_port().await).into();
    let yaml = one_replica(api.address, "{}").replace(", events: {}", "");
    let relay = Relay::with(&format!("admin: {admin}\n{yaml}")).await;
    let mut follower = Follower::open(&relay, vec![]).await;
    follower.until("ready", |view| view.state() == State::Ready).await;
    let shown = async |gauge: Option<&str>| {
        retry(async || {
            let (_, metrics) = ask(admin, "GET", "/metrics").await;
            let mut lines = metrics.lines();
            let is = lines.find(|line| line.starts_with("warmpath_relay_pool_mismatches{"));
            (is == gauge).then_some(())
        })
        .await;
    };
    for (policy, gauge) in [
        (vec![("eu-wset", "demo")], Some("problem=\"not_in_policy\"")),
        (vec![("eu", "demo2")], Some("problem=\"other_model\"")),
        (vec![("eu", "demo"), ("us", "demo")], None),
        (vec![], Some("problem=\"not_in_policy\"")),
    ] {
        follower.up.send(pools(&policy)).await.unwrap();
        let gauge = gauge.map(|problem| {
            format!("warmpath_relay_pool_mismatches{{pool=\"eu\",model=\"demo\",{problem}}} 1")
        });
        shown(gauge.as_deref()).await;
    }
    let status: serde_json::Value =
        serde_json::from_str(&ask(admin, "GET", "/status").await.1).unwrap();
    let expected = serde_json::json!([{
        "pool": "eu", "model": "demo", "problem": "not_in_policy", "policy_models": [],
        "gateways": 1, "nodes": ["test"]
    }]);
    assert_eq!(status["pool_mismatches"], expected);
    // A replica that comes later, and a gateway that goes.
    let later = yaml.replace("pool: eu,", "pool: us,");
    relay.reload.send(configuration(&later)).await.unwrap();
    let gauge =
        "warmpath_relay_pool_mismatches{pool=\"us\",model=\"demo\",problem=\"not_in_policy\"} 1";
    shown(Some(gauge)).await;
    drop(follower);
    shown(None).await;
    relay.stop().await;
}

/// An Up of a time to come.
#[derive(Clone, PartialEq, prost::Message)]
struct LaterUp {
    #[prost(message, optional, tag = "1")]
    hello: Option<Hello>,
    #[prost(string, tag = "99")]
    news: String,
}

#[tokio::test]
async fn what_a_newer_filter_says_ends_no_stream() {
    let api = api().await;
    let yaml = one_replica(api.address, "{}").replace(", events: {}", "");
    let relay = Relay::with(&yaml).await;
    let endpoint = tonic::transport::Endpoint::new(format!("http://{}", relay.address)).unwrap();
    let channel = retry(async || endpoint.connect().await.ok()).await;
    let later = |hello, news: &str| LaterUp { hello, news: news.into() };
    let ups = tokio_stream::iter([
        later(Some(Hello::default()), ""),
        later(None, "what no relay knows yet"),
        later(None, ""),
        later(None, "again"),
    ]);
    let ups = tokio_stream::StreamExt::chain(ups, tokio_stream::pending());
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<LaterUp, Down>::default();
    let path = http::uri::PathAndQuery::from_static("/warmpath.sidestream.v1.SideStream/Follow");
    let answer = client.streaming(tonic::Request::new(ups), path, codec).await.unwrap();
    let mut stream = answer.into_inner();
    let mut beats = 0;
    while beats < 3 {
        let down = stream.message().await.unwrap().expect("the stream goes on");
        beats += u32::from(matches!(down.body, Some(down::Body::Beat(_))));
    }
    relay.stop().await;
}

#[tokio::test]
async fn an_engine_that_tells_its_load_is_seldom_asked_for_its_health() {
    let api = api().await;
    let yaml = one_replica(api.address, "{}")
        .replace("health_ms: 20", "health_ms: 60000, timeout_ms: 100")
        .replace(", events: {}", "");
    let relay = Relay::with(&yaml).await;
    let mut follower = Follower::open(&relay, vec![]).await;
    follower.until("ready", |view| view.state() == State::Ready).await;
    let [health, metrics] = api.asked.each_ref().map(|asked| || asked.load(Ordering::Relaxed));
    retry(async || (metrics() >= 10).then_some(())).await;
    assert_eq!(health(), 1);
    // Nor one that has nothing to tell.
    api.bare.store(true, Ordering::Relaxed);
    let before = metrics();
    retry(async || (metrics() >= before + 10).then_some(())).await;
    assert_eq!(health(), 1);
    // One that hangs is down after three answers that didn't come, the first of them this.
    api.silent.store(true, Ordering::Relaxed);
    follower.until("down", |view| view.state() == State::Down).await;
    assert!((3..=4).contains(&health()), "{}", health());
    api.silent.store(false, Ordering::Relaxed);
    follower.until("ready", |view| view.state() == State::Ready).await;
    // That it is gone shows all the same, and that it is back.
    api.serving.abort();
    follower.until("down", |view| view.state() == State::Down).await;
    drop(api.serving.await);
    let _api = api_at(api.address).await;
    follower.until("ready", |view| view.state() == State::Ready).await;
    relay.stop().await;
}

#[tokio::test]
async fn an_engines_metrics_tell_its_ranks_and_its_sleep() {
    let api = api().await;
    let admin: SocketAddr = ([127, 0, 0, 1], free_port().await).into();
    let yaml = one_replica(api.address, "{}").replace(", events: {}", "");
    let relay = Relay::with(&format!("admin: {admin}\n{yaml}")).await;
    let mut follower = Follower::open(&relay, vec![]).await;
    follower.until("ready", |view| view.state() == State::Ready).await;
    let told = async |problem: &str| {
        let (_, status) = ask(admin, "GET", "/status").await;
        status.contains(&format!("\"rank_problem\":{problem}")).then_some(())
    };
    retry(async || told("null").await).await;
    *api.more.lock().unwrap() = "vllm:num_requests_running{engine=\"1\"} 3\n".to_owned();
    retry(async || told("\"unranked\"").await).await;
    let (_, metrics) = ask(admin, "GET", "/metrics").await;
    let mut lines = metrics.lines();
    let line = lines.find(|line| line.starts_with("warmpath_relay_replica_rank_problem{"));
    assert!(line.unwrap().ends_with(" 1"), "{line:?}");
    assert_eq!(follower.view.state(), State::Ready, "it serves all the same");

    *api.more.lock().unwrap() =
        "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0.0\n".to_owned();
    follower.until("asleep", |view| view.state() == State::Draining).await;
    retry(async || told("null").await).await;
    api.more.lock().unwrap().clear();
    follower.until("awake", |view| view.state() == State::Ready).await;
    relay.stop().await;
}

#[tokio::test]
async fn a_source_that_fails_at_start_stops_nothing() {
    let api = api().await;
    let admin: SocketAddr = ([127, 0, 0, 1], free_port().await).into();
    let yaml = one_replica(api.address, "{}").replace(", events: {}", "");
    let source = "{ dns: nothing.invalid, port: 8000, pool: eu, model: demo, every_ms: 20 }";
    let relay = Relay::with(&format!("admin: {admin}\n{yaml}discovery: [{source}]\n")).await;
    let mut follower = Follower::open(&relay, vec![]).await;
    follower.until("ready", |view| view.state() == State::Ready).await;
    retry(async || {
        let (_, text) = ask(admin, "GET", "/metrics").await;
        let name = "warmpath_relay_discovery_failures_total{source=\"dns/nothing.invalid\"} ";
        let failures: u32 = text.lines().find_map(|line| line.strip_prefix(name))?.parse().ok()?;
        (failures >= 2 && text.contains("discovery_answers{source=\"dns/nothing.invalid\"} 0"))
            .then_some(())
    })
    .await;
    relay.stop().await;
}
