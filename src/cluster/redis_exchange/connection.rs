//! Connections to Redis: they are made again after they broke, and bound each command in
//! time.

use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult,
    ServerErrorKind, Value, aio::MultiplexedConnection, cluster::ClusterClient,
    cluster_async::ClusterConnection, sentinel::SentinelClient,
};

use super::RedisExchange;
use crate::cluster::exchange::{ExchangeError, ExchangeResult};

/// Bounds each command, so that a server that hangs holds no call for longer. An answer
/// waits for less by default: `cluster.wait_ms`.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub(super) enum RedisConnection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

pub(super) enum Servers {
    Single(redis::Client),
    Sentinel(tokio::sync::Mutex<SentinelClient>),
    Cluster(ClusterClient),
}

/// A connection that is made again after it broke. Commands of different kinds have
/// connections of their own, because a read that waits holds up those behind it.
#[derive(Default)]
pub(super) struct Link {
    open: Mutex<Option<RedisConnection>>,
    /// One task connects at a time.
    connecting: tokio::sync::Mutex<()>,
}

impl RedisExchange {
    async fn connect(&self) -> RedisResult<RedisConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(COMMAND_TIMEOUT));
        Ok(match &self.servers {
            Servers::Single(client) => RedisConnection::Single(
                client
                    .get_multiplexed_async_connection_with_config(&config)
                    .await?,
            ),
            Servers::Sentinel(client) => {
                let mut client = client.lock().await;
                let connection = client.get_async_connection_with_config(&config).await?;
                RedisConnection::Single(connection)
            }
            Servers::Cluster(client) => {
                RedisConnection::Cluster(client.get_async_connection().await?)
            }
        })
    }

    async fn connection(&self, link: &Link) -> RedisResult<RedisConnection> {
        let open = link.open.lock().clone();
        if let Some(open) = open {
            return Ok(open);
        }
        let _connecting = link.connecting.lock().await;
        let open = link.open.lock().clone();
        if let Some(open) = open {
            return Ok(open);
        }
        let timeout = tokio::time::timeout(COMMAND_TIMEOUT, self.connect());
        let connected = timeout
            .await
            .unwrap_or_else(|_| Err((ErrorKind::Io, "no connection in time").into()))?;
        *link.open.lock() = Some(connected.clone());
        Ok(connected)
    }

    pub(super) async fn run<T: FromRedisValue>(
        &self,
        link: &Link,
        command: &Cmd,
    ) -> ExchangeResult<T> {
        let sent = async {
            match self.connection(link).await? {
                RedisConnection::Single(mut connection) => {
                    command.query_async(&mut connection).await
                }
                RedisConnection::Cluster(mut connection) => {
                    command.query_async(&mut connection).await
                }
            }
        };
        sent.await.map_err(|error| self.lost(link, &error))
    }

    /// Runs pipelines, each of the keys of one session. One server gets them as one.
    pub(super) async fn run_all(
        &self,
        link: &Link,
        pipelines: Vec<Pipeline>,
    ) -> ExchangeResult<Vec<Vec<RedisResult<Value>>>> {
        let sent = async {
            match self.connection(link).await? {
                RedisConnection::Single(mut connection) => {
                    let mut all = redis::pipe();
                    let mut lengths = Vec::with_capacity(pipelines.len());
                    for pipeline in &pipelines {
                        lengths.push(pipeline.len());
                        for command in pipeline.cmd_iter() {
                            all.add_command(command.clone());
                        }
                    }
                    all.ignore_errors();
                    let replies: Vec<RedisResult<Value>> = all.query_async(&mut connection).await?;
                    let mut replies = replies.into_iter();
                    let each = lengths.into_iter();
                    Ok(each
                        .map(|len| replies.by_ref().take(len).collect())
                        .collect())
                }
                RedisConnection::Cluster(connection) => {
                    let each = pipelines.into_iter().map(|mut pipeline| {
                        let mut connection = connection.clone();
                        async move {
                            pipeline.ignore_errors();
                            let replies: RedisResult<Vec<RedisResult<Value>>> =
                                pipeline.query_async(&mut connection).await;
                            replies
                        }
                    });
                    join_all(each).await.into_iter().collect()
                }
            }
        };
        let sent: RedisResult<Vec<Vec<RedisResult<Value>>>> = sent.await;
        sent.map_err(|error| self.lost(link, &error))
    }

    /// Forgets a connection that cannot be used any more.
    pub(super) fn lost(&self, link: &Link, error: &RedisError) -> ExchangeError {
        let is_demoted = error.code() == Some("READONLY");
        if is_demoted || error.is_unrecoverable_error() || error.is_io_error() || error.is_timeout()
        {
            *link.open.lock() = None;
        }
        to_error(error)
    }
}

/// The kind and the detail of an error. The detail of a server never has a password.
fn to_error(error: &RedisError) -> ExchangeError {
    let text = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.category()),
        None => error.to_string(),
    };
    let is_of_server = matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension);
    if error.code() == Some("OOM") {
        ExchangeError::Full(text)
    } else if matches!(
        error.kind(),
        ErrorKind::Server(ServerErrorKind::ResponseError)
    ) && is_of_server
    {
        ExchangeError::Refused(text)
    } else {
        ExchangeError::Unreachable(text)
    }
}
