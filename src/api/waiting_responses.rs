//! Responses that wait for the disk.
//!
//! A response with a termination is sent after the termination is on disk, or after its
//! write has failed or has taken too long. Meanwhile the stream is read on, and later
//! responses overtake it. The number and bytes of waiting responses count against the
//! limits of the stream's queue.

use std::collections::VecDeque;

use super::{Api, shared::SharedAnswer};
use crate::{
    cluster::SaveOutcome,
    domain::VerdictId,
    pb,
    server::response_queue::{ResponseSender, SendOutcome, StreamClosed, StreamResponse},
};

/// A response, and the last verdict in it whose write has neither succeeded nor failed.
pub(super) struct Answer<T> {
    pub response: T,
    pub unsettled: Option<VerdictId>,
    /// In a cluster: the sessions that are saved before it is sent.
    pub shared: Option<Box<SharedAnswer>>,
}

/// A response whose events may be counted again, because their session has moved.
pub(super) trait CountAgain: StreamResponse {
    fn replace_result(&mut self, position: usize, result: pb::EventResult);
}

impl<T> From<T> for Answer<T> {
    fn from(response: T) -> Self {
        Self {
            response,
            unsettled: None,
            shared: None,
        }
    }
}

/// The responses of a stream.
pub(super) struct WaitingResponses<'a, T> {
    api: &'a Api,
    responses: &'a ResponseSender<T>,
    /// Oldest first. Verdicts are written in the order of their ids, so the first is
    /// settled first.
    waiting: VecDeque<(VerdictId, T)>,
    /// Those whose sessions are being saved, oldest first.
    saving: VecDeque<(Answer<T>, Box<SharedAnswer>)>,
    /// A session has moved while responses waited for it.
    has_moved: bool,
    /// The encoded size of the waiting responses.
    bytes: usize,
}

impl<'a, T: CountAgain> WaitingResponses<'a, T> {
    pub fn new(api: &'a Api, responses: &'a ResponseSender<T>) -> Self {
        Self {
            api,
            responses,
            waiting: VecDeque::new(),
            saving: VecDeque::new(),
            has_moved: false,
            bytes: 0,
        }
    }

    /// Sends a response, or keeps it until its verdicts are settled.
    pub fn send(&mut self, mut answer: Answer<T>) {
        if let Some(shared) = answer.shared.take() {
            self.bytes += answer.response.encoded_len();
            self.saving.push_back((answer, shared));
            return;
        }
        let Answer {
            response,
            unsettled,
            shared: _,
        } = answer;
        match unsettled {
            Some(id) => {
                self.bytes += response.encoded_len();
                self.waiting.push_back((id, response));
            }
            None => self.queue(response),
        }
    }

    fn queue(&self, response: T) {
        if self.responses.send(response) == SendOutcome::Coalesced {
            self.api.server.metrics.count_coalesced_response();
        }
    }

    /// Waits until the oldest waiting response can be sent, and sends it. Never ends if
    /// none waits. Cancel-safe.
    pub async fn send_settled(&mut self) {
        if self.is_empty() {
            return std::future::pending().await;
        }
        let (waiting, saving) = (self.waiting.front(), self.saving.front_mut());
        let settled = async {
            match waiting {
                Some((id, _)) => self.api.wait_until_settled(*id).await,
                None => std::future::pending().await,
            }
        };
        let saved = async {
            match saving {
                Some((_, shared)) => shared.wait().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = settled => self.send_first(),
            outcome = saved => self.end_saving(&outcome),
        }
    }

    /// The sessions of the oldest response are saved, or have moved.
    fn end_saving(&mut self, outcome: &SaveOutcome) {
        let Some((mut answer, shared)) = self.saving.pop_front() else {
            return;
        };
        self.bytes -= answer.response.encoded_len();
        self.has_moved |= !outcome.moved.is_empty();
        (*shared).count_again(self.api, &mut answer, outcome);
        match answer.shared.take() {
            // Before the others, which came later.
            Some(shared) => {
                self.bytes += answer.response.encoded_len();
                self.saving.push_front((answer, shared));
            }
            None => self.send(answer),
        }
    }

    fn send_first(&mut self) {
        if let Some((_, mut response)) = self.waiting.pop_front() {
            self.bytes -= response.encoded_len();
            response
                .verdicts_mut()
                .for_each(|verdict| self.update_durable(verdict));
            self.queue(response);
        }
    }

    fn update_durable(&self, verdict: &mut pb::Verdict) {
        let is_termination = verdict.action() == pb::Action::Terminate;
        if let Some(id) = VerdictId::parse(&verdict.verdict_id).filter(|_| is_termination) {
            verdict.durable |= self.api.store.is_durable(id);
        }
    }

    pub async fn send_all(&mut self) {
        while !self.is_empty() {
            self.send_settled().await;
        }
    }

    /// Whether events before the next may have to be counted again.
    pub fn has_moved(&self) -> bool {
        self.has_moved
    }

    /// Waits until the sessions of all responses are saved, within `cluster.wait_ms` each.
    pub async fn finish_saving(&mut self) {
        while let Some((_, shared)) = self.saving.front_mut() {
            let outcome = shared.wait().await;
            self.end_saving(&outcome);
        }
        self.has_moved = false;
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.saving.is_empty()
    }

    /// Waits until the unread and the waiting responses are within the limits of the
    /// stream.
    pub async fn wait_until_within_limit(&mut self) -> Result<(), StreamClosed> {
        let is_full = |waiting: &Self| {
            let count = waiting.waiting.len() + waiting.saving.len();
            !waiting.responses.has_room_beside(count, waiting.bytes)
        };
        while !self.is_empty() && is_full(self) {
            self.send_settled().await;
        }
        self.responses.wait_until_within_limit().await
    }
}
