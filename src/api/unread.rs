//! Answers that are on their way. The transport takes a whole piece of one as soon
//! as its client reads a byte, and forgets who made it: so a place goes with the
//! bytes, until they have left for the client or the client is gone.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use hyper::body::Frame;
use tonic::{Status, body::Body, codegen::Bytes};

use super::Place;
use crate::telemetry::Open;

/// A stream's place, in what is answered of it.
#[derive(Clone)]
pub(super) struct OfStream(pub Arc<(Place, Open)>);

/// The body of an answer that has this place until it was read.
pub(super) fn with<P: Send + Sync + 'static>(body: Body, place: Arc<P>) -> Body {
    Body::new(Unread { body, place })
}

struct Unread<P> {
    body: Body,
    place: Arc<P>,
}

/// A piece of it.
struct Piece<P> {
    bytes: Bytes,
    _place: Arc<P>,
}

impl<P> AsRef<[u8]> for Piece<P> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<P: Send + Sync + 'static> hyper::body::Body for Unread<P> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        let piece = |bytes| {
            Bytes::from_owner(Piece {
                bytes,
                _place: self.place.clone(),
            })
        };
        frame.map_ok(|frame| frame.map_data(piece))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
