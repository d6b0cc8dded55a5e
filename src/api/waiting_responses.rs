//! Responses that wait for the disk.
//!
//! A response with a termination is sent after the termination is on disk, or after its
//! write has failed or has taken too long. Meanwhile the stream is read on, and later
//! responses overtake it. The number and bytes of waiting responses count against the
//! limits of the stream's queue.

use std::collections::VecDeque;

use super::Api;
use crate::{
    domain::VerdictId,
    pb,
    server::response_queue::{ResponseSender, SendOutcome, StreamClosed, StreamResponse},
};

/// A response, and the last verdict in it whose write has neither succeeded nor failed.
pub(super) struct Answer<T> {
    pub response: T,
    pub unsettled: Option<VerdictId>,
}

impl<T> From<T> for Answer<T> {
    fn from(response: T) -> Self {
        Self {
            response,
            unsettled: None,
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
    /// The encoded size of the waiting responses.
    bytes: usize,
}

impl<'a, T: StreamResponse> WaitingResponses<'a, T> {
    pub fn new(api: &'a Api, responses: &'a ResponseSender<T>) -> Self {
        Self {
            api,
            responses,
            waiting: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Sends a response, or keeps it until its verdicts are settled.
    pub fn send(&mut self, answer: Answer<T>) {
        let Answer {
            response,
            unsettled,
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
        let Some((id, _)) = self.waiting.front() else {
            return std::future::pending().await;
        };
        self.api.store.wait_until_settled_or_timeout(*id).await;
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
        while !self.waiting.is_empty() {
            self.send_settled().await;
        }
    }

    /// Waits until the unread and the waiting responses are within the limits of the
    /// stream.
    pub async fn wait_until_within_limit(&mut self) -> Result<(), StreamClosed> {
        let is_full = |waiting: &Self| {
            let count = waiting.waiting.len();
            !waiting.responses.has_room_beside(count, waiting.bytes)
        };
        while !self.waiting.is_empty() && is_full(self) {
            self.send_settled().await;
        }
        self.responses.wait_until_within_limit().await
    }
}
