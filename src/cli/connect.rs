//! The options by which every tool finds its cluster.

use std::io::Write;
use std::path::PathBuf;

use super::properties::Properties;
use crate::client::{Client, ClusterConfig, parse_bootstrap};

#[derive(clap::Args, Clone, Debug)]
pub struct Connect {
    /// Nodes to ask first: host:port[,host:port...]
    #[arg(
        long,
        visible_alias = "broker-list",
        short = 'b',
        value_name = "SERVERS",
        default_value = "localhost:9092"
    )]
    pub bootstrap_server: String,
    /// A file of client properties
    #[arg(long, aliases = ["consumer.config", "producer.config", "admin.config"], value_name = "FILE")]
    pub command_config: Option<PathBuf>,
    /// A client property; may be given more than once
    #[arg(long, aliases = ["producer-property", "consumer-property"], value_name = "KEY=VALUE")]
    pub command_property: Vec<String>,
}

impl Connect {
    /// The client properties of file and command line together.
    pub fn properties(&self) -> Result<Properties, String> {
        let mut properties = Properties::default();
        if let Some(path) = &self.command_config {
            properties.add_file(path)?;
        }
        properties.add_pairs(&self.command_property)?;
        Ok(properties)
    }

    pub fn cluster(&self, properties: &mut Properties) -> Result<ClusterConfig, String> {
        let mut config = ClusterConfig {
            bootstrap: parse_bootstrap(&self.bootstrap_server)?,
            on_outage: Some(trying_again),
            ..Default::default()
        };
        properties.remove("bootstrap.servers");
        if let Some(id) = properties.remove("client.id") {
            config.client_id = id;
        }
        if let Some(ms) = properties.number("request.timeout.ms")? {
            config.request_timeout_ms = ms;
        }
        match properties.remove("security.protocol").as_deref() {
            None | Some("PLAINTEXT") => Ok(config),
            Some(other) => Err(format!(
                "security.protocol={other} is not supported by this tool yet"
            )),
        }
    }
}

/// A client that asks one thing at a time.
pub fn client(connect: &Connect) -> Result<Client, String> {
    let mut properties = connect.properties()?;
    let config = connect.cluster(&mut properties)?;
    properties.warn_unused();
    Ok(Client::new(config))
}

/// Whoever mistyped an address should not have to wait for the last attempt to hear of it.
fn trying_again(what: &str) {
    let _ = writeln!(std::io::stderr(), "corelane: {what}; trying again");
}
