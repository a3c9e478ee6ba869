//! A whole relay against real ZeroMQ publishers of another implementation, read through gRPC.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::sleep;
use warmpath_proto::v1::replica::State;
use zeromq::{Socket, SocketSend};

use common::relay::{
    Api, Follower, HASH, Past, Publisher, Relay, api, api_at, life, message, replayer,
};
use common::{Engine, meaning};

/// An engine that answers and publishes, a relay that hears it, and a reader of the side-stream.
async fn connected() -> (Api, Publisher, Relay, Follower) {
    let api = api().await;
    let mut publisher = Publisher::bind("tcp://127.0.0.1:0").await;
    let relay =
        Relay::start(api.address, &format!("{{ connect: \"{}\" }}", publisher.address)).await;
    publisher.subscribed().await;
    let follower = Follower::open(&relay, vec![]).await;
    (api, publisher, relay, follower)
}

#[tokio::test]
async fn events_become_a_snapshot_and_deltas() {
    let (frames, expected) = life();
    let api = api().await;
    let mut publisher = Publisher::bind("tcp://127.0.0.1:0").await;
    let relay =
        Relay::start(api.address, &format!("{{ connect: \"{}\" }}", publisher.address)).await;
    publisher.subscribed().await;
    let (first, rest) = frames.split_at(6);
    for frame in first {
        publisher.publish(frame).await;
    }
    let mut early = Follower::open(&relay, vec![]).await;
    early.until_keys(&expected[5]).await;
    let view = &early.view;
    assert_eq!(view.models[0].name, "demo");
    assert_eq!(view.models[0].adapters, ["lora-a"]);
    assert_eq!(view.models[0].tokenizer_hash, HASH);
    assert_eq!(view.artefact.len(), 600_000);
    assert_eq!(blake3::hash(&view.artefact).as_bytes().to_vec(), view.models[0].artefact);
    early
        .until("ready with its load", |view| {
            view.state() == State::Ready && view.loads.get(&view.replicas[0].slot) == Some(&(2, 3))
        })
        .await;
    assert_eq!(early.view.replicas[0].endpoint, api.address.to_string());
    assert_eq!(early.view.replicas[0].pool, "eu");

    for (frame, expected) in rest.iter().zip(&expected[6..]) {
        publisher.publish(frame).await;
        early.until_keys(expected).await;
    }
    // A late one, which holds the artefact already, gets the same by snapshot.
    let held = early.view.models[0].artefact.clone();
    let mut late = Follower::open(&relay, vec![held]).await;
    late.until_keys(expected.last().unwrap()).await;
    assert!(late.view.artefact.is_empty());
    assert_ne!(late.view.epoch, early.view.epoch);
    late.until("beats", |view| view.beats >= 2).await;

    // The API says it is not well, then it is; the view stays.
    api.well.store(false, Ordering::Relaxed);
    late.until("down", |view| view.state() == State::Down).await;
    api.well.store(true, Ordering::Relaxed);
    late.until("up", |view| view.state() == State::Ready).await;
    assert_eq!(late.view.keys(), *expected.last().unwrap());
    relay.stop().await;
}

#[tokio::test]
async fn a_restarted_engine_gets_a_new_slot_and_no_stale_block() {
    let (frames, expected) = life();
    let api = api().await;
    let mut publisher = Publisher::bind("tcp://127.0.0.1:0").await;
    let address = publisher.address.clone();
    let relay = Relay::start(api.address, &format!("{{ connect: \"{address}\" }}")).await;
    publisher.subscribed().await;
    for frame in &frames[..4] {
        publisher.publish(frame).await;
    }
    let mut follower = Follower::open(&relay, vec![]).await;
    follower.until_keys(&expected[3]).await;
    let slot = follower.view.replicas[0].slot;

    // It dies: its view goes at once, before it is back.
    drop(publisher);
    follower.until("suspect", |view| view.state() == State::Suspect).await;
    follower.until("a new slot", |view| view.replicas[0].slot != slot).await;
    assert!(follower.view.keys().is_empty());

    let mut publisher = Publisher::bind(&address).await;
    publisher.subscribed().await;
    publisher.publish(&frames[0]).await;
    follower.until_keys(&expected[0]).await;
    follower.until("ready", |view| view.state() == State::Ready).await;
    relay.stop().await;
}

#[tokio::test]
async fn a_sequence_that_begins_anew_on_the_same_connection_is_a_restart() {
    let (frames, expected) = life();
    let (_api, mut publisher, relay, mut follower) = connected().await;
    for frame in &frames[..4] {
        publisher.publish(frame).await;
    }
    follower.until_keys(&expected[3]).await;
    let slot = follower.view.replicas[0].slot;
    publisher.publish(&frames[0]).await;
    follower.until("a new slot", |view| view.replicas[0].slot != slot).await;
    follower.until_keys(&expected[0]).await;
    relay.stop().await;
}

#[tokio::test]
async fn a_gap_is_replayed_where_that_is_offered_and_clears_where_not() {
    let (frames, expected) = life();
    for topics in [Some(true), Some(false), None] {
        let api = api().await;
        let mut publisher = Publisher::bind("tcp://127.0.0.1:0").await;
        let past = Past::default();
        let mut events = format!("connect: \"{}\"", publisher.address);
        if let Some(topics) = topics {
            let (replay, _) = replayer(Arc::clone(&past), topics).await;
            events = format!("{events}, replay: \"{replay}\"");
        }
        let relay = Relay::start(api.address, &format!("{{ {events} }}")).await;
        publisher.subscribed().await;
        let mut follower = Follower::open(&relay, vec![]).await;
        for (i, frame) in frames.iter().enumerate() {
            past.lock().unwrap().push((frame.sequence, frame.payload.clone()));
            if !(3..7).contains(&i) {
                publisher.publish(frame).await;
            }
            if i == 2 {
                follower.until_keys(&expected[2]).await;
            }
            if i == 7 && topics.is_none() {
                let mut engine = Engine::default();
                engine.apply(&meaning(&frame.decoded));
                follower.until_keys(&engine.keys("1", &HASH)).await;
                break;
            }
        }
        if topics.is_some() {
            follower.until_keys(expected.last().unwrap()).await;
        }
        relay.stop().await;
    }
}

#[tokio::test]
async fn a_relay_started_late_asks_for_the_past_before_it_speaks() {
    let (frames, expected) = life();
    for topics in [true, false] {
        let api = api().await;
        let publisher = Publisher::bind("tcp://127.0.0.1:0").await;
        let past = Past::default();
        for frame in &frames {
            past.lock().unwrap().push((frame.sequence, frame.payload.clone()));
        }
        let (replay, _) = replayer(past, topics).await;
        let events = format!("{{ connect: \"{}\", replay: \"{replay}\" }}", publisher.address);
        let relay = Relay::start(api.address, &events).await;
        let mut follower = Follower::open(&relay, vec![]).await;
        follower.until("the snapshot", |_| true).await;
        assert_eq!(follower.view.keys(), *expected.last().unwrap(), "exact at once");
        relay.stop().await;
    }
}

#[tokio::test]
async fn a_batch_that_cannot_be_read_clears_the_view() {
    let (frames, expected) = life();
    let (_api, mut publisher, relay, mut follower) = connected().await;
    publisher.publish(&frames[0]).await;
    follower.until_keys(&expected[0]).await;
    publisher.send(b"", 1, b"\xc1garbage").await;
    follower.until("an empty view", |view| view.keys().is_empty()).await;
    publisher.send(b"x", 2, &frames[0].payload).await;
    follower.until_keys(&expected[0]).await;
    relay.stop().await;
}

#[tokio::test]
async fn a_refusing_api_means_that_the_engine_is_gone() {
    let (frames, expected) = life();
    let (api, mut publisher, relay, mut follower) = connected().await;
    publisher.publish(&frames[0]).await;
    follower.until_keys(&expected[0]).await;
    follower.until("ready", |view| view.state() == State::Ready).await;
    api.serving.abort();
    follower.until("down", |view| view.state() == State::Down).await;
    follower.until("an empty view", |view| view.keys().is_empty()).await;
    let address = api.address;
    drop(api.serving.await);
    let _api = api_at(address).await;
    follower.until("ready", |view| view.state() == State::Ready).await;
    relay.stop().await;
}

#[tokio::test]
async fn an_engine_that_connects_is_heard_where_the_relay_binds() {
    let (frames, expected) = life();
    let api = api().await;
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().port()
    };
    let relay = Relay::start(api.address, &format!("{{ bind: \"tcp://*:{port}\" }}")).await;
    let mut follower = Follower::open(&relay, vec![]).await;
    follower.until("suspect, for nobody came", |view| view.state() == State::Suspect).await;
    for life in 0..2 {
        let mut socket = zeromq::PubSocket::new();
        socket.connect(&format!("tcp://127.0.0.1:{port}")).await.unwrap();
        let mut publisher = socket;
        follower.until("heard", |view| view.state() == State::Ready).await;
        // A PUB can't tell when it is subscribed to: what comes too early is lost, like live.
        sleep(Duration::from_millis(300)).await;
        for frame in &frames[..3] {
            let parts = [&frame.topic[..], &frame.sequence.to_be_bytes(), &frame.payload];
            publisher.send(message(&parts)).await.unwrap();
        }
        follower.until_keys(&expected[2]).await;
        drop(publisher);
        follower.until("gone", |view| view.state() == State::Suspect).await;
        assert!(follower.view.keys().is_empty(), "life {life}");
    }
    relay.stop().await;
}

#[tokio::test]
async fn noise_on_the_events_port_does_no_harm() {
    use tokio::io::AsyncWriteExt;
    let (frames, expected) = life();
    let api = api().await;
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().port()
    };
    let relay = Relay::start(api.address, &format!("{{ bind: \"tcp://127.0.0.1:{port}\" }}")).await;
    let mut follower = Follower::open(&relay, vec![]).await;
    let mut publisher = zeromq::PubSocket::new();
    publisher.connect(&format!("tcp://127.0.0.1:{port}")).await.unwrap();
    follower.until("heard", |view| view.state() == State::Ready).await;
    sleep(Duration::from_millis(300)).await;
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    // A frame that claims 2^62 bytes, HTTP, and silence.
    let claim = [&greeting[..], &[6, 0x40, 0, 0, 0, 0, 0, 0, 0]].concat();
    for noise in [claim.as_slice(), b"GET / HTTP/1.1\r\n\r\n", b""] {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.write_all(noise).await.unwrap();
    }
    let frame = &frames[0];
    let parts = [&frame.topic[..], &frame.sequence.to_be_bytes(), &frame.payload];
    publisher.send(message(&parts)).await.unwrap();
    follower.until_keys(&expected[0]).await;
    relay.stop().await;
}
