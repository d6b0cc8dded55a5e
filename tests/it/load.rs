//! The load generator of `benches/load`: a short run of each way to send, against
//! the service and against the server that does nothing.

use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::{
    bench::rig::{
        drive::{self, End, Load, Outcome, Pace},
        floor,
        mix::{Envelope, Kind, Script},
    },
    harness::*,
};

const MESSAGES: u64 = 40;
const STREAMS: usize = 3;

fn load(envelope: Envelope, kind: Kind, batch: usize) -> Load {
    let script = match envelope {
        Envelope::RecordEvent | Envelope::StreamEvents => Script::events(kind),
        Envelope::StreamDeltas => Script::deltas(kind, 200),
    };
    Load {
        script: script.unwrap(),
        envelope,
        batch,
        streams: STREAMS,
        unanswered_max: 16,
        pace: Pace::FlatOut,
        end: End::Messages(MESSAGES),
        run: 1,
    }
}

async fn driven(server: SocketAddr, load: &Load) -> Outcome {
    within(drive::run(server, load)).await.unwrap()
}

async fn start_floor() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(floor::serve(listener));
    address
}

#[tokio::test]
async fn all_that_the_load_generator_sends_is_answered_by_both_servers() {
    let servers = [start_floor().await, Server::start().await.grpc];
    let ways = [
        (Envelope::RecordEvent, 1),
        (Envelope::StreamEvents, 1),
        (Envelope::StreamEvents, 64),
        (Envelope::StreamDeltas, 1),
        (Envelope::StreamDeltas, 32),
    ];
    for (run, (envelope, batch)) in ways.into_iter().enumerate() {
        let load = Load {
            run,
            ..load(envelope, Kind::Healthy, batch)
        };
        let mut responses = Vec::new();
        for server in servers {
            let outcome = driven(server, &load).await;
            assert_eq!(outcome.messages, MESSAGES * STREAMS as u64, "{envelope:?}");
            responses.push(outcome.responses);
        }
        assert_eq!(
            responses[0], responses[1],
            "{envelope:?}, {batch} a message"
        );
        assert!(responses[0] > 0, "{envelope:?}, {batch} a message");
    }
}

#[tokio::test]
async fn the_looping_mix_gets_verdicts_and_the_healthy_one_does_not() {
    for (kind, is_found) in [(Kind::Healthy, false), (Kind::Looping, true)] {
        let server = Server::start().await;
        // Long enough for each session to loop, and for a response after that to be
        // looked into.
        let load = Load {
            streams: 1,
            end: End::Messages(130),
            ..load(Envelope::StreamEvents, kind, 64)
        };
        let outcome = driven(server.grpc, &load).await;
        assert!(outcome.looked_into > 0);
        assert_eq!(outcome.verdicts > 0, is_found, "{kind:?}");
    }
}

/// A generator that counts from when it could send, and not from when it should
/// have, flatters a server that is slow.
#[tokio::test]
async fn latency_is_counted_from_when_a_message_was_due() {
    // All are due at once, and each waits for the one before.
    let all_at_once = Load {
        streams: 1,
        unanswered_max: 1,
        pace: Pace::Steady(1e9),
        ..load(Envelope::StreamEvents, Kind::Healthy, 1)
    };
    let outcome = driven(start_floor().await, &all_at_once).await;
    let last = outcome.latency.max() as f64;
    assert!(last > 0.5 * outcome.elapsed.as_nanos() as f64, "{last}");
}

#[tokio::test]
async fn a_steady_load_takes_the_time_it_says() {
    let rate = 1_000.0;
    let steady = Load {
        pace: Pace::Steady(rate),
        ..load(Envelope::RecordEvent, Kind::Healthy, 1)
    };
    let outcome = driven(start_floor().await, &steady).await;
    let last_due = (outcome.messages as f64 - STREAMS as f64) / rate;
    assert!(outcome.elapsed.as_secs_f64() >= last_due);
}
