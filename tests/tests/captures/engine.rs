//! A stand-in for the captured engine: publishes its frames, answers anything with 200.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use tokio::sync::mpsc;
use zeromq::{Socket, SocketRecv, SocketSend, XPubSocket, ZmqMessage};

use crate::capture::Frame;

pub(crate) struct Engine {
    frames: mpsc::UnboundedSender<ZmqMessage>,
    subscribed: std::sync::mpsc::Receiver<()>,
}

impl Engine {
    pub(crate) fn start(http: u16, events: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", http)).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || answer(stream));
            }
        });
        let (frames, mut to_publish) = mpsc::unbounded_channel::<ZmqMessage>();
        let (tell, subscribed) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let mut socket = XPubSocket::new();
                socket.bind(&format!("tcp://127.0.0.1:{events}")).await.unwrap();
                // The first message of a subscriber is its subscription.
                socket.recv().await.unwrap();
                tell.send(()).unwrap();
                while let Some(frame) = to_publish.recv().await {
                    socket.send(frame).await.unwrap();
                }
            });
        });
        Self { frames, subscribed }
    }

    pub(crate) fn wait_subscribed(&self) {
        self.subscribed.recv_timeout(Duration::from_secs(10)).expect("the relay to subscribe");
    }

    pub(crate) fn publish(&self, frame: &Frame) {
        let mut message = ZmqMessage::from(frame.topic.clone());
        message.push_back(frame.seq.to_be_bytes().to_vec().into());
        message.push_back(frame.payload.clone().into());
        self.frames.send(message).unwrap();
    }
}

/// Answers the requests of one connection, whatever they are.
fn answer(mut stream: std::net::TcpStream) {
    let mut buffer = Vec::new();
    let mut chunk = [0; 16384];
    loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let whole = end + 4 + length.map_or(0, |length| length.trim().parse().unwrap());
            if buffer.len() >= whole {
                buffer.drain(..whole);
                let body = "{\"object\":\"list\",\"data\":[{\"id\":\"tiny\"}]}";
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\
                     content-length: {}\r\n\r\n{body}",
                    body.len()
                );
                continue;
            }
        }
        match stream.read(&mut chunk) {
            Ok(0) | Err(_) => return,
            Ok(count) => buffer.extend_from_slice(&chunk[..count]),
        }
    }
}
