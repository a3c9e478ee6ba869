//! The name of the model in a body that is not read whole: found as its bytes arrive.
//!
//! What counts is what engines read: vLLM 0.32 takes JSON by Python's `json.loads`, and forms by
//! Starlette, which is python-multipart (0.0.34, multipart.py). Where versions of these differ, or
//! where they refuse a body, nothing is said, so that nobody is sent to a model by a guess.

mod header;
mod json;
mod multipart;

use json::JsonFinder;
use multipart::MultipartFinder;

/// Longest name, in bytes.
const MAX_NAME: usize = 1024;

/// Finds the name of the model in a body, as its bytes arrive, however they are split.
///
/// The first name counts. Of a key or field that comes twice engines take the last one, but only a
/// body that was read to its end can tell; whoever sends such a body gets the engine's 404.
#[derive(Debug)]
pub struct ModelFinder {
    body: Body,
    /// What was said last, which stays.
    said: Search,
}

/// What a body says so far of the model that it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Search {
    /// More bytes are needed.
    More,
    /// The name.
    Found(String),
    /// The body has ended and names none: there is no such key or field, it is null or it is empty,
    /// for which engines take the model that they have.
    Absent,
    /// It is not what its type says, or the name is too long or no text: nothing can be said.
    Unreadable,
}

#[derive(Debug)]
enum Body {
    Json(JsonFinder),
    Multipart(Box<MultipartFinder>),
    Unreadable,
}

impl ModelFinder {
    /// For a body of this type, which is the request's `content-type`: a form is
    /// `multipart/form-data`, anything else is tried as JSON. Engines refuse JSON under another
    /// type, and say so better than a gateway that couldn't tell whom to ask.
    pub fn new(content_type: Option<&[u8]>) -> Self {
        let (media_type, parameters) = header::options(content_type.unwrap_or_default());
        let body = if media_type.eq_ignore_ascii_case(b"multipart/form-data") {
            MultipartFinder::new(&parameters)
                .map_or(Body::Unreadable, |finder| Body::Multipart(Box::new(finder)))
        } else {
            Body::Json(JsonFinder::default())
        };
        Self { body, said: Search::More }
    }

    /// Takes the next bytes. Once it says something else than [`Search::More`], it stays with that
    /// and looks at nothing more.
    pub fn feed(&mut self, piece: &[u8]) -> Search {
        if self.said == Search::More {
            self.said = match &mut self.body {
                Body::Json(finder) => finder.feed(piece),
                Body::Multipart(finder) => finder.feed(piece),
                Body::Unreadable => Search::Unreadable,
            };
        }
        self.said.clone()
    }

    /// Says that there are no more bytes. Never [`Search::More`].
    pub fn end(&mut self) -> Search {
        if self.said == Search::More {
            // Neither `}` nor the last boundary came, which would have been an answer.
            let nothing = match &self.body {
                Body::Json(finder) => finder.is_blank(),
                Body::Multipart(_) | Body::Unreadable => false,
            };
            self.said = if nothing { Search::Absent } else { Search::Unreadable };
        }
        self.said.clone()
    }
}

#[cfg(test)]
mod tests;
