//! Errors in vLLM's shape.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::wire::{ErrorBody, ErrorInfo};

/// An answer other than 200.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    param: Option<&'static str>,
    message: String,
}

impl ApiError {
    /// 404: no such model.
    pub(super) fn unknown_model(model: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            kind: "NotFoundError",
            param: Some("model"),
            message: format!("The model `{model}` does not exist."),
        }
    }

    /// 400: not JSON, or fields of the wrong type.
    pub(super) fn unreadable(message: String) -> Self {
        Self { status: StatusCode::BAD_REQUEST, kind: "Bad Request", param: None, message }
    }

    /// 400: readable, but it can't be served.
    pub(super) fn bad(param: Option<&'static str>, message: String) -> Self {
        Self { status: StatusCode::BAD_REQUEST, kind: "BadRequestError", param, message }
    }

    /// 500: a fault of this program.
    pub(super) fn internal(message: String) -> Self {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self { status, kind: "InternalServerError", param: None, message }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let error = ErrorInfo {
            message: self.message,
            kind: self.kind,
            param: self.param,
            code: self.status.as_u16(),
        };
        (self.status, Json(ErrorBody { error })).into_response()
    }
}
