//! The publisher against the same library's own SUB and DEALER sockets.

use std::time::Duration;

use bytes::Bytes;
use zeromq::{DealerSocket, Endpoint, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use super::event::Form;
use super::publisher::{Config, Publisher, offset_port};

fn config(endpoint: &str, form: Form) -> Config {
    Config {
        host: "127.0.0.1".to_owned(),
        endpoint: endpoint.to_owned(),
        replay_endpoint: Some("tcp://*:0".to_owned()),
        topic: "kv".to_owned(),
        form,
        buffer: 3,
        loses_all: false,
    }
}

fn local(endpoint: &str) -> String {
    endpoint.replace('*', "127.0.0.1")
}

async fn frames(socket: &mut impl SocketRecv) -> Vec<Vec<u8>> {
    let message = tokio::time::timeout(Duration::from_secs(20), socket.recv()).await;
    message.expect("a message in time").unwrap().into_vec().iter().map(|f| f.to_vec()).collect()
}

/// Publishes until the first message arrives, so that the subscription is known to be there.
async fn first(publisher: &Publisher, sub: &mut SubSocket) -> Vec<Vec<u8>> {
    for sequence in 0.. {
        publisher.publish(sequence, Bytes::from_static(b"batch"));
        let message = tokio::time::timeout(Duration::from_millis(50), sub.recv()).await;
        if let Ok(message) = message {
            return message.unwrap().into_vec().iter().map(|f| f.to_vec()).collect();
        }
    }
    unreachable!()
}

#[tokio::test]
async fn a_wildcard_binds_and_a_subscriber_hears() {
    let publisher = Publisher::start(config("tcp://*:0", Form::Map)).await.unwrap();
    let mut sub = SubSocket::new();
    sub.connect(&local(publisher.endpoints().0)).await.unwrap();
    sub.subscribe("").await.unwrap();
    let message = first(&publisher, &mut sub).await;
    assert_eq!(message.len(), 3);
    assert_eq!((message[0].as_slice(), message[1].len()), (b"kv".as_slice(), 8));
    assert_eq!(message[2], b"batch");
}

#[tokio::test]
async fn an_address_connects_and_connects_again() {
    let mut sub = SubSocket::new();
    let Endpoint::Tcp(_, port) = sub.bind("tcp://127.0.0.1:0").await.unwrap() else { panic!() };
    sub.subscribe("").await.unwrap();
    let endpoint = format!("tcp://127.0.0.1:{port}");
    let publisher = Publisher::start(config(&endpoint, Form::Map)).await.unwrap();
    first(&publisher, &mut sub).await;
    sub.unbind_all().await;
    drop(sub);
    let mut again = SubSocket::new();
    while again.bind(&endpoint).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    again.subscribe("").await.unwrap();
    first(&publisher, &mut again).await;
}

async fn replay(form: Form, from: u64) -> Vec<Vec<Vec<u8>>> {
    let publisher = Publisher::start(config("tcp://*:0", form)).await.unwrap();
    for sequence in 0..5u64 {
        publisher.publish(sequence, Bytes::from(format!("batch {sequence}")));
    }
    let mut dealer = DealerSocket::new();
    dealer.connect(&local(publisher.endpoints().1.unwrap())).await.unwrap();
    // Ignored: not a request.
    dealer.send(ZmqMessage::from("hello")).await.unwrap();
    let request = vec![Bytes::new(), Bytes::copy_from_slice(&from.to_be_bytes())];
    dealer.send(ZmqMessage::try_from(request).unwrap()).await.unwrap();
    let mut all = Vec::new();
    loop {
        let message = frames(&mut dealer).await;
        let end = message[message.len() - 2] == [0xff; 8];
        all.push(message);
        if end {
            return all;
        }
    }
}

#[tokio::test]
async fn a_replay_begins_where_asked_and_ends_with_the_mark() {
    let all = replay(Form::Map, 3).await;
    assert_eq!(all.len(), 3);
    let seq = |n: u64| n.to_be_bytes().to_vec();
    assert_eq!(all[0], [b"".to_vec(), b"kv".to_vec(), seq(3), b"batch 3".to_vec()]);
    assert_eq!(all[1], [b"".to_vec(), b"kv".to_vec(), seq(4), b"batch 4".to_vec()]);
    assert_eq!(all[2], [vec![], vec![], vec![0xff; 8], vec![]]);
}

#[tokio::test]
async fn the_older_framing_has_no_topic_and_the_buffer_is_bounded() {
    let all = replay(Form::Array, 0).await;
    assert_eq!(all.len(), 4, "the last three, and the mark");
    assert_eq!(all[0], [b"".to_vec(), 2u64.to_be_bytes().to_vec(), b"batch 2".to_vec()]);
    assert_eq!(all[3], [vec![], vec![0xff; 8], vec![]]);
}

#[test]
fn a_rank_moves_the_port() {
    assert_eq!(offset_port("tcp://*:5557", 2).unwrap(), "tcp://*:5559");
    assert_eq!(offset_port("tcp://*:0", 2).unwrap(), "tcp://*:0");
    assert!(offset_port("tcp://*:65535", 1).is_err());
    assert!(offset_port("nonsense", 1).is_err());
}
