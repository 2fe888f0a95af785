//! `listeners` and `advertised.listeners`.

use std::collections::BTreeMap;

/// One listener of the process; every shard has a socket of its own in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListenerConfig {
    /// Such as PLAINTEXT; upper case.
    pub name: String,
    /// As configured; empty is every address of the machine.
    pub host: String,
    /// Of shard 0; shard s takes `port + s`. 0: every shard binds a free port.
    pub port: u16,
    /// What clients are told instead, as templates of host and port; see [`ListenerConfig::advertised`].
    pub advertised: Option<(String, String)>,
}

impl ListenerConfig {
    /// The port that `shard` binds; 0 is any.
    pub fn port_of(&self, shard: u16) -> u16 {
        match self.port {
            0 => 0,
            port => port + shard,
        }
    }

    /// Host and port that clients of `shard` are told when it bound `port`, where `advertised.listeners` says so: `{shard}` and
    /// `{port}` are filled in. A plain port is that of shard 0 and counts up like that of `listeners`, unless the host has a
    /// `{shard}`: then each has a name of its own and may have the same port.
    pub fn advertised(&self, shard: u16, port: u16) -> Option<(String, u16)> {
        let (host, port_template) = self.advertised.as_ref()?;
        let fill = |text: &str| {
            text.replace("{shard}", &shard.to_string())
                .replace("{port}", &port.to_string())
        };
        let port = match port_template.parse::<u16>() {
            Ok(port) if host.contains("{shard}") => port,
            Ok(port) => port.saturating_add(shard),
            Err(_) => fill(port_template).parse().ok()?,
        };
        Some((fill(host), port))
    }
}

/// `NAME://host:port`, as Kafka splits it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    pub name: String,
    pub host: String,
    /// A number, unless it is a template.
    pub port: String,
}

impl Endpoint {
    pub fn parse(text: &str) -> Result<Endpoint, String> {
        let wrong = || format!("'{text}' is not NAME://host:port");
        let (name, rest) = text.split_once("://").ok_or_else(wrong)?;
        let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
        let host = match host.strip_prefix('[') {
            Some(host) => host.strip_suffix(']').ok_or_else(wrong)?,
            None => host,
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || "-%._:{}".contains(c);
        if name.is_empty() || !host.chars().all(fits) {
            return Err(wrong());
        }
        Ok(Endpoint {
            name: name.to_ascii_uppercase(),
            host: host.to_string(),
            port: port.to_string(),
        })
    }
}

/// The listeners of `listeners`, without those whose name is in `skip` (the controller's).
pub fn parse(items: &[String], skip: &[String]) -> Result<Vec<ListenerConfig>, String> {
    let mut listeners: Vec<ListenerConfig> = Vec::new();
    for item in items {
        let Endpoint { name, host, port } = Endpoint::parse(item)?;
        if skip.contains(&name) {
            continue;
        }
        let port = port.parse().map_err(|_| {
            format!("'{port}' of {name} is not a port: 0 to 65535, where 0 takes free ones")
        })?;
        if host.contains(['{', '}']) {
            return Err(format!(
                "the host of {name} has a template, which only advertised.listeners may have"
            ));
        }
        if listeners.iter().any(|other| other.name == name) {
            return Err(format!(
                "two listeners are called {name}: give one another name, and map it in listener.security.protocol.map"
            ));
        }
        listeners.push(ListenerConfig {
            name,
            host,
            port,
            advertised: None,
        });
    }
    Ok(listeners)
}

/// Puts `advertised.listeners` to the listeners that they belong to.
pub fn advertise(
    listeners: &mut [ListenerConfig],
    items: &[String],
    skip: &[String],
    shards: u16,
) -> Result<(), String> {
    for item in items {
        let Endpoint { name, host, port } = Endpoint::parse(item)?;
        if skip.contains(&name) {
            continue;
        }
        if host.is_empty() || host == "0.0.0.0" || host == "::" {
            return Err(format!(
                "{name} names no host: clients cannot connect to every address, name the one that they reach"
            ));
        }
        // Filled in with the longest values, so that what loads works on every shard.
        let filled = port
            .replace("{shard}", &shards.saturating_sub(1).to_string())
            .replace("{port}", "1");
        let last = filled.parse::<u16>().ok().filter(|port| *port > 0);
        let counts = port.parse::<u16>().is_ok() && !host.contains("{shard}");
        let last = last.filter(|port| !counts || port.checked_add(shards - 1).is_some());
        let braces = [&host, &filled].into_iter().any(|text| {
            text.replace("{shard}", "")
                .replace("{port}", "")
                .contains(['{', '}'])
        });
        if last.is_none() || braces {
            return Err(format!(
                "'{host}:{port}' of {name} does not work with {shards} shard{}: a port is 1 to {}, or has {{port}} or {{shard}} in it, and nothing else may stand in braces",
                if shards == 1 { "" } else { "s" },
                65_536 - u32::from(shards)
            ));
        }
        let listener = listeners
            .iter_mut()
            .find(|l| l.name == name)
            .ok_or_else(|| {
                format!("{name} is not in listeners, so that nobody would answer there")
            })?;
        listener.advertised = Some((host, port));
    }
    Ok(())
}

/// Fails, with a line that works, when the ranges of ports `[port .. port + shards)` overlap or end above 65535.
pub fn check_ports(listeners: &[ListenerConfig], shards: u16) -> Result<(), String> {
    let range = |l: &ListenerConfig| (u32::from(l.port), u32::from(l.port) + u32::from(shards));
    let overlap = |a: (u32, u32), b: (u32, u32)| a.0 < b.1 && b.0 < a.1;
    let fixed: Vec<&ListenerConfig> = listeners.iter().filter(|l| l.port != 0).collect();
    let mut fault = None;
    for (at, listener) in fixed.iter().enumerate() {
        let (first, end) = range(listener);
        if end > 65_536 {
            fault = Some(format!(
                "{} needs the ports {first} to {}, but the last one is 65535",
                listener.name,
                end - 1
            ));
            break;
        }
        if let Some(other) = fixed[..at]
            .iter()
            .find(|other| overlap(range(other), range(listener)))
        {
            let ports = |l: &ListenerConfig| match shards {
                1 => format!("port {}", l.port),
                _ => format!("ports {} to {}", l.port, range(l).1 - 1),
            };
            fault = Some(format!(
                "{} ({}) and {} ({}) overlap: every shard has a port of its own in each",
                other.name,
                ports(other),
                listener.name,
                ports(listener)
            ));
            break;
        }
    }
    match fault {
        None => Ok(()),
        Some(fault) => Err(match propose(listeners, shards) {
            Some(line) => format!("{fault}; this works: listeners={line}"),
            None => format!("{fault}; with fewer shards or listeners they fit"),
        }),
    }
}

/// A value of `listeners` in which nothing overlaps, each port kept or moved as little as possible.
fn propose(listeners: &[ListenerConfig], shards: u16) -> Option<String> {
    let shards = u32::from(shards);
    let mut taken: Vec<(u32, u32)> = Vec::new();
    let mut items = Vec::new();
    for listener in listeners {
        let mut port = u32::from(listener.port);
        if port != 0 {
            port = free(&taken, port, shards).or_else(|| free(&taken, 1024, shards))?;
            taken.push((port, port + shards));
        }
        let host = match listener.host.contains(':') {
            true => format!("[{}]", listener.host),
            false => listener.host.clone(),
        };
        items.push(format!("{}://{host}:{port}", listener.name));
    }
    Some(items.join(","))
}

/// The first port from `port` up with `shards` free ones.
fn free(taken: &[(u32, u32)], mut port: u32, shards: u32) -> Option<u32> {
    while port + shards <= 65_536 {
        match taken.iter().find(|t| t.0 < port + shards && port < t.1) {
            Some(in_the_way) => port = in_the_way.1,
            None => return Some(port),
        }
    }
    None
}

/// The security protocol of every listener name: `NAME:PROTOCOL,NAME:PROTOCOL`.
pub fn protocols(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut map = BTreeMap::new();
    for item in text.split(',').map(str::trim).filter(|i| !i.is_empty()) {
        let (name, protocol) = item
            .split_once(':')
            .ok_or_else(|| format!("'{item}' is not NAME:PROTOCOL"))?;
        let protocol = protocol.trim().to_ascii_uppercase();
        if !["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"].contains(&protocol.as_str()) {
            return Err(format!(
                "'{protocol}' is no security protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"
            ));
        }
        map.insert(name.trim().to_ascii_uppercase(), protocol);
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listeners(text: &str) -> Vec<ListenerConfig> {
        let items: Vec<String> = text.split(',').map(str::to_string).collect();
        parse(&items, &[]).unwrap()
    }

    fn advertised(line: &str, shards: u16) -> Result<Vec<ListenerConfig>, String> {
        let mut all = listeners("PLAINTEXT://:9092,OUT://10.0.0.1:19092");
        advertise(&mut all, &[line.to_string()], &[], shards)?;
        Ok(all)
    }

    #[test]
    fn endpoints_are_split_as_kafka_does() {
        let end = |text: &str| Endpoint::parse(text).map(|e| (e.name, e.host, e.port));
        let is = |n: &str, h: &str, p: &str| Ok((n.to_string(), h.to_string(), p.to_string()));
        assert_eq!(end("PLAINTEXT://:9092"), is("PLAINTEXT", "", "9092"));
        assert_eq!(end("internal://a-b.c:1"), is("INTERNAL", "a-b.c", "1"));
        assert_eq!(end("X://[::1]:9092"), is("X", "::1", "9092"));
        for wrong in [
            "",
            "localhost:9092",
            "X://localhost",
            "://h:1",
            "X://a b:1",
            "X://[::1:1",
        ] {
            assert!(Endpoint::parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse(&["X://h:65536".to_string()], &[]).is_err());
        assert!(parse(&["X://{shard}:1".to_string()], &[]).is_err());
        assert!(parse(&["X://h:1".to_string(), "x://h:2".to_string()], &[]).is_err());
    }

    #[test]
    fn advertised_ports_count_up_unless_each_shard_has_a_name() {
        let told = |line: &str| {
            let all = advertised(line, 3).unwrap();
            let one = all.iter().find(|l| l.advertised.is_some()).unwrap();
            one.advertised(2, 9094).unwrap()
        };
        assert_eq!(told("PLAINTEXT://kafka:9092"), ("kafka".into(), 9094));
        assert_eq!(told("PLAINTEXT://kafka:{port}"), ("kafka".into(), 9094));
        assert_eq!(
            told("PLAINTEXT://kafka-{shard}.example:{port}"),
            ("kafka-2.example".into(), 9094)
        );
        assert_eq!(told("PLAINTEXT://k{shard}:9092"), ("k2".into(), 9092));
        assert_eq!(told("OUT://nat:3{shard}00"), ("nat".into(), 3200));
    }

    #[test]
    fn what_no_client_could_reach_is_not_advertised() {
        for (line, shards) in [
            ("PLAINTEXT://:9092", 1),
            ("PLAINTEXT://0.0.0.0:9092", 1),
            ("OTHER://h:9092", 1),
            ("PLAINTEXT://h:0", 1),
            ("PLAINTEXT://h:65535", 2),
            ("PLAINTEXT://h:{x}", 1),
            ("PLAINTEXT://h{x}:1", 1),
            ("PLAINTEXT://h:99{shard}9", 11),
        ] {
            assert!(advertised(line, shards).is_err(), "{line}");
        }
    }

    #[test]
    fn overlapping_ranges_get_a_line_that_works() {
        for (line, shards, proposed) in [
            ("A://h:9092,B://:9093", 4, "A://h:9092,B://:9096"),
            ("A://h:9092,B://[::1]:9092", 1, "A://h:9092,B://[::1]:9093"),
            ("A://h:65535,B://h:1", 2, "A://h:1024,B://h:1"),
            (
                "A://h:9093,B://h:9092,C://h:0",
                2,
                "A://h:9093,B://h:9095,C://h:0",
            ),
            ("A://h:1,B://h:3,C://h:2", 2, "A://h:1,B://h:3,C://h:5"),
        ] {
            let message = check_ports(&listeners(line), shards).unwrap_err();
            assert!(
                message.ends_with(&format!("this works: listeners={proposed}")),
                "{message}"
            );
            assert_eq!(check_ports(&listeners(proposed), shards), Ok(()));
        }
        assert_eq!(check_ports(&listeners("A://h:9092,B://h:9096"), 4), Ok(()));
        assert_eq!(check_ports(&listeners("A://h:0,B://h:0"), 4), Ok(()));
    }

    #[test]
    fn a_random_clash_always_gets_a_line_that_works() {
        let mut rng = crate::model::Rng::seeded(1);
        let mut clashes = 0;
        for _ in 0..2000 {
            let shards = 1 + rng.below(999) as u16;
            let line: Vec<String> = (0..1 + rng.below(5))
                .map(|i| format!("L{i}://h:{}", 1 + rng.below(65_535)))
                .collect();
            if let Err(message) = check_ports(&listeners(&line.join(",")), shards) {
                clashes += 1;
                let (_, proposed) = message.split_once("this works: listeners=").unwrap();
                assert_eq!(
                    check_ports(&listeners(proposed), shards),
                    Ok(()),
                    "{message}"
                );
            }
        }
        assert!(clashes > 20);
    }
}
