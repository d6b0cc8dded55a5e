//! The way back to a stream's client.

use std::future::Future;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::status;

pub(super) type Responses<T> = mpsc::Sender<Result<T, Status>>;
pub(super) type Outbound<T> = ReceiverStream<Result<T, Status>>;

/// Serves a stream in a task of its own until it is over or the service drains.
/// However it ends, the client is told why.
pub(super) fn serve<T, F>(
    responses_max: usize,
    draining: CancellationToken,
    stream: impl FnOnce(Responses<T>) -> F,
) -> Outbound<T>
where
    T: Send + 'static,
    F: Future<Output = Result<(), Status>> + Send + 'static,
{
    // The channel is the bound on unread responses: while it is full the stream
    // is read no further. One place more is kept for the reason that the stream
    // ends with, or a client that does not read would be told that all is well.
    let (responses, outbound) = mpsc::channel(responses_max + 1);
    let last = responses.clone().try_reserve_owned();
    let stream = stream(responses);
    let stream = tokio::spawn(async move {
        tokio::select! {
            ended = stream => ended,
            () = draining.cancelled() => Err(status::draining()),
        }
    });
    // A panic drops the sender, which by itself would look like a clean end.
    tokio::spawn(async move {
        let ended = stream.await.unwrap_or_else(|_| Err(status::internal()));
        if let (Err(why), Ok(last)) = (ended, last) {
            last.send(Err(why));
        }
    });
    ReceiverStream::new(outbound)
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;
    use tonic::Code;

    use super::*;

    /// What the client gets: the responses, and the code at the end.
    async fn all(mut outbound: Outbound<i32>) -> (Vec<i32>, Code) {
        let mut seen = Vec::new();
        while let Some(next) = outbound.next().await {
            match next {
                Ok(response) => seen.push(response),
                Err(status) => return (seen, status.code()),
            }
        }
        (seen, Code::Ok)
    }

    #[tokio::test]
    async fn a_full_channel_still_has_a_place_for_the_reason() {
        let draining = CancellationToken::new();
        let (full, is_full) = tokio::sync::oneshot::channel();
        let outbound = serve(1, draining.clone(), |responses| async move {
            let _ = responses.send(Ok(1)).await;
            full.send(responses.capacity()).ok();
            let _ = responses.send(Ok(2)).await;
            Ok(())
        });
        assert_eq!(is_full.await, Ok(0));
        draining.cancel();
        // Nothing is read until the task has ended.
        while !outbound.as_ref().is_closed() && outbound.as_ref().len() < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(all(outbound).await, (vec![1], Code::Unavailable));
    }

    #[tokio::test]
    async fn a_stream_that_is_done_ends_in_peace() {
        let outbound = serve(1, CancellationToken::new(), |responses| async move {
            let _ = responses.send(Ok(1)).await;
            let _ = responses.send(Ok(2)).await;
            Ok(())
        });
        assert_eq!(all(outbound).await, (vec![1, 2], Code::Ok));
    }

    #[tokio::test]
    async fn a_panic_ends_the_stream_with_a_reference_and_no_detail() {
        let mut outbound = serve::<(), _>(1, CancellationToken::new(), |responses| async move {
            drop(responses);
            panic!("said by an agent")
        });
        let status = outbound.next().await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::Internal);
        assert!(status.message().contains("reference"), "{status:?}");
        assert!(!format!("{status:?}").contains("agent"), "{status:?}");
    }
}
