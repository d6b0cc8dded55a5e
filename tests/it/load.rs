//! The load generator of `benches/load`: a short run of each way to send, against the
//! service and against a server that does nothing.

use std::{net::SocketAddr, time::Duration};

use tokio::net::TcpListener;

use crate::{
    bench::load_generator::{
        bare_server,
        drive::{self, End, Load, Outcome, Pace},
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
        overdue: Duration::ZERO,
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
    tokio::spawn(bare_server::serve(listener));
    address
}

#[tokio::test]
async fn both_servers_answer_everything_the_load_generator_sends() {
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
    // Long enough for each session to loop, and for a response after that to be
    // checked; of texts, for the first of each session.
    let ways = [
        (Envelope::StreamEvents, 64, 130),
        (Envelope::StreamDeltas, 1, 2_000),
    ];
    for (envelope, batch, messages) in ways {
        for (kind, is_found) in [(Kind::Healthy, false), (Kind::Looping, true)] {
            let server = Server::start().await;
            let load = Load {
                streams: 1,
                end: End::Messages(messages),
                ..load(envelope, kind, batch)
            };
            let outcome = driven(server.grpc, &load).await;
            assert!(outcome.checked_results > 0);
            assert_eq!(outcome.verdicts > 0, is_found, "{envelope:?}, {kind:?}");
        }
    }
}

/// A generator that measures from the actual send time instead of the due time hides
/// the delay of a slow server.
#[tokio::test]
async fn latency_is_measured_from_the_time_a_message_was_due() {
    const OVERDUE: Duration = Duration::from_secs(10);
    let overdue = Load {
        pace: Pace::Steady(1e9),
        overdue: OVERDUE,
        ..load(Envelope::StreamEvents, Kind::Healthy, 1)
    };
    let outcome = driven(start_floor().await, &overdue).await;
    // The histogram has three digits.
    let least = outcome.latency.min() as f64;
    assert!(least > 0.99 * OVERDUE.as_nanos() as f64, "{least}");
}

/// If the machine stalls in one interval of five, only the overall 99th percentile shows
/// it; a server that is slow in each interval shows in both figures.
#[test]
fn one_slow_interval_does_not_hide_the_others() {
    let latencies = |slow: fn(u32) -> u64| -> Vec<(u32, u64)> {
        let of_interval = move |interval| {
            (0..100).map(move |n| (interval, if n < 5 { slow(interval) } else { 1_000 }))
        };
        (0..5).flat_map(of_interval).collect()
    };
    let mut stalled = latencies(|interval| if interval == 3 { 5_000_000 } else { 2_000 });
    let (all, typical) = drive::summarize(&mut stalled).unwrap();
    assert!(all.value_at_quantile(0.995) > 4_900_000);
    assert!((1_990..2_010).contains(&typical), "{typical}");
    let mut slow = latencies(|_| 5_000_000);
    let (_, typical) = drive::summarize(&mut slow).unwrap();
    assert!(typical > 4_900_000, "{typical}");
}

#[tokio::test]
async fn a_steady_load_lasts_its_configured_time() {
    let rate = 1_000.0;
    let steady = Load {
        pace: Pace::Steady(rate),
        ..load(Envelope::RecordEvent, Kind::Healthy, 1)
    };
    let outcome = driven(start_floor().await, &steady).await;
    let last_due = (outcome.messages as f64 - STREAMS as f64) / rate;
    assert!(outcome.elapsed.as_secs_f64() >= last_due);
}
