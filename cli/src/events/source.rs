//! Where frames come from: an engine, or a file.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use tokio::net::TcpListener;
use warmpath_relay::engine::zmtp::{Connection, Role};

/// Wait between attempts to connect.
const RETRY: Duration = Duration::from_millis(300);
/// Bytes of one line of a file: a frame of the largest size in hexadecimal, with what else it says.
const MAX_LINE: u64 = 256 << 20;

/// One published frame.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) sequence: u64,
    pub(super) payload: Bytes,
}

/// What a live source has to say.
pub(super) enum Note {
    Frame(Frame),
    /// A message that isn't topic, sequence and payload.
    Malformed,
    Connected(String),
    /// There is no connection; why.
    Lost(String),
}

/// A live engine.
pub(super) struct Live {
    address: String,
    binds: bool,
    listener: Option<TcpListener>,
    connection: Option<Connection>,
    told: bool,
}

impl Live {
    pub(super) fn connect(endpoint: &str) -> anyhow::Result<Self> {
        Self::new(endpoint, false)
    }

    pub(super) fn bind(endpoint: &str) -> anyhow::Result<Self> {
        Self::new(endpoint, true)
    }

    fn new(endpoint: &str, binds: bool) -> anyhow::Result<Self> {
        let address = endpoint.strip_prefix("tcp://").unwrap_or(endpoint);
        let Some((host, port)) = address.rsplit_once(':') else {
            bail!("{endpoint:?} is not tcp://host:port");
        };
        let port: u16 = port.parse().with_context(|| format!("{endpoint:?}: {port:?}"))?;
        let host = match (host, binds) {
            ("*", true) => "0.0.0.0",
            ("*", false) => {
                bail!("{endpoint:?} is where an engine binds; say the host to connect to")
            }
            (host, _) => host,
        };
        let address = format!("{host}:{port}");
        Ok(Self { address, binds, listener: None, connection: None, told: false })
    }

    /// What comes next. Nothing is lost when the future is dropped.
    pub(super) async fn next(&mut self) -> anyhow::Result<Note> {
        let Some(connection) = &mut self.connection else { return self.open().await };
        match connection.receive().await {
            Ok(parts) => {
                let [_topic, sequence, payload] = parts.as_slice() else {
                    return Ok(Note::Malformed);
                };
                Ok(match sequence.as_ref().try_into() {
                    Ok(bytes) => Note::Frame(Frame {
                        sequence: u64::from_be_bytes(bytes),
                        payload: payload.clone(),
                    }),
                    Err(_) => Note::Malformed,
                })
            }
            Err(error) => {
                self.connection = None;
                Ok(Note::Lost(error.to_string()))
            }
        }
    }

    async fn open(&mut self) -> anyhow::Result<Note> {
        loop {
            let opened = if self.binds {
                let listener = match &mut self.listener {
                    Some(listener) => listener,
                    empty @ None => {
                        let bound = TcpListener::bind(&self.address).await;
                        empty.insert(bound.with_context(|| format!("can't bind {}", self.address))?)
                    }
                };
                let (stream, peer) = listener.accept().await?;
                Connection::establish(stream, Role::Sub).await.map(|c| (c, peer.to_string()))
            } else {
                let connected = Connection::connect(&self.address, Role::Sub).await;
                connected.map(|connection| (connection, self.address.clone()))
            };
            match opened {
                Ok((connection, peer)) => {
                    self.connection = Some(connection);
                    self.told = false;
                    return Ok(Note::Connected(peer));
                }
                Err(error) if !self.told => {
                    self.told = true;
                    return Ok(Note::Lost(format!("{}: {error}", self.address)));
                }
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }
}

/// The frames of a file of JSON lines, decompressed where it is gzip. Errors name the line.
pub(super) fn file(path: &Path) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Frame>>> {
    let name = path.display().to_string();
    let input: Box<dyn Read> = if path.as_os_str() == "-" {
        Box::new(io::stdin())
    } else {
        Box::new(std::fs::File::open(path).with_context(|| format!("can't read {name}"))?)
    };
    let mut input = BufReader::new(input);
    let zipped =
        input.fill_buf().with_context(|| format!("can't read {name}"))?.starts_with(b"\x1f\x8b");
    let mut lines: Box<dyn BufRead> = if zipped {
        Box::new(BufReader::new(flate2::bufread::MultiGzDecoder::new(input)))
    } else {
        Box::new(input)
    };
    let mut number = 0;
    Ok(std::iter::from_fn(move || {
        loop {
            let mut line = String::new();
            number += 1;
            let read = (&mut lines).take(MAX_LINE).read_line(&mut line);
            match read {
                Ok(0) => return None,
                Ok(_) if line.trim().is_empty() => {}
                Ok(_) => return Some(frame(&line).with_context(|| format!("{name}:{number}"))),
                Err(error) => return Some(Err(error).with_context(|| format!("{name}:{number}"))),
            }
        }
    })
    // What comes after a line that can't be read is not what it seems.
    .scan(
        false,
        |failed, item: anyhow::Result<Frame>| {
            if std::mem::replace(failed, item.is_err()) { None } else { Some(item) }
        },
    ))
}

fn frame(line: &str) -> anyhow::Result<Frame> {
    let value: serde_json::Value = serde_json::from_str(line).context("not JSON")?;
    let sequence = value.get("seq").and_then(serde_json::Value::as_u64);
    let payload = value.get("payload_hex").and_then(serde_json::Value::as_str);
    let (Some(sequence), Some(payload)) = (sequence, payload) else {
        bail!("a frame needs \"seq\", a number, and \"payload_hex\", a text");
    };
    Ok(Frame { sequence, payload: unhex(payload).context("\"payload_hex\" is not hexadecimal")? })
}

fn unhex(text: &str) -> Option<Bytes> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|&[high, low]| Some((digit(high)? << 4 | digit(low)?) as u8)).collect()
}
