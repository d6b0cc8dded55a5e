//! Reads the gRPC frames of a request body: a flag, a length and a message.
//!
//! tonic reserves the announced length when five bytes of header have arrived, and
//! keeps the buffer for as long as the stream lives. Here memory is reserved as bytes
//! arrive, a frame that arrived in one piece is not copied, and nothing is kept
//! between frames. What has arrived of unfinished messages counts against
//! `limits.unread_bytes_max` ([`UnreadBytes`]). A whole frame is handed on, so the handler
//! decides what to do with a message that cannot be decoded.
//!
//! The handlers of events and deltas use the reader itself. For other calls it is the
//! request body that tonic reads, a whole frame at a time.

use std::{
    future::poll_fn,
    mem::take,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use hyper::body::{Body as HttpBody, Frame};
use parking_lot::Mutex;
use prost::bytes::{Buf, Bytes, BytesMut};
use tonic::{Status, body::Body};

use super::{
    quota::{Permit, TenantQuota},
    status,
};
use crate::{
    domain::Tenant,
    telemetry::{Metrics, Rejection},
};

/// The flag for compression, then the length of the message in four bytes.
const HEADER_BYTES: usize = 5;

/// The unit in which memory for unfinished messages is permitted. The first one of
/// each message needs no permit: the number of calls and hooks bounds them.
const BLOCK_BYTES: usize = 16 * 1024;

/// The limits on messages.
pub struct MessageLimits {
    message_bytes_max: usize,
    unread_bytes_max: usize,
    /// A permit for each block of an unfinished message.
    blocks: TenantQuota,
    metrics: Arc<Metrics>,
}

impl MessageLimits {
    /// `quota` makes a quota of this many permits.
    pub fn new(
        message_bytes_max: usize,
        unread_bytes_max: usize,
        quota: impl FnOnce(usize) -> TenantQuota,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            message_bytes_max,
            unread_bytes_max,
            blocks: quota(unread_bytes_max.div_ceil(BLOCK_BYTES)),
            metrics,
        }
    }
}

/// The permits for the bytes of a request that have arrived and are not handled yet.
pub struct UnreadBytes {
    limits: Arc<MessageLimits>,
    tenant: Tenant,
    permits: Vec<Permit>,
}

impl UnreadBytes {
    pub fn new(limits: Arc<MessageLimits>, tenant: Tenant) -> Self {
        Self {
            limits,
            tenant,
            permits: Vec::new(),
        }
    }

    /// Takes the permits for this many bytes in all, and keeps those that it has.
    pub fn reserve(&mut self, bytes: usize) -> Result<(), Status> {
        let limits = &self.limits;
        while (self.permits.len() + 1) * BLOCK_BYTES < bytes {
            let permit = limits.blocks.try_acquire(&self.tenant).map_err(|share| {
                limits.metrics.count_rejection(Rejection::UnreadBytesMax);
                status::too_many_unread_bytes(limits.unread_bytes_max, share * BLOCK_BYTES)
            })?;
            self.permits.push(permit);
        }
        Ok(())
    }
}

/// The frames of one request body.
pub struct FrameReader {
    body: Body,
    /// Held until the message has been handled.
    unread: UnreadBytes,
    /// The rest of the last chunk. It is empty or begins with a whole frame whenever
    /// the reader waits for the client.
    chunk: Bytes,
    /// The beginning of a frame whose end has not arrived.
    partial: BytesMut,
}

impl FrameReader {
    pub fn new(body: Body, limits: Arc<MessageLimits>, tenant: Tenant) -> Self {
        Self {
            body,
            unread: UnreadBytes::new(limits, tenant),
            chunk: Bytes::new(),
            partial: BytesMut::new(),
        }
    }

    /// The next message, without its header. `None`: the client has closed or reset
    /// the stream. Cancel-safe.
    pub async fn next_message(&mut self) -> Result<Option<Bytes>, Status> {
        let frame = poll_fn(|cx| self.poll_whole_frame(cx)).await.transpose()?;
        Ok(frame.map(|mut frame| {
            frame.advance(HEADER_BYTES);
            frame
        }))
    }

    /// The next frame with its header. The one before it has been handled.
    fn poll_whole_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        if self.partial.is_empty() {
            self.unread.permits.clear();
        }
        loop {
            if let Some(frame) = self.take_frame().transpose() {
                return Poll::Ready(Some(frame));
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    // A request has no trailers that matter.
                    if let Ok(chunk) = frame.into_data() {
                        self.chunk = chunk;
                    }
                }
                Some(Err(error)) if status::is_cancelled(&error) => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None if self.partial.is_empty() => return Poll::Ready(None),
                None => {
                    self.partial.clear();
                    return Poll::Ready(Some(Err(status::truncated_message())));
                }
            }
        }
    }

    /// A whole frame from what has arrived. Otherwise the chunk is appended to the
    /// partial frame.
    fn take_frame(&mut self) -> Result<Option<Bytes>, Status> {
        if self.partial.is_empty()
            && let Some(frame_bytes) = self.frame_bytes(&self.chunk)?
            && frame_bytes <= self.chunk.len()
        {
            return Ok(Some(if frame_bytes == self.chunk.len() {
                take(&mut self.chunk)
            } else {
                self.chunk.split_to(frame_bytes)
            }));
        }
        while !self.chunk.is_empty() {
            let frame_bytes = self.frame_bytes(&self.partial)?;
            let missing = frame_bytes.unwrap_or(HEADER_BYTES) - self.partial.len();
            let piece = self.chunk.split_to(missing.min(self.chunk.len()));
            self.unread.reserve(self.partial.len() + piece.len())?;
            self.partial.extend_from_slice(&piece);
            if self.frame_bytes(&self.partial)? == Some(self.partial.len()) {
                return Ok(Some(take(&mut self.partial).freeze()));
            }
        }
        // Release the memory of the connection's read buffer.
        self.chunk = Bytes::new();
        Ok(None)
    }

    /// The length of the frame that begins with these bytes. `None`: its header is
    /// not complete.
    fn frame_bytes(&self, bytes: &[u8]) -> Result<Option<usize>, Status> {
        let Some((&[flag, a, b, c, d], _)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        if flag != 0 {
            return Err(status::compressed_message(flag));
        }
        let message_bytes = u32::from_be_bytes([a, b, c, d]) as usize;
        let message_bytes_max = self.unread.limits.message_bytes_max;
        if message_bytes > message_bytes_max {
            return Err(status::message_too_large(message_bytes, message_bytes_max));
        }
        Ok(Some(HEADER_BYTES + message_bytes))
    }
}

/// The body of a call whose messages tonic reads.
impl HttpBody for FrameReader {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(self.poll_whole_frame(cx));
        Poll::Ready(frame.map(|frame| frame.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.chunk.is_empty() && self.partial.is_empty() && self.body.is_end_stream()
    }
}

/// The reader of a stream's request. It passes through tonic's generated service in
/// the request's extensions, which must be `Clone`; the body that tonic sees is empty.
#[derive(Clone)]
pub struct RequestFrames(Arc<Mutex<Option<FrameReader>>>);

impl RequestFrames {
    pub fn new(reader: FrameReader) -> Self {
        Self(Arc::new(Mutex::new(Some(reader))))
    }

    /// The reader. Only the first call gets it.
    pub fn take(&self) -> Option<FrameReader> {
        self.0.lock().take()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use tonic::Code;

    use super::*;
    use crate::auth::Auth;

    const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

    fn limits(unread_bytes_max: usize) -> Arc<MessageLimits> {
        let auth = Arc::new(Auth::new(&crate::testing::config(&[]).auth).unwrap());
        Arc::new(MessageLimits::new(
            MESSAGE_BYTES_MAX,
            unread_bytes_max,
            |limit| TenantQuota::new(limit, auth),
            Arc::new(Metrics::new([]).unwrap()),
        ))
    }

    /// A reader of a body that arrives in these chunks.
    fn reader(chunks: Vec<Vec<u8>>) -> FrameReader {
        reader_with(chunks, &limits(MESSAGE_BYTES_MAX))
    }

    fn reader_with(chunks: Vec<Vec<u8>>, limits: &Arc<MessageLimits>) -> FrameReader {
        let frames = chunks
            .into_iter()
            .map(|chunk| Ok::<_, Status>(Frame::data(Bytes::from(chunk))));
        let body = Body::new(StreamBody::new(stream::iter(frames)));
        FrameReader::new(body, limits.clone(), Tenant::default())
    }

    fn framed(messages: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for message in messages {
            bytes.push(0);
            bytes.extend((message.len() as u32).to_be_bytes());
            bytes.extend(*message);
        }
        bytes
    }

    #[tokio::test]
    async fn messages_are_the_same_however_the_body_is_split() {
        let long = vec![7; 300];
        let messages: [&[u8]; 4] = [b"a", b"", &long, b"last"];
        let bytes = framed(&messages);
        for chunk_bytes in 1..=bytes.len() {
            let chunks = bytes.chunks(chunk_bytes).map(<[u8]>::to_vec).collect();
            let mut reader = reader(chunks);
            for message in messages {
                assert_eq!(reader.next_message().await.unwrap().unwrap(), message);
            }
            assert!(reader.next_message().await.unwrap().is_none());
        }
    }

    #[tokio::test]
    async fn memory_is_reserved_as_bytes_arrive_and_released_after_the_message() {
        let mut header = vec![0];
        header.extend((MESSAGE_BYTES_MAX as u32).to_be_bytes());
        let mut reader = reader(vec![header]);
        let truncated = reader.next_message().await.unwrap_err();
        assert_eq!(truncated.code(), Code::Internal);
        assert!(reader.partial.capacity() < 1_024, "{reader:?}");

        let message = vec![1; MESSAGE_BYTES_MAX];
        let bytes = framed(&[&message, b"x"]);
        let chunks = bytes.chunks(16_384).map(<[u8]>::to_vec).collect();
        let mut reader = super::tests::reader(chunks);
        assert_eq!(reader.next_message().await.unwrap().unwrap(), message);
        assert_eq!(reader.next_message().await.unwrap().unwrap(), "x");
        assert_eq!(reader.partial.capacity(), 0, "{reader:?}");
    }

    #[tokio::test]
    async fn a_message_that_arrives_in_one_piece_is_not_copied() {
        let chunk = framed(&[b"one", b"two"]);
        let range = chunk.as_ptr_range();
        let mut reader = reader(vec![chunk]);
        for _ in 0..2 {
            let message = reader.next_message().await.unwrap().unwrap();
            assert!(range.contains(&message.as_ptr()));
        }
    }

    #[tokio::test]
    async fn a_message_that_is_too_large_compressed_or_truncated_is_an_error() {
        let too_large = [&[0][..], &(MESSAGE_BYTES_MAX as u32 + 1).to_be_bytes()].concat();
        for (bytes, code) in [
            (too_large, Code::OutOfRange),
            (vec![1, 0, 0, 0, 1, b'x'], Code::Internal),
            (vec![0, 0, 0, 0, 2, b'x'], Code::Internal),
            (vec![0, 0], Code::Internal),
        ] {
            let status = reader(vec![bytes]).next_message().await.unwrap_err();
            assert_eq!(status.code(), code, "{status:?}");
        }
    }

    #[tokio::test]
    async fn unfinished_messages_stay_within_unread_bytes_max() {
        let limits = limits(64 * 1024);
        let message = vec![1; 60 * 1024];
        let chunks = || {
            let bytes = framed(&[&message]);
            bytes.chunks(8_192).map(<[u8]>::to_vec).collect()
        };
        let mut first = reader_with(chunks(), &limits);
        let held = first.next_message().await.unwrap();
        assert!(held.is_some());
        let refused = reader_with(chunks(), &limits).next_message().await;
        assert_eq!(refused.unwrap_err().code(), Code::ResourceExhausted);
        // A small message needs no permit.
        let small = framed(&[&[1; 12 * 1024]]);
        let small = small.chunks(1_024).map(<[u8]>::to_vec).collect();
        let answered = reader_with(small, &limits).next_message().await;
        assert!(answered.unwrap().is_some());
        // The permits are released when the next message is asked for.
        assert!(first.next_message().await.unwrap().is_none());
        let accepted = reader_with(chunks(), &limits).next_message().await;
        assert!(accepted.unwrap().is_some());
    }

    impl std::fmt::Debug for FrameReader {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            let (chunk, partial) = (self.chunk.len(), self.partial.capacity());
            write!(f, "a chunk of {chunk} bytes, {partial} bytes reserved")
        }
    }
}
