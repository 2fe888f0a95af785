//! What the operator wants of this process: Kafka's properties, from a file and from the command line over it.
//!
//! A key that nobody knows and a value that does not fit are errors that say what to write instead; a key of Kafka that means nothing
//! here is a warning, so that a file made for Apache Kafka starts. Only what would be dangerous to leave out silently is refused: a
//! listener that was to be encrypted or authenticated, an authorizer, a cluster of several processes.

mod cpus;
mod explain;
mod listeners;
pub mod properties;

pub use listeners::ListenerConfig;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::meta::StaticConfig;
use crate::meta::config::{Effect, broker_def, broker_defs, nearest};
use properties::Property;

/// Why the broker does not start, in one line that says what to change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BootError(pub String);

impl std::fmt::Display for BootError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BootError {}

/// A process, as configured.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Everything that was set, by Kafka's names.
    pub statics: Arc<StaticConfig>,
    /// `node.id`: shard s is the Kafka node `process * 1000 + s`.
    pub process: i32,
    pub shards: u16,
    /// Shard i is pinned to `cpus[i % len]`.
    pub cpus: Vec<usize>,
    pub listeners: Vec<ListenerConfig>,
    pub log_dir: PathBuf,
    /// For the operator's eyes, one line each.
    pub warnings: Vec<String>,
}

/// Reads `file`, then `settings` (KEY=VALUE) over it. Later lines win.
pub fn load(file: Option<&Path>, settings: &[String]) -> Result<ServerConfig, BootError> {
    let bytes = match file {
        None => Vec::new(),
        Some(path) => std::fs::read(path)
            .map_err(|error| BootError(format!("cannot read {}: {error}", path.display())))?,
    };
    let name = file.map(|path| path.display().to_string());
    let cpus = cpus::of_process().map_err(BootError)?;
    parse(name.as_deref().unwrap_or_default(), &bytes, settings, &cpus).map_err(BootError)
}

/// One setting and where it was made, for messages.
struct Setting {
    key: String,
    value: String,
    origin: String,
}

impl Setting {
    fn place(&self) -> String {
        format!("{}={}{}", self.key, self.value, self.origin)
    }
}

fn parse(
    file: &str,
    bytes: &[u8],
    settings: &[String],
    allowed_cpus: &[usize],
) -> Result<ServerConfig, String> {
    let mut warnings = Vec::new();
    let settings = collect(file, bytes, settings, &mut warnings)?;
    let mut statics = StaticConfig::default();
    for setting in &settings {
        take(setting, &mut statics, &mut warnings)?;
    }
    let at = |key: &str| -> String {
        let setting = settings.iter().find(|s| s.key == key);
        setting.map_or_else(|| key.to_string(), Setting::place)
    };
    let within = |key: &'static str| {
        let place = at(key);
        move |why: String| format!("{place}: {why}")
    };

    let process = process(&mut statics, &at)?;
    quorum(&statics, &at, &mut warnings)?;
    let chosen = match statics.text("shard.cpus") {
        None => None,
        Some(text) => Some(cpus::parse(&text).map_err(|why| {
            within("shard.cpus")(format!("{why}; allowed is a list such as 0-3,8"))
        })?),
    };
    let placement = cpus::place(
        allowed_cpus,
        statics.number_or_null("shards").map(|n| n as u16),
        chosen,
    )?;
    warnings.extend(placement.warning);

    let skip: Vec<String> = statics
        .list("controller.listener.names")
        .iter()
        .map(|name| name.to_ascii_uppercase())
        .collect();
    let mut listeners =
        listeners::parse(&statics.list("listeners"), &skip).map_err(within("listeners"))?;
    if listeners.is_empty() {
        return Err(format!(
            "{}: no listener is left for clients; name one, such as listeners=PLAINTEXT://localhost:9092",
            at("listeners")
        ));
    }
    if !skip.is_empty() {
        warnings.push(format!(
            "controller.listener.names: the controller runs inside the process and needs no listener; {} is not opened",
            skip.join(", ")
        ));
    }
    plaintext(
        &statics,
        &listeners,
        &within("listener.security.protocol.map"),
    )?;
    listeners::check_ports(&listeners, placement.shards).map_err(within("listeners"))?;
    listeners::advertise(
        &mut listeners,
        &statics.list("advertised.listeners"),
        &skip,
        placement.shards,
    )
    .map_err(within("advertised.listeners"))?;

    Ok(ServerConfig {
        process,
        shards: placement.shards,
        cpus: placement.cpus,
        listeners,
        log_dir: log_dir(&statics, &at)?,
        statics: Arc::new(statics),
        warnings,
    })
}

/// All settings in the order in which they were first made, each with its last value.
fn collect(
    file: &str,
    bytes: &[u8],
    settings: &[String],
    warnings: &mut Vec<String>,
) -> Result<Vec<Setting>, String> {
    let mut all: Vec<Setting> = Vec::new();
    let mut add = |setting: Setting| match all.iter_mut().find(|s| s.key == setting.key) {
        Some(earlier) => *earlier = setting,
        None => all.push(setting),
    };
    for Property { key, value, line } in
        properties::parse(bytes).map_err(|why| format!("{file} {why}"))?
    {
        add(Setting {
            key,
            value,
            origin: format!(" ({file} line {line})"),
        });
    }
    if let Some(at) = bytes.iter().position(|c| *c > 0x7f) {
        let line = 1 + bytes[..at].iter().filter(|c| **c == b'\n').count();
        warnings.push(format!(
            "{file} line {line} has a character outside ASCII: properties files are Latin-1, as Java reads them; write it as \\uXXXX"
        ));
    }
    for setting in settings {
        let (key, value) = setting.split_once('=').ok_or_else(|| {
            format!("'{setting}' is not KEY=VALUE; a file of settings is given with --config FILE")
        })?;
        if key.trim().is_empty() {
            return Err(format!(
                "'{setting}' has no key before the =: a setting is KEY=VALUE"
            ));
        }
        add(Setting {
            key: key.trim().to_string(),
            value: value.trim().to_string(),
            origin: String::new(),
        });
    }
    Ok(all)
}

/// Checks one setting and remembers it.
fn take(
    setting: &Setting,
    statics: &mut StaticConfig,
    warnings: &mut Vec<String>,
) -> Result<(), String> {
    let Setting { key, value, origin } = setting;
    let Some(def) = broker_def(key) else {
        if let Some(why) = explain::foreign(key) {
            warnings.push(format!("{key}{origin} has no effect: {why}"));
            return Ok(());
        }
        let known = broker_defs()
            .iter()
            .filter(|def| !def.internal)
            .map(|def| def.name);
        return Err(match nearest(key, known) {
            Some(name) => format!("unknown setting '{key}'{origin}: did you mean '{name}'?"),
            None => format!("unknown setting '{key}'{origin}: it is not a setting of a broker"),
        });
    };
    if let Err(message) = statics.set(def.name, value) {
        let shown = if def.sensitive() { "[hidden]" } else { value };
        let why = explain::tail(&message);
        let allowed = match why.contains("must be one of") {
            true => String::new(),
            false => format!("; allowed is {}", explain::allowed(def)),
        };
        return Err(format!("{key}={shown}{origin}: {why}{allowed}"));
    }
    if def.effect != Effect::Used {
        warnings.push(format!(
            "{key}{origin} has no effect: {}",
            def.effect.reason()
        ));
    }
    Ok(())
}

/// `node.id`, or its old name. Both are set afterwards where one was, as in Kafka.
fn process(statics: &mut StaticConfig, at: &dyn Fn(&str) -> String) -> Result<i32, String> {
    let old = statics
        .explicit("broker.id")
        .map(|_| statics.number("broker.id"))
        .filter(|id| *id != -1);
    let Some(old) = old else {
        return Ok(statics.number("node.id") as i32);
    };
    if statics.explicit("node.id").is_some() {
        let new = statics.number("node.id");
        if new != old {
            return Err(format!(
                "{} and {} differ: set node.id only",
                at("node.id"),
                at("broker.id")
            ));
        }
    } else if let Err(message) = statics.set("node.id", &old.to_string()) {
        return Err(format!("{}: {}", at("broker.id"), explain::tail(&message)));
    }
    Ok(old as i32)
}

/// What old files say about the quorum: a single process is fine, anything else must not start as something that it is not.
fn quorum(
    statics: &StaticConfig,
    at: &dyn Fn(&str) -> String,
    warnings: &mut Vec<String>,
) -> Result<(), String> {
    let roles = statics.list("process.roles");
    if !roles.iter().any(|role| role == "broker") {
        return Err(format!(
            "{}: every process serves clients and runs the controller too; write process.roles=broker,controller or leave it out",
            at("process.roles")
        ));
    }
    if roles.len() == 1 {
        warnings.push(
            "process.roles=broker: this process runs the controller too, no other one is needed"
                .to_string(),
        );
    }
    for key in [
        "controller.quorum.voters",
        "controller.quorum.bootstrap.servers",
    ] {
        match statics.list(key).len() {
            0 => {}
            1 => warnings.push(format!(
                "{key} has no effect: the process is a quorum of its own"
            )),
            _ => {
                return Err(format!(
                    "{}: clusters of several processes are not supported yet; leave {key} out to run this process alone",
                    at(key)
                ));
            }
        }
    }
    Ok(())
}

/// Until there is TLS and SASL: a listener that asks for either must not be open to everybody.
fn plaintext(
    statics: &StaticConfig,
    listeners: &[ListenerConfig],
    within: &dyn Fn(String) -> String,
) -> Result<(), String> {
    let map = statics.text("listener.security.protocol.map");
    let protocols = listeners::protocols(&map.unwrap_or_default()).map_err(within)?;
    for listener in listeners {
        match protocols.get(&listener.name).map(String::as_str) {
            Some("PLAINTEXT") => {}
            Some(other) => {
                return Err(format!(
                    "the listener {} asks for {other}, which is not supported yet; only PLAINTEXT is",
                    listener.name
                ));
            }
            None => {
                return Err(format!(
                    "the listener {} has no security protocol: add {}:PLAINTEXT to listener.security.protocol.map",
                    listener.name, listener.name
                ));
            }
        }
    }
    match statics.text("authorizer.class.name").as_deref() {
        None | Some("") => Ok(()),
        Some(class) => Err(format!(
            "authorizer.class.name={class}: ACLs are not supported yet; leave it out to serve everybody who can connect"
        )),
    }
}

fn log_dir(statics: &StaticConfig, at: &dyn Fn(&str) -> String) -> Result<PathBuf, String> {
    let key = match statics.explicit("log.dirs") {
        Some(_) => "log.dirs",
        None => "log.dir",
    };
    let dirs = statics.list(key);
    match dirs.as_slice() {
        [dir] => Ok(PathBuf::from(dir)),
        _ => Err(format!(
            "{}: several log directories are not supported yet; name one",
            at(key)
        )),
    }
}

#[cfg(test)]
mod tests;
