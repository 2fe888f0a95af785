//! The tools as processes: what they write, when they end, and with which code.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::broker::{Broker, PATIENCE, TestDir};

struct Ended {
    code: Option<i32>,
    out: String,
    said: String,
}

fn tool(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_corelane"));
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(arguments: &[&str], input: &str) -> Ended {
    let mut child = tool(arguments).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    Ended {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        said: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The code with which a tool ends whose output nobody reads, and what it said.
fn unread(mut child: Child) -> (Option<i32>, String) {
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn a_reader_that_stops_early_ends_a_tool_quietly() {
    let dir = TestDir::new("unread");
    let broker = Broker::start(&dir.0, &["shards=1"]);
    broker.create_topic("t", 2);
    broker.produce("t", 2, 0..1000, 100);
    let address = format!("127.0.0.1:{}", broker.ports[0]);
    for arguments in [
        &["topics", "list", "-b", &address][..],
        &["topics", "describe", "-b", &address],
        &["topics", "create", "--topic", "other", "-b", &address],
        &["topics", "delete", "--topic", "other", "-b", &address],
        &[
            "consume",
            "--topic",
            "t",
            "--from-beginning",
            "-b",
            &address,
        ],
        &["doctor"],
    ] {
        let (code, said) = unread(tool(arguments).spawn().unwrap());
        assert_eq!(code, Some(0), "{arguments:?}: {said}");
        assert!(!said.contains("panic"), "{arguments:?}: {said}");
    }
    // A disk that is full is another matter.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
    let mut command = tool(&["topics", "list", "-b", &address]);
    let output = command.stdout(full.unwrap()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("corelane: cannot write"), "{said}");
    broker.stop();
}

#[test]
fn lines_before_one_that_is_none_are_sent() {
    let dir = TestDir::new("lines");
    let broker = Broker::start(&dir.0, &["shards=1"]);
    broker.create_topic("t", 1);
    let address = format!("127.0.0.1:{}", broker.ports[0]);
    let keyed = [
        "--property",
        "parse.key=true",
        "--property",
        "key.separator=:",
    ];
    let mut arguments = vec!["produce", "--topic", "t", "-b", &address];
    arguments.extend(keyed);
    let sent = run(&arguments, "a:1\nb:2\nthree\nd:4\n");
    assert_eq!(sent.code, Some(1), "{}", sent.said);
    assert!(sent.said.contains("line number 3"), "{}", sent.said);
    let read = run(
        &[
            "consume",
            "--topic",
            "t",
            "--from-beginning",
            "-e",
            "-b",
            &address,
        ],
        "",
    );
    assert_eq!(read.out, "1\n2\n");
    broker.stop();
}

#[test]
fn what_cannot_be_sent_is_said_with_what_to_do() {
    let dir = TestDir::new("unsent");
    let broker = Broker::start(&dir.0, &["shards=1", "auto.create.topics.enable=false"]);
    broker.create_topic("t", 1);
    let address = format!("127.0.0.1:{}", broker.ports[0]);
    let refused = |arguments: &[&str], parts: &[&str]| {
        let begun = Instant::now();
        let mut all = vec!["produce", "-b", &address, "--topic"];
        all.extend(arguments);
        let ended = run(&all, "x\n");
        assert_eq!(ended.code, Some(1), "{}", ended.said);
        assert!(begun.elapsed() < Duration::from_secs(20), "{}", ended.said);
        for part in parts {
            assert!(ended.said.contains(part), "{part}: {}", ended.said);
        }
    };
    refused(&["t", "-p", "7"], &["topic t has no partition 7"]);
    refused(&["nosuch"], &["corelane topics create --topic nosuch"]);
    refused(&["a/b"], &["INVALID_TOPIC_EXCEPTION"]);
    broker.stop();
}

#[test]
fn an_address_where_nothing_listens_is_named_at_once() {
    // Free a moment ago.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    drop(silent);
    let address = format!("127.0.0.1:{port}");
    let mut child = tool(&["topics", "list", "-b", &address]).spawn().unwrap();
    let mut said = child.stderr.take().unwrap();
    let begun = Instant::now();
    let mut line = Vec::new();
    let mut byte = [0];
    while said.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
        line.push(byte[0]);
        assert!(begun.elapsed() < PATIENCE);
    }
    // It tries on for a while: brokers restart.
    let is_over = child.try_wait().unwrap().is_some();
    child.kill().unwrap();
    child.wait().unwrap();
    let line = String::from_utf8(line).unwrap();
    assert!(line.contains(&address), "{line}");
    assert!(line.contains("trying again"), "{line}");
    assert!(!is_over);
}
