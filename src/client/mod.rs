//! A Kafka client: producer, consumer by assignment, admin. Used by the tools, by tests, and (its pure part) by the simulator.
//!
//! Owns: the partitioner, the accumulator and its retry rules ([`producer`]), fetching by assignment ([`consumer`]), metadata, versions
//! and connections as state ([`cluster`]): all of it pure, time passed in, bytes in and out. The thin shell is [`net`]: std::net sockets and
//! poll(2), so that it runs where io_uring does not; [`blocking`] puts both together.
//!
//! Invariants:
//! * Records of one partition are sent in the order in which they were handed in, also over retries, as long as idempotence is on.
//! * A record is reported once: delivered with its offset, or failed.
//! * A request that has no answer in its time takes its connection with it: answers cannot be told apart otherwise.
//!
//! Must not know: anything of the broker. It speaks to Apache Kafka as well.

pub mod admin;
pub mod blocking;
pub mod cluster;
pub mod consumer;
pub mod net;
pub mod partition;
pub mod producer;
#[cfg(test)]
mod tests;

pub use blocking::{Client, Consumer, Producer};
pub use cluster::{ClusterConfig, Metadata, Target};
pub use consumer::{ConsumerConfig, Fetched, StartAt};
pub use producer::{Delivered, Message, ProducerConfig, TopicHandle};

use crate::model::ErrorCode;

/// Why a call of the client failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// The broker said so.
    Broker {
        code: ErrorCode,
        message: String,
    },
    /// No broker could be reached, or the last one was lost.
    Connection(String),
    Timeout(String),
    /// The answer was not understood.
    Malformed(String),
    /// The broker does not speak a version of this API that we do.
    Unsupported(&'static str),
}

impl Error {
    pub fn broker(code: i16, message: Option<&str>) -> Error {
        let code = ErrorCode::from_code(code);
        Error::Broker {
            code,
            message: message.unwrap_or_default().to_string(),
        }
    }

    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Error::Broker { code, .. } => Some(*code),
            _ => None,
        }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Broker { code, message } if message.is_empty() => f.write_str(code.name()),
            Error::Broker { code, message } => write!(f, "{}: {message}", code.name()),
            Error::Connection(what) => write!(f, "no connection: {what}"),
            Error::Timeout(what) => write!(f, "timed out: {what}"),
            Error::Malformed(what) => write!(f, "malformed answer: {what}"),
            Error::Unsupported(api) => write!(f, "the broker does not support {api}"),
        }
    }
}

impl std::error::Error for Error {}

/// Splits `host:port[,host:port...]`; brackets around an IPv6 address are taken off.
pub fn parse_bootstrap(text: &str) -> Result<Vec<(String, u16)>, String> {
    let mut servers = Vec::new();
    for server in text.split(',').map(str::trim).filter(|s| !s.is_empty()) {
        let server = server.split_once("://").map_or(server, |(_, rest)| rest);
        let (host, port) = server
            .rsplit_once(':')
            .ok_or_else(|| format!("'{server}' is not host:port"))?;
        let port = port
            .parse()
            .map_err(|_| format!("'{port}' of '{server}' is not a port"))?;
        // Where such an address ends and the port begins is anybody's guess.
        if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
            return Err(format!(
                "'{server}': an IPv6 address stands in brackets: [{host}]:{port}"
            ));
        }
        let host = host.trim_start_matches('[').trim_end_matches(']');
        servers.push((host.to_string(), port));
    }
    if servers.is_empty() {
        return Err("no bootstrap server given".to_string());
    }
    Ok(servers)
}
