//! Responses as JSON, and gRPC statuses as HTTP errors.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use tonic::Status;

use crate::{api, pb};

/// An HTTP status with the error of the gRPC API.
#[derive(Debug)]
pub struct HttpError {
    status: StatusCode,
    error: pb::Error,
}

impl HttpError {
    pub fn new(status: StatusCode, reason: &str, message: impl ToString) -> Self {
        let error = pb::Error {
            reason: reason.to_owned(),
            message: message.to_string(),
            ..pb::Error::default()
        };
        Self { status, error }
    }

    pub fn status(&self) -> StatusCode {
        self.status
    }

    pub fn error(&self) -> &pb::Error {
        &self.error
    }
}

impl From<Status> for HttpError {
    fn from(status: Status) -> Self {
        let (http, error) = api::to_http_error(&status);
        Self {
            status: StatusCode::from_u16(http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            error,
        }
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.error)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

/// A JSON response. Messages of the API are serialized as proto3 JSON.
pub(super) struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_string(&self.0) {
            Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
            // Serializing our messages does not fail.
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

pub(super) type JsonResult<T> = Result<Json<T>, HttpError>;
