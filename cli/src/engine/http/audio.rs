//! `/v1/audio/transcriptions`: a form with an audio file, answered with filler text.

use axum::Json;
use axum::extract::State;
use axum::extract::multipart::{Multipart, MultipartError, MultipartRejection};

use super::app::Shared;
use super::error::ApiError;
use super::wire::{Transcription, TranscriptionUsage};

/// Words of an answer.
const TOKENS: usize = 16;
/// Bytes of a second of audio, whatever it is: 16,000 samples of 16 bits.
const SECOND: usize = 32_000;

pub(super) async fn transcriptions(
    State(app): Shared,
    form: Result<Multipart, MultipartRejection>,
) -> Result<Json<Transcription>, ApiError> {
    let mut form = form.map_err(|error| ApiError::unreadable(error.body_text()))?;
    let (mut model, mut file) = (None, None);
    while let Some(field) = form.next_field().await.map_err(unreadable)? {
        match (field.name(), field.file_name()) {
            // Of two the last one counts.
            (Some("model"), None) => model = Some(field.text().await.map_err(unreadable)?),
            (Some("file"), Some(_)) => file = Some(field.bytes().await.map_err(unreadable)?.len()),
            // What is not read here is skipped by the next one.
            _ => {}
        }
    }
    app.adapter(model.as_deref())?;
    let Some(bytes) = file else {
        return Err(ApiError::unreadable("Field required: file".to_owned()));
    };
    let answer = app.filler.answer(bytes as u64, TOKENS, TOKENS);
    Ok(Json(Transcription {
        text: answer.tokens.into_iter().map(|token| token.text).collect(),
        usage: TranscriptionUsage { kind: "duration", seconds: bytes.div_ceil(SECOND) },
    }))
}

#[allow(clippy::needless_pass_by_value, reason = "it is handed over so")]
fn unreadable(error: MultipartError) -> ApiError {
    ApiError::unreadable(error.body_text())
}
