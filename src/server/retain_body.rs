//! Response bodies that keep a permit until they are sent.
//!
//! hyper pulls a whole frame once the client has opened its window by a byte, then drops
//! our stream. The permit is therefore attached to the frame's `Bytes` and
//! released when those are sent or the client disconnects.

use std::sync::Arc;

use http_body_util::BodyExt;
use tonic::{body::Body, codegen::Bytes};

/// A frame's bytes with the permit of their response.
struct RetainedBytes<P> {
    bytes: Bytes,
    _permit: Arc<P>,
}

impl<P> AsRef<[u8]> for RetainedBytes<P> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The same body, which holds `permit` until its last frame is sent or dropped.
pub(super) fn retain<P: Send + Sync + 'static>(body: Body, permit: P) -> Body {
    let permit = Arc::new(permit);
    Body::new(body.map_frame(move |frame| {
        frame.map_data(|bytes| {
            Bytes::from_owner(RetainedBytes {
                bytes,
                _permit: permit.clone(),
            })
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_permit_is_held_until_the_last_frame_is_dropped() {
        let permit = Arc::new(());
        let body = Body::new(axum::body::Body::from("answer"));
        let mut body = retain(body, permit.clone());
        let frame = body.frame().await.unwrap().unwrap();
        assert!(body.frame().await.is_none());
        drop(body);
        assert_eq!(Arc::strong_count(&permit), 2, "the frame is not sent yet");
        assert_eq!(frame.into_data().unwrap(), "answer");
        assert_eq!(Arc::strong_count(&permit), 1);
    }

    #[tokio::test]
    async fn a_body_that_is_never_read_releases_its_permit_when_dropped() {
        let permit = Arc::new(());
        let body = retain(Body::new(axum::body::Body::from("answer")), permit.clone());
        assert_eq!(Arc::strong_count(&permit), 2);
        drop(body);
        assert_eq!(Arc::strong_count(&permit), 1);
    }
}
