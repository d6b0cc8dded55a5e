//! The scripts on a real server, and the map in memory beside it: the simulation is worth as
//! much as they agree.

use std::{
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
};

use super::*;
use crate::{cluster::testing::MemoryExchange, domain::VerdictId};

/// A server that ends with the test.
struct RedisServer {
    process: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl RedisServer {
    fn start() -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let dir = tempfile::tempdir().unwrap();
        let process = Command::new("redis-server")
            .args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
            ])
            .arg("--dir")
            .arg(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server cannot be run; on Debian: apt-get install redis-server");
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            thread::yield_now();
        }
        Self {
            process,
            port,
            _dir: dir,
        }
    }

    fn exchange(&self, me: &str) -> RedisExchange {
        let url = RedisUrl::new(&format!("redis://127.0.0.1:{}", self.port));
        let limits = (Duration::from_secs(60), 1_000);
        RedisExchange::new(&url, Keys::new("test"), me, limits).unwrap()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn session(id: &str) -> SessionId {
    SessionId::parse(id).unwrap()
}

fn act(id: u128, field: &str, kind: char) -> ActCommand {
    ActCommand {
        session: session("s"),
        field: field.to_owned(),
        id: VerdictId(id),
        value: format!("{kind}{id:032x}sealed").into_bytes(),
        ttl_millis: 60_000,
    }
}

fn save(epoch: u64, body: SaveBody) -> SaveCommand {
    SaveCommand {
        session: session("s"),
        epoch,
        body,
        extends_owner: epoch.is_multiple_of(2),
    }
}

/// The acts of a session have no order.
fn sorted(mut reply: TakeReply) -> TakeReply {
    reply.acts.sort();
    reply
}

/// What one command did, as text.
async fn run(exchange: &dyn Exchange, number: u128, step: (u32, u32)) -> String {
    let (kind, n) = step;
    let element = vec![format!("element{n}").into_bytes()];
    let s = session("s");
    // Mostly newer than those before, so that a termination is lifted again.
    let id = number + u128::from(n % 8);
    let owner = exchange
        .owners(std::slice::from_ref(&s))
        .await
        .unwrap()
        .remove(0);
    let epoch = owner.map_or(0, |it| it.epoch);
    let epoch = epoch.saturating_sub(u64::from(n % 3 == 0));
    match kind % 9 {
        0 | 1 => format!("{:?}", sorted(exchange.take(&[s]).await.unwrap().remove(0))),
        2 | 3 => format!(
            "{:?}",
            exchange
                .save(&[save(epoch, SaveBody::Records(element))])
                .await
        ),
        4 => {
            let state = SaveBody::State(element.concat());
            format!("{:?}", exchange.save(&[save(epoch, state)]).await)
        }
        5 => {
            let looked = sorted(exchange.look(&s).await.unwrap());
            format!(
                "{looked:?} {:?}",
                exchange.owners(std::slice::from_ref(&s)).await
            )
        }
        6 if n % 4 == 0 => format!("{:?}", exchange.end(&s).await),
        7 if n % 3 == 0 => format!("{:?}", exchange.act(&[act(id, "s", 'T')]).await),
        7 if n % 3 == 1 => format!("{:?}", exchange.act(&[act(id, "s", 'R')]).await),
        7 => format!("{:?}", exchange.act(&[act(id, "g:sub", 'G')]).await),
        _ => {
            let read = exchange.read(SharedStream::Acts, "0-0", 1_000, false).await;
            let entries = read.unwrap().into_iter();
            format!(
                "{:?}",
                entries.map(|it| (it.by, it.value)).collect::<Vec<_>>()
            )
        }
    }
}

#[tokio::test]
async fn the_scripts_do_what_the_map_in_memory_does() {
    let server = RedisServer::start();
    let memory = Arc::default();
    let names = ["one", "two"];
    let redis = names.map(|me| server.exchange(me));
    let maps = names.map(|me| MemoryExchange {
        server: Arc::clone(&memory),
        me: me.to_owned(),
    });
    // A fixed sequence that looks random, with all commands in all orders.
    let mut state = 1_u32;
    let mut saved = 0;
    for number in 0..2_000 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let step = (state >> 16, (state >> 8) % 64);
        let replica = (state >> 4) as usize % 2;
        let real = run(&redis[replica], number, step).await;
        let model = run(&maps[replica], number, step).await;
        assert_eq!(real, model, "command {number}: {step:?}");
        saved += usize::from(real.contains("Saved"));
    }
    assert!(saved > 10, "only {saved} saves found their list");
}

#[tokio::test]
async fn a_session_that_was_taken_cannot_be_saved_by_its_previous_owner() {
    let server = RedisServer::start();
    let [one, two] = ["one", "two"].map(|me| server.exchange(me));
    let first = &one.take(&[session("s")]).await.unwrap()[0];
    let records = || SaveBody::Records(vec![b"event".to_vec()]);
    assert_eq!(
        one.save(&[save(1, records())]).await.unwrap(),
        [SaveReply::Saved]
    );
    let second = &two.take(&[session("s")]).await.unwrap()[0];
    assert_eq!((first.epoch, second.epoch), (1, 2));
    assert_eq!(second.list, [b"".to_vec(), b"event".to_vec()]);
    for body in [records(), SaveBody::State(b"state".to_vec())] {
        assert_eq!(
            one.save(&[save(1, body)]).await.unwrap(),
            [SaveReply::Fenced]
        );
    }
    // The owner is in the name of the key: an epoch alone says nothing after lost writes.
    assert_eq!(
        one.save(&[save(2, records())]).await.unwrap(),
        [SaveReply::Fenced]
    );
    assert_eq!(two.look(&session("s")).await.unwrap().list, second.list);
}

#[tokio::test]
async fn a_terminated_session_is_not_taken_and_the_newest_act_stands() {
    let server = RedisServer::start();
    let one = server.exchange("one");
    one.take(&[session("s")]).await.unwrap();
    let stands = |replies: Vec<ActReply>| matches!(replies[..], [ActReply::Stands]);
    assert!(stands(one.act(&[act(5, "s", 'T')]).await.unwrap()));
    let taken = &one.take(&[session("s")]).await.unwrap()[0];
    assert_eq!((taken.epoch, taken.acts.len()), (0, 1));
    assert!(stands(one.act(&[act(7, "s", 'R')]).await.unwrap()));
    assert!(!stands(one.act(&[act(6, "s", 'T')]).await.unwrap()));
    assert!(!stands(one.act(&[act(6, "g:sub", 'G')]).await.unwrap()));
    assert_eq!(
        one.take(&[session("s")]).await.unwrap()[0].list,
        [b"".to_vec()]
    );
}

#[tokio::test]
async fn replicas_leases_and_the_layout_are_shared() {
    let server = RedisServer::start();
    let [one, two] = ["one", "two"].map(|me| server.exchange(me));
    assert!(one.check_layout().await.unwrap().is_some());
    assert_eq!(one.ping().await.unwrap(), two.ping().await.unwrap());
    one.beat("a").await.unwrap();
    two.beat("b").await.unwrap();
    let mut known = two.replicas().await.unwrap();
    known.sort();
    assert_eq!(known, ["a", "b"]);
    assert!(one.hold_lease("notify").await.unwrap());
    assert!(!two.hold_lease("notify").await.unwrap());
    assert!(one.hold_lease("notify").await.unwrap());
    let other: Value = one
        .run(
            &one.commands,
            redis::cmd("SET").arg("test:v").arg("9 other"),
        )
        .await
        .unwrap();
    assert_eq!(other, Value::Okay);
    assert!(two.check_layout().await.unwrap().is_none());
}
