//! Answers in place of a route, in the shape of OpenAI's errors.

/// An answer in place of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// OpenAI's `error.type`.
    pub kind: &'static str,
    /// OpenAI's `error.code`; the name in metrics, too.
    pub code: &'static str,
    /// For the client; says nothing of the inside.
    pub message: String,
    /// Seconds after which another try makes sense.
    pub retry_after: Option<u32>,
}

/// What a client sent, fit for a message to it.
fn shown(text: &str) -> String {
    const MOST: usize = 128;
    let plain = text.chars().map(|c| if c.is_control() || c == '`' { '?' } else { c });
    plain.take(MOST).collect()
}

/// A few of the names.
fn listed(names: &[&str]) -> String {
    const MOST: usize = 20;
    let some: Vec<&str> = names.iter().copied().take(MOST).collect();
    match names.len().checked_sub(MOST) {
        None | Some(0) => some.join(", "),
        Some(more) => format!("{} and {more} more", some.join(", ")),
    }
}

impl Refusal {
    /// The code where a prompt is refused that kills engines.
    pub const PROMPT_KILLS_ENGINES: &'static str = "poison";

    /// All codes, for those who count them.
    pub const CODES: [&'static str; 11] = [
        "zone_missing",
        "zone_unknown",
        "no_replica",
        "model_not_found",
        "model_not_in_zone",
        "model_unknown",
        "unsupported_encoding",
        "bad_encoding",
        "request_too_large",
        "bodies_awaited",
        Self::PROMPT_KILLS_ENGINES,
    ];

    pub(super) fn forbidden(code: &'static str, message: String) -> Self {
        Self { status: 403, kind: "permission_error", code, message, retry_after: None }
    }

    fn not_found(message: String) -> Self {
        Self {
            status: 404,
            kind: "invalid_request_error",
            code: "model_not_found",
            message,
            retry_after: None,
        }
    }

    /// No model of this name, or none named (`None`), where `there` are to be had in the zone.
    pub fn model_not_found(name: Option<&str>, there: &[&str]) -> Self {
        let there = listed(there);
        Self::not_found(match name {
            Some(name) => {
                let name = shown(name);
                format!("The model `{name}` does not exist in this zone, which has {there}.")
            }
            None => format!("The request names no model, and this zone has {there}."),
        })
    }

    pub(super) fn model_unreadable(there: &[&str]) -> Self {
        let there = listed(there);
        Self::not_found(format!(
            "The model could not be read from the request's body, and this zone has {there}."
        ))
    }

    pub(super) fn adapter_not_loaded(zone: &str, adapter: &str) -> Self {
        let adapter = shown(adapter);
        Self::not_found(format!("No replica of zone {zone} has the adapter `{adapter}` loaded."))
    }

    pub(super) fn model_not_in_zone(zone: &str, there: &[&str]) -> Self {
        let there = listed(there);
        let message = format!("The model is not served in zone {zone}, which has {there}.");
        Self::forbidden("model_not_in_zone", message)
    }

    pub(super) fn model_unknown() -> Self {
        Self {
            status: 503,
            kind: "server_error",
            code: "model_unknown",
            message: "This gateway does not know the model: it has not heard from its relay yet."
                .into(),
            retry_after: Some(1),
        }
    }

    /// A compressed body that can't be undone.
    pub fn bad_encoding() -> Self {
        Self {
            status: 400,
            kind: "invalid_request_error",
            code: "bad_encoding",
            message: "The body is cut off, or is not of its content-encoding.".into(),
            retry_after: None,
        }
    }

    /// A compressed body that grows larger than so many bytes, or too many times its size.
    pub fn request_too_large(most: usize) -> Self {
        Self {
            status: 413,
            kind: "invalid_request_error",
            code: "request_too_large",
            message: format!(
                "The compressed body grows to more than {most} bytes, or to more than 256 KiB and a \
                 hundred times its size. Send it uncompressed."
            ),
            retry_after: None,
        }
    }

    /// Too many bodies are awaited, and this one came before the others.
    pub fn bodies_awaited() -> Self {
        Self {
            status: 503,
            kind: "server_error",
            code: "bodies_awaited",
            message: "This gateway waits for the ends of too many request bodies, and has waited \
                      longest for this one's. Send it again."
                .into(),
            retry_after: Some(1),
        }
    }

    /// A body that neither this gateway nor an engine can read.
    pub fn unsupported_encoding(encoding: &str) -> Self {
        Self {
            status: 415,
            kind: "invalid_request_error",
            code: "unsupported_encoding",
            message: format!(
                "This gateway does not read bodies with content-encoding `{}`.",
                shown(encoding)
            ),
            retry_after: None,
        }
    }

    pub(super) fn no_replica(zone: &str, model: &str) -> Self {
        Self {
            status: 503,
            kind: "server_error",
            code: "no_replica",
            message: format!(
                "No replica of model {model} in zone {zone} is available at the moment."
            ),
            retry_after: Some(1),
        }
    }

    /// The answer's body, in the shape of OpenAI's errors.
    pub fn body(&self) -> String {
        serde_json::json!({
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": null,
                "code": self.code,
            }
        })
        .to_string()
    }
}
