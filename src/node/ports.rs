//! Binds the listeners of every shard, and says what clients are told of them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::config::{BootError, ListenerConfig};
use crate::meta::{Endpoint, ShardEndpoints};
use crate::model::ShardIndex;
use crate::model::limit::PORT_FREE_MS;
use crate::net;
use crate::shard::Listener;

/// The sockets of one shard, listening.
pub(super) struct Ports {
    pub sockets: Vec<TcpListener>,
    pub listeners: Vec<Listener>,
    pub endpoints: ShardEndpoints,
}

pub(super) fn bind(configs: &[ListenerConfig], shards: u16) -> Result<Vec<Ports>, BootError> {
    let mut all = Vec::new();
    for shard in 0..shards {
        let mut ports = Ports {
            sockets: Vec::new(),
            listeners: Vec::new(),
            endpoints: ShardEndpoints {
                shard: ShardIndex(shard),
                endpoints: Vec::new(),
            },
        };
        for config in configs {
            bind_one(config, shard, &mut ports)?;
        }
        all.push(ports);
    }
    Ok(all)
}

fn bind_one(config: &ListenerConfig, shard: u16, ports: &mut Ports) -> Result<(), BootError> {
    let wanted = config.port_of(shard);
    let address = resolve(config, wanted)?;
    let bound = bind_patiently(address).and_then(|socket| {
        let port = socket.local_addr()?.port();
        Ok((socket, port))
    });
    let (socket, port) = bound.map_err(|error| refused(config, shard, wanted, &error))?;
    let (host, advertised_port) = match config.advertised(shard, port) {
        Some(told) => told,
        None if is_wildcard(config) => (host_name(), port),
        None => (config.host.clone(), port),
    };
    ports.sockets.push(socket);
    ports.listeners.push(Listener {
        name: config.name.clone(),
        host: config.host.clone(),
        port,
    });
    ports.endpoints.endpoints.push(Endpoint {
        listener: config.name.clone(),
        host,
        port: advertised_port,
    });
    Ok(())
}

/// Right after a SIGKILL the port is still taken: the kernel ends the ring of the dead process, and with it the poll that holds the
/// listening socket, only after the process is gone.
fn bind_patiently(address: SocketAddr) -> io::Result<TcpListener> {
    let until = Instant::now() + Duration::from_millis(PORT_FREE_MS);
    loop {
        match net::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            bound => return bound,
        }
    }
}

fn is_wildcard(config: &ListenerConfig) -> bool {
    let unspecified = config
        .host
        .parse::<IpAddr>()
        .is_ok_and(|ip| ip.is_unspecified());
    config.host.is_empty() || unspecified
}

fn resolve(config: &ListenerConfig, port: u16) -> Result<SocketAddr, BootError> {
    if config.host.is_empty() {
        // As Java binds it: both families where the machine has them.
        let both = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let any = match net::bind(both) {
            Ok(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            Err(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        return Ok(SocketAddr::new(any, port));
    }
    let unknown = |why: String| {
        BootError(format!(
            "the host '{}' of listener {} {why}: set listeners={}://HOST:{} with an address of this machine",
            config.host, config.name, config.name, config.port
        ))
    };
    let found: Vec<SocketAddr> = (config.host.as_str(), port)
        .to_socket_addrs()
        .map_err(|error| unknown(format!("is not known ({error})")))?
        .collect();
    // As Java does: IPv4 first, so that localhost is where most clients look first.
    let first = found.iter().find(|a| a.is_ipv4()).or(found.first());
    first
        .copied()
        .ok_or_else(|| unknown("has no address".to_string()))
}

fn refused(config: &ListenerConfig, shard: u16, port: u16, error: &io::Error) -> BootError {
    let ListenerConfig { name, host, .. } = config;
    let of = match host.as_str() {
        "" => String::new(),
        host => format!(" of {host}"),
    };
    BootError(match error.raw_os_error() {
        Some(libc::EADDRINUSE) => format!(
            "port {port}{of} is in use by another program (shard {shard} needs it for listener {name}): stop that, or choose another range, such as listeners={name}://{host}:{}",
            proposal(config.port)
        ),
        Some(libc::EACCES) => format!(
            "port {port} of listener {name} is reserved for root: choose one from 1024 up, such as listeners={name}://{host}:9092"
        ),
        Some(libc::EADDRNOTAVAIL) => format!(
            "{host} of listener {name} is not an address of this machine: use one that is, or listeners={name}://0.0.0.0:{} for all of them",
            config.port
        ),
        _ => format!("cannot listen on {host}:{port} for listener {name}: {error}"),
    })
}

/// A range further up; nobody knows whether it is free, but it is not the one that is taken.
fn proposal(port: u16) -> u16 {
    match port {
        ..50_000 => port + 10_000,
        _ => 9092,
    }
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_string(),
        name => name.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(host: &str, port: u16) -> ListenerConfig {
        ListenerConfig {
            name: "PLAINTEXT".into(),
            host: host.into(),
            port,
            advertised: None,
        }
    }

    #[test]
    fn every_shard_has_a_port_of_its_own_and_clients_are_told_the_bound_one() {
        let ports = bind(&[listener("127.0.0.1", 0)], 2).unwrap();
        let told: Vec<(String, u16)> = ports
            .iter()
            .map(|p| {
                (
                    p.endpoints.endpoints[0].host.clone(),
                    p.endpoints.endpoints[0].port,
                )
            })
            .collect();
        assert_ne!(told[0], told[1]);
        for (ports, told) in ports.iter().zip(told) {
            let bound = ports.sockets[0].local_addr().unwrap();
            assert_eq!((bound.ip().to_string(), bound.port()), told);
            assert_eq!(ports.listeners[0].port, bound.port());
        }
    }

    #[test]
    fn a_port_that_is_taken_is_named_with_another_range() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = bind(&[listener("127.0.0.1", port)], 1).err().unwrap().0;
        assert!(error.contains(&format!("port {port} of 127.0.0.1 is in use")));
        assert!(
            error.contains("listeners=PLAINTEXT://127.0.0.1:"),
            "{error}"
        );
    }

    #[test]
    fn without_a_host_the_port_that_is_taken_is_named_alone() {
        let taken = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = bind(&[listener("", port)], 1).err().unwrap().0;
        assert!(
            error.starts_with(&format!("port {port} is in use")),
            "{error}"
        );
    }

    #[test]
    fn a_wildcard_tells_clients_the_host_name() {
        let ports = bind(&[listener("", 0)], 1).unwrap();
        assert_eq!(ports[0].endpoints.endpoints[0].host, host_name());
    }
}
