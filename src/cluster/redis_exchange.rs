//! Redis, Valkey and what speaks like them: one server, servers behind Sentinel, or a
//! cluster.

mod connection;
mod scripts;
#[cfg(test)]
mod tests;

use std::time::Duration;

use redis::{
    Cmd, FromRedisValue, Pipeline, RedisError, Value,
    cluster::ClusterClient,
    streams::{StreamRangeReply, StreamReadReply},
};
use tonic::async_trait;

use super::{
    exchange::{
        ActCommand, ActReply, Exchange, ExchangeError, ExchangeResult, PreviousOwner, SaveBody,
        SaveCommand, SaveReply, SharedStream, StreamEntry, TakeReply,
    },
    keys::Keys,
    settings::{RedisUrl, Topology},
};
use crate::domain::SessionId;
use connection::{COMMAND_TIMEOUT, CONNECT_TIMEOUT, Link, Servers};
use scripts::{ACT, END, LEASE, LOOK, TAKE};

/// A read waits for a new entry for as long.
const READ_WAIT: Duration = Duration::from_millis(500);
/// A replica that has not been heard of for this long is not listed.
const REPLICA_MILLIS_MAX: u64 = 10_000;
/// The acts that are kept for replicas that were away.
const ACTS_MAX: usize = 1_000_000;
const LAYOUT: &str = "1";

pub struct RedisExchange {
    servers: Servers,
    keys: Keys,
    me: String,
    session_ttl_millis: u64,
    feed_max: usize,
    /// For sessions and acts, for pings, and for reading each stream.
    commands: Link,
    pings: Link,
    acts: Link,
    feed: Link,
}

impl RedisExchange {
    pub fn new(
        url: &RedisUrl,
        keys: Keys,
        me: &str,
        (session_ttl, feed_max): (Duration, usize),
    ) -> Result<Self, String> {
        // Without a description of the error, which may quote the address.
        let refused = |_: RedisError| "cannot use the address of Redis".to_owned();
        let servers = match url.topology()? {
            Topology::Single(info) => Servers::Single(redis::Client::open(*info).map_err(refused)?),
            Topology::Sentinel(client) => Servers::Sentinel(tokio::sync::Mutex::new(*client)),
            Topology::Cluster(nodes) => {
                let client = ClusterClient::builder(nodes)
                    .connection_timeout(CONNECT_TIMEOUT)
                    .response_timeout(COMMAND_TIMEOUT)
                    .overall_response_timeout(Some(COMMAND_TIMEOUT))
                    .retries(2)
                    .build();
                Servers::Cluster(client.map_err(refused)?)
            }
        };
        Ok(Self {
            servers,
            keys,
            me: me.to_owned(),
            session_ttl_millis: u64::try_from(session_ttl.as_millis()).unwrap_or(u64::MAX),
            feed_max,
            commands: Link::default(),
            pings: Link::default(),
            acts: Link::default(),
            feed: Link::default(),
        })
    }

    /// Checks that the data are of a layout that this version knows, and returns what
    /// identifies them. `None`: they are of another layout.
    pub async fn check_layout(&self) -> ExchangeResult<Option<String>> {
        let mark = format!("{LAYOUT} {}", self.me);
        let key = self.keys.shared("v");
        let _: bool = self
            .run(&self.commands, redis::cmd("SETNX").arg(&key).arg(mark))
            .await?;
        let known: String = self
            .run(&self.commands, redis::cmd("GET").arg(&key))
            .await?;
        let is_known = known.split(' ').next() == Some(LAYOUT);
        Ok(is_known.then_some(known))
    }

    fn take_pipeline(&self, script: &str, session: &SessionId) -> Pipeline {
        let mut pipeline = redis::pipe();
        pipeline
            .cmd("EVAL")
            .arg(script)
            .arg(2)
            .arg(self.keys.owner(session))
            .arg(self.keys.acts_of(session))
            .arg(&self.me)
            .arg(self.keys.state_prefix(session))
            .arg(self.session_ttl_millis);
        pipeline
    }

    async fn evaluate(
        &self,
        script: &str,
        sessions: &[SessionId],
    ) -> ExchangeResult<Vec<TakeReply>> {
        let pipelines = sessions.iter().map(|it| self.take_pipeline(script, it));
        let replies = self.run_all(&self.commands, pipelines.collect()).await?;
        let replies = replies.into_iter().map(|replies| {
            let first = replies.into_iter().next();
            let value = first.unwrap_or(Ok(Value::Nil));
            let value = value.map_err(|error| self.lost(&self.commands, &error))?;
            parse_take(value)
        });
        replies.collect()
    }

    async fn lease(&self, name: &str, millis: u64) -> ExchangeResult<bool> {
        let mut command = redis::cmd("EVAL");
        command
            .arg(LEASE)
            .arg(1)
            .arg(self.keys.shared(&format!("l:{name}")))
            .arg(&self.me)
            .arg(millis);
        self.run(&self.commands, &command).await
    }

    fn stream_key(&self, stream: SharedStream) -> (String, &Link) {
        match stream {
            SharedStream::Acts => (self.keys.shared("acts"), &self.acts),
            SharedStream::Feed => (self.keys.shared("feed"), &self.feed),
        }
    }

    fn append(&self, key: &str, max: usize, value: &[u8]) -> Cmd {
        let mut command = redis::cmd("XADD");
        command
            .arg(key)
            .arg("MAXLEN")
            .arg("~")
            .arg(max)
            .arg("*")
            .arg("by")
            .arg(&self.me)
            .arg("v")
            .arg(value);
        command
    }
}

#[async_trait]
impl Exchange for RedisExchange {
    async fn take(&self, sessions: &[SessionId]) -> ExchangeResult<Vec<TakeReply>> {
        self.evaluate(TAKE, sessions).await
    }

    async fn look(&self, session: &SessionId) -> ExchangeResult<TakeReply> {
        let replies = self.evaluate(LOOK, std::slice::from_ref(session)).await?;
        let first = replies.into_iter().next();
        first.ok_or_else(|| ExchangeError::Refused("no reply".to_owned()))
    }

    async fn owners(&self, sessions: &[SessionId]) -> ExchangeResult<Vec<Option<PreviousOwner>>> {
        let pipelines = sessions.iter().map(|session| {
            let mut pipeline = redis::pipe();
            pipeline.cmd("GET").arg(self.keys.owner(session));
            pipeline
        });
        let replies = self.run_all(&self.commands, pipelines.collect()).await?;
        let owners = replies.into_iter().map(|replies| {
            let value = replies.into_iter().next().unwrap_or(Ok(Value::Nil));
            let value = value.map_err(|error| self.lost(&self.commands, &error))?;
            let owner: Option<String> = parse(value)?;
            Ok(owner.as_deref().and_then(PreviousOwner::parse))
        });
        owners.collect()
    }

    async fn save(&self, commands: &[SaveCommand]) -> ExchangeResult<Vec<SaveReply>> {
        let pipelines = commands.iter().map(|command| {
            let prefix = self.keys.state_prefix(&command.session);
            let key = format!("{prefix}{} {}", command.epoch, self.me);
            let mut pipeline = redis::pipe();
            // Appends only to a list that is there: it moves away with its owner.
            let append = pipeline.cmd("RPUSHX").arg(&key);
            match &command.body {
                SaveBody::Records(records) => {
                    append.arg(records);
                }
                SaveBody::State(state) => {
                    append.arg(state);
                    pipeline.cmd("LTRIM").arg(&key).arg(-1).arg(-1);
                    pipeline
                        .cmd("PEXPIRE")
                        .arg(&key)
                        .arg(self.session_ttl_millis);
                }
            }
            if command.extends_owner {
                let owner = self.keys.owner(&command.session);
                pipeline
                    .cmd("PEXPIRE")
                    .arg(owner)
                    .arg(self.session_ttl_millis);
            }
            pipeline
        });
        let replies = self.run_all(&self.commands, pipelines.collect()).await?;
        let saved = replies
            .into_iter()
            .map(|replies| match replies.into_iter().next() {
                Some(Ok(Value::Int(0))) => SaveReply::Fenced,
                Some(Ok(Value::Int(_))) => SaveReply::Saved,
                Some(Err(error)) => match self.lost(&self.commands, &error) {
                    ExchangeError::Full(_) => SaveReply::Full,
                    _ => SaveReply::Failed,
                },
                _ => SaveReply::Failed,
            });
        Ok(saved.collect())
    }

    async fn end(&self, session: &SessionId) -> ExchangeResult<()> {
        let mut command = redis::cmd("EVAL");
        command
            .arg(END)
            .arg(1)
            .arg(self.keys.owner(session))
            .arg(self.keys.state_prefix(session))
            .arg(self.session_ttl_millis);
        self.run(&self.commands, &command).await
    }

    async fn act(&self, commands: &[ActCommand]) -> ExchangeResult<Vec<ActReply>> {
        let pipelines = commands.iter().map(|command| {
            let mut pipeline = redis::pipe();
            pipeline
                .cmd("EVAL")
                .arg(ACT)
                .arg(2)
                .arg(self.keys.acts_of(&command.session))
                .arg(self.keys.owner(&command.session))
                .arg(&command.field)
                .arg(format!("{:032x}", command.id.0))
                .arg(&command.value)
                .arg(command.ttl_millis)
                .arg(self.keys.state_prefix(&command.session));
            pipeline
        });
        let replies = self.run_all(&self.commands, pipelines.collect()).await?;
        let mut acted = Vec::with_capacity(commands.len());
        let mut announced = redis::pipe();
        let key = self.keys.shared("acts");
        for (command, replies) in commands.iter().zip(replies) {
            let value = replies.into_iter().next().unwrap_or(Ok(Value::Nil));
            match value.map_err(|error| self.lost(&self.commands, &error))? {
                Value::BulkString(newer) => acted.push(ActReply::Overruled(newer)),
                _ => {
                    acted.push(ActReply::Stands);
                    announced.add_command(self.append(&key, ACTS_MAX, &command.value));
                }
            }
        }
        if !announced.is_empty() {
            self.run_strict(announced).await?;
        }
        Ok(acted)
    }

    async fn publish(&self, verdicts: &[Vec<u8>]) -> ExchangeResult<()> {
        let key = self.keys.shared("feed");
        let mut pipeline = redis::pipe();
        for verdict in verdicts {
            pipeline.add_command(self.append(&key, self.feed_max, verdict));
        }
        self.run_strict(pipeline).await
    }

    async fn last_position(&self, stream: SharedStream) -> ExchangeResult<String> {
        let (key, _) = self.stream_key(stream);
        let mut command = redis::cmd("XREVRANGE");
        command.arg(key).arg("+").arg("-").arg("COUNT").arg(1);
        let last: StreamRangeReply = self.run(&self.commands, &command).await?;
        let last = last.ids.into_iter().next();
        Ok(last.map_or_else(|| "0-0".to_owned(), |entry| entry.id))
    }

    async fn read(
        &self,
        stream: SharedStream,
        after: &str,
        count: usize,
        wait: bool,
    ) -> ExchangeResult<Vec<StreamEntry>> {
        let (key, reading) = self.stream_key(stream);
        let mut command = redis::cmd("XREAD");
        command.arg("COUNT").arg(count);
        if wait {
            let millis = u64::try_from(READ_WAIT.as_millis()).unwrap_or(u64::MAX);
            command.arg("BLOCK").arg(millis);
        }
        command.arg("STREAMS").arg(key).arg(after);
        let link = if wait { reading } else { &self.commands };
        let found: Option<StreamReadReply> = self.run(link, &command).await?;
        let keys = found.into_iter().flat_map(|reply| reply.keys);
        let entries = keys.flat_map(|stream| stream.ids).filter_map(|entry| {
            Some(StreamEntry {
                by: entry.get("by")?,
                value: entry.get("v")?,
                position: entry.id,
            })
        });
        Ok(entries.collect())
    }

    async fn ping(&self) -> ExchangeResult<String> {
        // An empty restart is seen by it, unlike by PING.
        let key = self.keys.shared("v");
        let known: Option<String> = self.run(&self.pings, redis::cmd("GET").arg(&key)).await?;
        match known {
            Some(known) => Ok(known),
            None => {
                let mark = format!("{LAYOUT} {}", self.me);
                let _: bool = self
                    .run(&self.pings, redis::cmd("SETNX").arg(&key).arg(mark))
                    .await?;
                self.run(&self.pings, redis::cmd("GET").arg(&key)).await
            }
        }
    }

    async fn beat(&self, description: &str) -> ExchangeResult<()> {
        let mut set = redis::cmd("SET");
        set.arg(self.keys.shared(&format!("r:{}", self.me)))
            .arg(description)
            .arg("PX")
            .arg(REPLICA_MILLIS_MAX);
        let _: Value = self.run(&self.commands, &set).await?;
        // The set says which keys to ask for; names that expired are removed.
        let listed = self.keys.shared("replicas");
        let mut add = redis::cmd("SADD");
        add.arg(listed).arg(&self.me);
        let _: Value = self.run(&self.commands, &add).await?;
        Ok(())
    }

    async fn replicas(&self) -> ExchangeResult<Vec<String>> {
        let listed = self.keys.shared("replicas");
        let names: Vec<String> = self
            .run(&self.commands, redis::cmd("SMEMBERS").arg(&listed))
            .await?;
        let mut found = Vec::new();
        for name in names {
            let key = self.keys.shared(&format!("r:{name}"));
            let known: Option<String> =
                self.run(&self.commands, redis::cmd("GET").arg(key)).await?;
            match known {
                Some(description) => found.push(description),
                None => {
                    let mut remove = redis::cmd("SREM");
                    remove.arg(&listed).arg(name);
                    let _: Value = self.run(&self.commands, &remove).await?;
                }
            }
        }
        Ok(found)
    }

    async fn hold_lease(&self, name: &str) -> ExchangeResult<bool> {
        self.lease(name, REPLICA_MILLIS_MAX).await
    }

    async fn cursor(&self, name: &str) -> ExchangeResult<Option<String>> {
        let key = self.keys.shared(&format!("notify:{name}"));
        self.run(&self.commands, redis::cmd("GET").arg(key)).await
    }

    async fn set_cursor(&self, name: &str, value: &str) -> ExchangeResult<()> {
        let key = self.keys.shared(&format!("notify:{name}"));
        let mut command = redis::cmd("SET");
        command.arg(key).arg(value);
        self.run(&self.commands, &command).await
    }
}

impl RedisExchange {
    /// Runs a pipeline of one key, and fails if a command of it does.
    async fn run_strict(&self, pipeline: Pipeline) -> ExchangeResult<()> {
        let replies = self.run_all(&self.commands, vec![pipeline]).await?;
        for reply in replies.into_iter().flatten() {
            reply.map_err(|error| self.lost(&self.commands, &error))?;
        }
        Ok(())
    }
}

fn parse_take(value: Value) -> ExchangeResult<TakeReply> {
    let (epoch, list, acts, previous): (u64, Vec<Vec<u8>>, Vec<Vec<u8>>, String) = parse(value)?;
    Ok(TakeReply {
        epoch,
        previous: PreviousOwner::parse(&previous),
        list,
        // Fields and values alternate.
        acts: acts.into_iter().skip(1).step_by(2).collect(),
    })
}

fn parse<T: FromRedisValue>(value: Value) -> ExchangeResult<T> {
    T::from_redis_value(value).map_err(|_| ExchangeError::Refused("unexpected reply".to_owned()))
}
