//! Connections beyond `limits.connections_max`: a reserve in which operators and probes
//! are served and brokers get the reason why they are not.
//!
//! Who has connected is only known with the first request, so a connection above the
//! limit is accepted into the reserve and its calls are told apart by the rpc table:
//! rpcs of brokers and health watches are refused with UNAVAILABLE, everything else is
//! served. A connection of the reserve gets a GOAWAY frame after [`RESERVE_AGE_MAX`];
//! calls that are open then, such as an operator's watch, continue. When the reserve is
//! full, the oldest connection on which no operator was authorized is closed for the
//! new one, so neither brokers that reconnect in large numbers nor callers without a
//! token keep an operator out.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::{Ready, ready},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::Either;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{
    body::Body,
    codegen::{
        Service,
        http::{Request, Response},
    },
    transport::server::TcpConnectInfo,
};
use tower_layer::Layer;

use super::{
    listener::Connection,
    rpc::{self, ResponseKind},
    status,
    tls::MaybeTlsStream,
};
use crate::{
    auth::Access,
    telemetry::{Metrics, Rejection},
};

/// Connections of the reserve.
pub const RESERVE_CONNECTIONS_MAX: usize = 64;
/// Streams on one connection of the reserve.
pub const RESERVE_STREAMS_MAX: u32 = 8;
/// After this time a connection of the reserve gets a GOAWAY frame. A broker's next
/// connection is then served if another has ended, an operator's call takes less.
pub const RESERVE_AGE_MAX: Duration = Duration::from_secs(5);

/// The reserve, as the listener fills it.
pub struct Reserve {
    slots: Arc<ReserveSlots>,
    accepted: mpsc::Sender<Connection<MaybeTlsStream>>,
}

struct ReserveSlots {
    limit: usize,
    /// The oldest first.
    open: Mutex<VecDeque<Arc<ReserveSlot>>>,
    metrics: Arc<Metrics>,
}

/// A connection of the reserve, as its requests see it.
pub struct ReserveSlot {
    /// A [`SlotUse`].
    last_use: AtomicU8,
    evicted: CancellationToken,
}

/// What a connection of the reserve was used for.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum SlotUse {
    /// Nothing yet.
    None,
    /// Only calls that were refused, of a broker or a health watch.
    Refused,
    /// A probe was served. It needs no token.
    Probe,
    /// An operator was authorized.
    Served,
}

impl Reserve {
    /// `limit` is at most [`RESERVE_CONNECTIONS_MAX`]. The connections arrive in the
    /// receiver.
    pub fn new(
        limit: usize,
        metrics: Arc<Metrics>,
    ) -> (Self, mpsc::Receiver<Connection<MaybeTlsStream>>) {
        let (accepted, connections) = mpsc::channel(limit.max(1));
        let slots = Arc::new(ReserveSlots {
            limit,
            open: Mutex::default(),
            metrics,
        });
        (Self { slots, accepted }, connections)
    }

    /// Takes a slot. If all are taken, the connection that an operator needs least is
    /// closed. `None`: all are used by operators.
    pub fn take_slot(&self) -> Option<ReservePermit> {
        let mut open = self.slots.open.lock();
        if open.len() >= self.slots.limit {
            // Probes have been answered. Brokers and operators that have not called yet
            // are newer than them, unless they wait.
            let evicted = open
                .iter()
                .position(|slot| slot.is_used_for(SlotUse::Refused))
                .or_else(|| {
                    open.iter()
                        .position(|slot| !slot.is_used_for(SlotUse::Served))
                })
                .and_then(|index| open.remove(index))?;
            evicted.evicted.cancel();
            if evicted.is_used_for(SlotUse::None) {
                self.slots.count_rejected();
            }
        }
        let slot = Arc::new(ReserveSlot {
            last_use: AtomicU8::new(SlotUse::None as u8),
            evicted: CancellationToken::new(),
        });
        open.push_back(slot.clone());
        Some(ReservePermit {
            slots: self.slots.clone(),
            eviction: Box::pin(slot.evicted.clone().cancelled_owned()),
            slot,
        })
    }

    /// Hands a connection to the server of the reserve. It is dropped if that one does
    /// not keep up.
    pub fn serve(&self, connection: Connection<MaybeTlsStream>) {
        if self.accepted.try_send(connection).is_err() {
            self.slots.count_rejected();
        }
    }
}

impl ReserveSlots {
    fn count_rejected(&self) {
        self.metrics.count_rejection(Rejection::ConnectionsMax);
    }
}

impl ReserveSlot {
    fn is_used_for(&self, expected: SlotUse) -> bool {
        self.last_use.load(Ordering::Relaxed) == expected as u8
    }

    /// Marks the slot as refused. `true`: it was not used before.
    fn set_refused(&self) -> bool {
        self.set_first_use(SlotUse::Refused)
    }

    fn set_first_use(&self, first: SlotUse) -> bool {
        let unused = SlotUse::None as u8;
        self.last_use
            .compare_exchange(unused, first as u8, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// Marks the slot as used by a call that admission has authorized. Only one that
    /// needs a token keeps the connection from being closed for another.
    pub fn set_authorized(&self, access: Access) {
        if access == Access::Public {
            self.set_first_use(SlotUse::Probe);
        } else {
            let served = SlotUse::Served as u8;
            self.last_use.store(served, Ordering::Relaxed);
        }
    }
}

/// Holds a slot of the reserve until it is dropped.
pub struct ReservePermit {
    slots: Arc<ReserveSlots>,
    slot: Arc<ReserveSlot>,
    eviction: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl ReservePermit {
    pub fn slot(&self) -> Arc<ReserveSlot> {
        self.slot.clone()
    }

    /// Ready when the connection must close for another one.
    pub fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.eviction.as_mut().poll(cx)
    }
}

impl Drop for ReservePermit {
    fn drop(&mut self) {
        let mut open = self.slots.open.lock();
        open.retain(|slot| !Arc::ptr_eq(slot, &self.slot));
    }
}

/// What a request knows of its connection.
#[derive(Clone)]
pub struct ConnectionInfo {
    pub tcp: TcpConnectInfo,
    /// `None`: the connection is one of `limits.connections_max`.
    pub reserve_slot: Option<Arc<ReserveSlot>>,
}

/// Refuses the rpcs of brokers, and health watches, on connections of the reserve.
#[derive(Clone)]
pub struct ReserveLayer {
    pub connections_max: usize,
    pub metrics: Arc<Metrics>,
}

#[derive(Clone)]
pub struct ReserveService<S> {
    layer: ReserveLayer,
    inner: S,
}

impl<S> Layer<S> for ReserveLayer {
    type Service = ReserveService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ReserveService {
            layer: self.clone(),
            inner,
        }
    }
}

impl<S> Service<Request<Body>> for ReserveService<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Response<Body>, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let info = request.extensions().get::<ConnectionInfo>();
        let slot = info.and_then(|info| info.reserve_slot.as_ref());
        let spec = rpc::find(request.uri().path());
        // A health watch needs no token and would stay open after GOAWAY.
        if spec.is_for_brokers() || spec.response == ResponseKind::HealthStream {
            if slot.is_some_and(|slot| slot.set_refused()) {
                self.layer
                    .metrics
                    .count_rejection(Rejection::ConnectionsMax);
            }
            let refused = status::too_many_connections(self.layer.connections_max, RESERVE_AGE_MAX);
            return Either::Right(ready(Ok(refused.into_http())));
        }
        Either::Left(self.inner.call(request))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::auth::TokenRole;

    fn reserve(limit: usize) -> (Reserve, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::new(["exact_repeat"]).unwrap());
        (Reserve::new(limit, metrics.clone()).0, metrics)
    }

    fn is_evicted(permit: &ReservePermit) -> bool {
        permit.slot.evicted.is_cancelled()
    }

    fn rejected(metrics: &Metrics) -> bool {
        let page = metrics.render();
        !page.contains("unstuck_rejected_total{reason=\"connections_max\"} 0\n")
    }

    const OPERATOR: Access = Access::Roles(&[TokenRole::Operator]);

    #[test]
    fn a_full_reserve_closes_refused_brokers_first_and_never_operators() {
        let (reserve, metrics) = reserve(3);
        let [served, unused, refused] = [0; 3].map(|_| reserve.take_slot().unwrap());
        served.slot.set_authorized(OPERATOR);
        assert!(refused.slot.set_refused());
        assert!(!refused.slot.set_refused(), "counted once");

        let mut fourth = reserve.take_slot().unwrap();
        assert!(is_evicted(&refused) && !is_evicted(&unused));
        assert!(!rejected(&metrics), "it was counted when it was refused");
        let fifth = reserve.take_slot().unwrap();
        assert!(is_evicted(&unused) && rejected(&metrics));
        assert!(fourth.eviction.as_mut().now_or_never().is_none());

        for permit in [&fourth, &fifth] {
            permit.slot.set_authorized(OPERATOR);
        }
        assert!(reserve.take_slot().is_none());
        assert!(!is_evicted(&served));
        drop(served);
        assert!(reserve.take_slot().is_some());
    }

    #[test]
    fn a_probe_is_closed_for_an_operator_and_an_operator_that_probes_is_not() {
        let (reserve, metrics) = reserve(2);
        let [probe, operator] = [0; 2].map(|_| reserve.take_slot().unwrap());
        operator.slot.set_authorized(OPERATOR);
        for permit in [&probe, &operator] {
            permit.slot.set_authorized(Access::Public);
        }
        assert!(reserve.take_slot().is_some());
        assert!(is_evicted(&probe) && !is_evicted(&operator));
        assert!(!rejected(&metrics), "it was served");
    }
}
