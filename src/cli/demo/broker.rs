//! The broker of the demo: a child process in a temporary folder.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::workload::Topic;
use crate::client::admin::NewTopic;
use crate::client::{Client, ClusterConfig};
use crate::node::config;

const START_WAIT: Duration = Duration::from_secs(20);

/// What a clean shutdown may take.
const STOP_WAIT: Duration = Duration::from_secs(5);

pub struct Broker {
    folder: PathBuf,
    shards: u16,
    port: u16,
    bootstrap: String,
    child: Child,
}

impl Broker {
    pub fn start(dir: Option<&Path>, shards: Option<u16>) -> Result<Broker, String> {
        let shards = match shards {
            Some(shards) => shards,
            None => config::load(None, &[]).map_err(|e| e.to_string())?.shards,
        };
        let folder = folder(dir)?;
        let port = free_ports(shards)?;
        let child = spawn(&folder, shards, port)?;
        let mut broker = Broker {
            folder,
            shards,
            port,
            bootstrap: format!("127.0.0.1:{port}"),
            child,
        };
        if let Err(why) = broker.wait_ready() {
            return Err(format!("{why}\n{}", broker.log_tail()));
        }
        Ok(broker)
    }

    pub fn describe(&self) -> String {
        let ports = match self.shards {
            1 => self.bootstrap.clone(),
            shards => format!("{} to {}", self.bootstrap, self.port + shards - 1),
        };
        format!(
            "A broker of {} shard{} at {ports}, its data in {}",
            self.shards,
            if self.shards == 1 { "" } else { "s" },
            self.folder.display()
        )
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    pub fn cluster(&self) -> ClusterConfig {
        ClusterConfig {
            bootstrap: vec![("127.0.0.1".to_string(), self.port)],
            client_id: "corelane-demo".to_string(),
            ..Default::default()
        }
    }

    /// Enough that every shard has some.
    pub fn partitions(&self) -> i32 {
        (2 * i32::from(self.shards)).max(4)
    }

    pub fn create(&self, topic: &Topic) -> Result<(), String> {
        let topic = NewTopic {
            name: topic.name.clone(),
            partitions: topic.partitions,
            replication_factor: -1,
            ..Default::default()
        };
        let name = topic.name.clone();
        let mut client = Client::new(self.cluster());
        let created = client
            .create_topics(&[topic], false)
            .map_err(|e| e.to_string())?;
        match created.into_iter().next() {
            Some(Err(error)) => Err(format!("cannot create {name}: {error}")),
            _ => Ok(()),
        }
    }

    /// SIGKILL, and waits until the process is gone.
    pub fn kill(&mut self) -> Result<(), String> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Err(format!("the broker ended by itself: {status}"));
        }
        self.child
            .kill()
            .and_then(|()| self.child.wait())
            .map(drop)
            .map_err(|error| format!("cannot kill the broker: {error}"))
    }

    /// Starts it again, and waits until it answers.
    pub fn restart(&mut self) -> Result<(), String> {
        self.child = spawn(&self.folder, self.shards, self.port)?;
        self.wait_ready()
    }

    /// SIGTERM; gives the time that the shutdown took.
    pub fn stop(&mut self) -> Result<Duration, String> {
        let begin = Instant::now();
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .map_err(|error| format!("cannot stop the broker: {error}"))?;
        while begin.elapsed() < STOP_WAIT {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(begin.elapsed()),
                Ok(Some(status)) => {
                    return Err(format!("the broker ended with {status} after SIGTERM"));
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                Err(error) => return Err(error.to_string()),
            }
        }
        Err("the broker did not stop within 5 s of SIGTERM".to_string())
    }

    pub fn remove(&self) -> Result<(), String> {
        std::fs::remove_dir_all(&self.folder)
            .map_err(|error| format!("cannot remove {}: {error}", self.folder.display()))
    }

    pub fn log_tail(&self) -> String {
        let text = std::fs::read(self.folder.join("broker.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Until every shard is in the answer of one of them.
    fn wait_ready(&mut self) -> Result<(), String> {
        let begin = Instant::now();
        while begin.elapsed() < START_WAIT {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("the broker ended at its start: {status}"));
            }
            let mut client = Client::new(self.cluster()).timeout_ms(1000);
            if let Ok(metadata) = client.metadata(Some(&[]))
                && metadata.nodes.len() == usize::from(self.shards)
            {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(format!(
            "the broker does not answer {} s after its start",
            START_WAIT.as_secs()
        ))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Errors mean that it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(folder: &Path, shards: u16, port: u16) -> Result<Child, String> {
    let binary = std::env::current_exe().map_err(|e| e.to_string())?;
    let log = File::options()
        .create(true)
        .append(true)
        .open(folder.join("broker.log"))
        .map_err(|error| format!("cannot write in {}: {error}", folder.display()))?;
    let errors = log.try_clone().map_err(|e| e.to_string())?;
    Command::new(binary)
        .arg("serve")
        .arg(format!("listeners=PLAINTEXT://127.0.0.1:{port}"))
        .arg(format!("shards={shards}"))
        .arg(format!("log.dirs={}", folder.join("data").display()))
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .spawn()
        .map_err(|error| format!("cannot start the broker: {error}"))
}

/// A new folder: where the user says, else in the system's place for temporary files, unless that is memory.
fn folder(dir: Option<&Path>) -> Result<PathBuf, String> {
    let parent = match dir {
        Some(dir) => dir.to_path_buf(),
        None => {
            const TMPFS: u32 = 0x0102_1994;
            let usual = std::env::temp_dir();
            let in_memory = rustix::fs::statfs(&usual).is_ok_and(|fs| fs.f_type as u32 == TMPFS);
            match in_memory && Path::new("/var/tmp").is_dir() {
                true => PathBuf::from("/var/tmp"),
                false => usual,
            }
        }
    };
    let folder = parent.join(format!("corelane-demo-{}", std::process::id()));
    std::fs::create_dir_all(&folder)
        .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    std::path::absolute(&folder).map_err(|e| e.to_string())
}

/// The first of `count` neighbouring free ports.
fn free_ports(count: u16) -> Result<u16, String> {
    for _ in 0..100 {
        let Ok(first) = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()) else {
            continue;
        };
        let first = first.port();
        let Some(end) = first.checked_add(count) else {
            continue;
        };
        let all: Result<Vec<TcpListener>, _> = (first..end)
            .map(|port| TcpListener::bind(("127.0.0.1", port)))
            .collect();
        if all.is_ok() {
            return Ok(first);
        }
    }
    Err(format!("no {count} neighbouring free ports"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_ports_are_free() {
        let first = free_ports(3).unwrap();
        assert!(first > 0 && first.checked_add(2).is_some());
    }
}
