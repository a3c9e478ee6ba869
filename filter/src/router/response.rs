//! An answer as it passes: who gave it, when it began, and what it says of tokens.

use std::borrow::Cow;

use warmpath_prompt::Api;
use warmpath_routing::health::{Ending, engines_failed, is_taken};
use warmpath_routing::orca::Orca;
use warmpath_routing::usage::{Scan, TAIL_BYTES, Tail, Usage};

use super::client::Client;
use super::exchange::begins_early;
use super::ticket::Answer;
use crate::host::{self, HeaderList, Headers};

/// ORCA's report of an engine's load.
const ORCA: &str = "endpoint-load-metrics";

/// What Envoy answers itself is short, in bytes.
const SHORT: usize = 256;

/// Bytes of a piece that are copied at a time, where all of it is looked at.
const STEP: usize = 16 << 10;

/// What is watched of an answer.
#[derive(Debug, Default)]
pub(super) struct Watch {
    usage: Words,
    /// Server-sent events.
    pub(super) stream: bool,
    /// Pieces of the body up to the one that came with the first token, that included.
    pieces: u8,
    /// What it says of tokens is still to be read.
    pub(super) read: bool,
    pub(super) progress: Progress,
    giver: Giver,
}

/// Where the engine's word is looked for.
#[derive(Debug)]
enum Words {
    /// At the end. Only that is copied.
    Tail(Tail),
    /// Anywhere.
    Scan(Scan),
}

impl Default for Words {
    fn default() -> Self {
        Self::Tail(Tail::default())
    }
}

impl Words {
    /// In an answer of this API.
    fn of(api: Option<Api>, stream: bool) -> Self {
        match api {
            Some(Api::Responses | Api::Messages) => Self::Scan(Scan::new(stream)),
            Some(Api::Chat | Api::Completions) | None => Self::default(),
        }
    }
}

/// How much of an answer has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Progress {
    #[default]
    Nothing,
    /// Its headers.
    Begun,
    Whole,
}

/// Who gave it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Giver {
    /// Nobody looked.
    #[default]
    Unseen,
    /// An engine that took the request.
    Engine,
    /// An engine that would or could not, or Envoy.
    Other,
}

impl Watch {
    /// The headers are there. `foreseen`: the endpoint that Envoy was told to try first.
    pub(super) fn begin(
        &mut self,
        foreseen: Option<&str>,
        api: Option<Api>,
        orca: bool,
    ) -> host::Result<Answer> {
        let headers = Headers::Response.all()?;
        let status = headers.get(":status").unwrap_or_default();
        let status = str::from_utf8(&status).ok().and_then(|it| it.parse().ok()).unwrap_or(0);
        let kind = headers.get("content-type").unwrap_or_default();
        self.stream = kind.starts_with(b"text/event-stream");
        self.usage = Words::of(api, self.stream);
        // Of compressed bytes nothing can be read. Only what engines say themselves counts.
        let plain = headers.get("content-encoding").is_none_or(|how| *how == *b"identity");
        let upstream = Some(property("upstream\0address")?).filter(|address| !address.is_empty());
        let as_foreseen = upstream.is_some() && upstream.as_deref() == foreseen;
        // Each question costs. What Envoy itself answers in an engine's place, having tried it, is
        // no 200, but to gRPC.
        let readable = self.stream || kind.starts_with(b"application/json");
        let details = if status == 200 && as_foreseen && readable {
            Cow::Borrowed("via_upstream")
        } else {
            Cow::Owned(property("response\0code_details")?)
        };
        let of_engine = details == "via_upstream";
        let taken = of_engine && is_taken(status);
        self.giver = if taken { Giver::Engine } else { Giver::Other };
        self.read = of_engine && plain && status == 200 && readable;
        // What the first one answers took one attempt.
        let attempts = if of_engine && as_foreseen {
            1
        } else {
            host::number("upstream\0request_attempt_count")?.unwrap_or(1) as usize
        };
        let mut answer = Answer {
            orca: if orca { report(&headers)? } else { None },
            status,
            of_engine,
            upstream_failed: engines_failed(&details),
            ending: Ending::of(&details),
            client: None,
            upstream,
            attempts,
        };
        if answer.upstream_failed || status >= 500 || attempts > 1 {
            answer.client = Some(Client::read()?);
        }
        Ok(answer)
    }

    /// A piece of the body is there. Whether it is taken for the one that comes with the first token.
    ///
    /// Where a stream begins before that, its first two events come in two pieces, or in one if they
    /// are quick; and with the first token three events come at once. So the third piece it is.
    pub(super) fn is_first_token(&mut self, api: Option<Api>, size: usize) -> bool {
        let first = if begins_early(api) { 3 } else { 1 };
        if self.pieces >= first || size == 0 {
            return false;
        }
        self.pieces += 1;
        self.pieces == first
    }

    /// A piece of the body is the last. Gives what was not looked into and is one of Envoy's own that
    /// says that engines failed: it is short, and there are few that are, so that asking costs little.
    pub(super) fn own_failure(&mut self, size: usize) -> host::Result<Option<Answer>> {
        if self.giver != Giver::Unseen || self.pieces > 0 || size > SHORT {
            return Ok(None);
        }
        self.giver = Giver::Other;
        let details = property("response\0code_details")?;
        if !engines_failed(&details) {
            return Ok(None);
        }
        Ok(Some(Answer {
            upstream_failed: true,
            ending: Ending::of(&details),
            client: Some(Client::read()?),
            upstream: Some(property("upstream\0address")?).filter(|address| !address.is_empty()),
            attempts: host::number("upstream\0request_attempt_count")?.unwrap_or(1) as usize,
            ..Answer::default()
        }))
    }

    /// The stream is over. Gives the endpoint of an engine that dropped it after it had begun to
    /// answer, and who asked.
    pub(super) fn broke_off(&self) -> host::Result<Option<(String, Client)>> {
        if self.progress != Progress::Begun
            || Ending::of(&property("response\0code_details")?) != Ending::Dropped
        {
            return Ok(None);
        }
        Ok(Some((property("upstream\0address")?, Client::read()?)))
    }

    /// It is whole. Says whether an engine has taken the request and answered.
    pub(super) fn end(&mut self) -> bool {
        self.progress = Progress::Whole;
        self.giver == Giver::Engine
    }

    /// A piece of the body passes. No more of it is copied than is looked at.
    pub(super) fn piece(&mut self, size: usize) -> host::Result<()> {
        if !self.read || size == 0 {
            return Ok(());
        }
        // What a piece is missing of is not understood.
        let looked = self.look(size);
        self.read = looked.is_ok();
        looked
    }

    fn look(&mut self, size: usize) -> host::Result<()> {
        match &mut self.usage {
            Words::Tail(tail) => {
                let start = size.saturating_sub(TAIL_BYTES);
                tail.push(host::response_body(start, TAIL_BYTES)?);
            }
            Words::Scan(scan) => {
                for start in (0..size).step_by(STEP) {
                    scan.push(&host::response_body(start, STEP.min(size - start))?);
                }
            }
        }
        Ok(())
    }

    /// The answer is whole: whether what it says is to be learned from, which it is once.
    pub(super) fn is_due(&mut self) -> bool {
        std::mem::take(&mut self.read)
    }

    /// What it says of tokens.
    pub(super) fn usage(&self) -> Option<Usage> {
        match &self.usage {
            Words::Tail(tail) => tail.usage(),
            Words::Scan(scan) => scan.usage(),
        }
    }
}

/// The engine's load; the client is not told of it.
fn report(headers: &HeaderList) -> host::Result<Option<Orca>> {
    let Some(value) = headers.get(ORCA) else { return Ok(None) };
    Headers::Response.remove(ORCA)?;
    Ok(Orca::parse(&value))
}

fn property(path: &str) -> host::Result<String> {
    Ok(host::property(path)?.map(super::exchange::text).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_token_comes_with_the_first_piece_but_in_responses() {
        let first = |api, sizes: &[usize]| {
            let mut watch = Watch::default();
            let firsts = sizes.iter().map(|size| watch.is_first_token(api, *size));
            firsts.enumerate().filter(|(_, first)| *first).map(|(at, _)| at).collect::<Vec<_>>()
        };
        for api in [Api::Chat, Api::Completions, Api::Messages] {
            assert_eq!(first(Some(api), &[0, 10, 10, 10, 0]), [1], "{api:?}");
        }
        assert_eq!(first(None, &[10, 10]), [0]);
        assert_eq!(first(Some(Api::Responses), &[10, 0, 10, 10, 10]), [3]);
    }
}
