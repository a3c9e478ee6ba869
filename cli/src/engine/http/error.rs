//! Errors in vLLM's shape.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::wire::{AnthropicErrorBody, AnthropicErrorInfo, ErrorBody, ErrorInfo};

/// An answer other than 200.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    param: Option<&'static str>,
    message: String,
}

impl ApiError {
    const UNREADABLE: &'static str = "Bad Request";

    /// 404: no such model.
    pub(super) fn unknown_model(model: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            kind: "NotFoundError",
            param: Some("model"),
            message: format!("The model `{model}` does not exist."),
        }
    }

    /// 404: no such response is stored.
    pub(super) fn no_response(id: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            kind: "NotFoundError",
            param: Some("response_id"),
            message: format!("Response with id '{id}' not found."),
        }
    }

    /// 400: not JSON, or fields of the wrong type.
    pub(super) fn unreadable(message: String) -> Self {
        Self { status: StatusCode::BAD_REQUEST, kind: Self::UNREADABLE, param: None, message }
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

/// The same for Anthropic's API. What could not be read at all is told as ever, before vLLM looks at
/// which API it is (`entrypoints/serve/exception_handling/`).
#[derive(Debug)]
pub(super) struct AnthropicError(ApiError);

impl From<ApiError> for AnthropicError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for AnthropicError {
    fn into_response(self) -> Response {
        let Self(error) = self;
        if error.kind == ApiError::UNREADABLE {
            return error.into_response();
        }
        let info = AnthropicErrorInfo { kind: error.kind, message: error.message };
        (error.status, Json(AnthropicErrorBody { kind: "error", error: info })).into_response()
    }
}
