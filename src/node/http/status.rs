//! `/status`: the process in one JSON object, for people and scripts.

use std::time::Instant;

use serde_json::{Value, json};

use super::{About, Phase};
use crate::node::drive::Told;

pub(super) fn status(
    about: &About,
    phase: Phase,
    since: Instant,
    told: &[Option<Box<Told>>],
) -> Value {
    let shards: Vec<Value> = (0..)
        .zip(told)
        .map(|(index, told)| shard(index, told))
        .collect();
    let cluster = told.iter().flatten().find_map(|told| told.shard.cluster);
    let cluster = cluster.map(|cluster| {
        json!({
            "nodes": cluster.nodes,
            "topics": cluster.topics,
            "partitions": cluster.partitions,
            "partitions_offline": cluster.partitions_offline,
            "metadata_offset": cluster.metadata_offset,
        })
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "phase": phase.name(),
        "uptime_seconds": since.elapsed().as_secs(),
        "process": about.process,
        "cluster_id": about.cluster,
        "log_dir": about.log_dir,
        "cluster": cluster,
        "shards": shards,
    })
}

fn shard(index: u16, told: &Option<Box<Told>>) -> Value {
    let Some(told) = told else {
        return json!({ "shard": index, "up": false });
    };
    let shard = &told.shard;
    let fenced: Vec<Value> = shard
        .fenced
        .iter()
        .map(|(topic, partition, why)| json!({ "topic": topic, "partition": partition, "reason": why }))
        .collect();
    let ports: Vec<Value> = shard
        .ports
        .iter()
        .map(|(listener, port)| json!({ "listener": listener, "port": port }))
        .collect();
    json!({
        "shard": index,
        "up": true,
        "node": shard.node.0,
        "cpu": told.cpu,
        "ports": ports,
        "ready": shard.ready,
        "failed": shard.failed,
        "connections": shard.connections,
        "partitions": shard.partitions,
        "leaders": shard.leaders,
        "segments": shard.segments,
        "log_bytes": shard.log_bytes,
        "journal": {
            "files": shard.journal.files,
            "files_in_use": shard.journal.files_in_use,
            "frames": shard.journal.writes,
            "bytes": shard.journal.bytes,
            "flushes": shard.journal.flushes,
        },
        "fenced_count": shard.fenced_count,
        "fenced_by_loss_count": shard.fenced_loss_count,
        "fenced": fenced,
    })
}
