//! The tools as processes: what they write, when they end, and with which code.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::broker::{Broker, PATIENCE, TestDir, ask, produce, produced, value};

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

/// The path of a script that runs a command without io_uring.
const WITHOUT_IO_URING: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/support/without_io_uring.py"
);

#[test]
fn the_tools_work_where_io_uring_does_not_and_the_broker_says_so() {
    let without = |arguments: &[&str], input: &str| {
        let mut child = Command::new("python3")
            .args([WITHOUT_IO_URING, env!("CARGO_BIN_EXE_corelane")])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let dir = TestDir::new("without");
    let refused = without(
        &[
            "serve",
            &format!("log.dirs={}", dir.0.display()),
            "listeners=PLAINTEXT://127.0.0.1:0",
        ],
        "",
    );
    assert_eq!(refused.0, Some(1), "{refused:?}");
    assert_eq!(refused.2.lines().count(), 1, "{refused:?}");
    assert!(
        refused.2.contains("io_uring") && refused.2.contains("seccomp"),
        "{refused:?}"
    );

    let broker = Broker::start(&dir.0, &["shards=2"]);
    let address = format!("127.0.0.1:{}", broker.ports[0]);
    let at = ["-b", &address, "--topic", "t"];
    let with = |arguments: &[&'static str]| [arguments, &at[..]].concat();
    let created = without(&with(&["topics", "create", "--partitions", "2"]), "");
    assert_eq!(
        (created.0, &*created.1),
        (Some(0), "Created topic t.\n"),
        "{created:?}"
    );
    let produced = without(&with(&["produce"]), "one\ntwo\nthree\n");
    assert_eq!(produced.0, Some(0), "{produced:?}");
    let consumed = without(
        &with(&["consume", "--from-beginning", "--max-messages", "3"]),
        "",
    );
    let mut lines: Vec<&str> = consumed.1.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        (consumed.0, lines),
        (Some(0), vec!["one", "three", "two"]),
        "{consumed:?}"
    );
    broker.stop();
}

#[test]
fn topics_get_more_partitions_as_with_kafka_topics() {
    let dir = TestDir::new("alter");
    let broker = Broker::start(&dir.0, &["shards=1"]);
    broker.create_topic("t", 2);
    let address = format!("127.0.0.1:{}", broker.ports[0]);
    let alter = |count: &str| {
        run(
            &[
                "topics",
                "--alter",
                "-b",
                &address,
                "--topic",
                "t",
                "--partitions",
                count,
            ],
            "",
        )
    };
    let ended = alter("5");
    assert_eq!((ended.code, &*ended.out, &*ended.said), (Some(0), "", ""));
    let described = run(&["topics", "describe", "-b", &address, "--topic", "t"], "");
    assert!(
        described.out.contains("PartitionCount: 5"),
        "{}",
        described.out
    );
    for (count, why) in [
        (
            "3",
            "The topic t currently has 5 partition(s); 3 would not be an increase.",
        ),
        ("5", "Topic already has 5 partition(s)."),
    ] {
        let ended = alter(count);
        assert_eq!(ended.code, Some(1));
        assert!(ended.said.contains(why), "{}", ended.said);
    }
    let missing = [
        "topics",
        "alter",
        "-b",
        &address,
        "--topic",
        "no",
        "--partitions",
        "3",
    ];
    let ended = run(&missing, "");
    assert_eq!(ended.code, Some(1));
    assert!(ended.said.contains("'no' does not exist"), "{}", ended.said);
    broker.stop();
}

/// A journal that lost a frame: the log that was in it is out of use until an operator lets it go on with what is left.
#[test]
fn a_log_that_lost_something_serves_again_once_that_is_accepted() {
    let dir = TestDir::new("recover");
    let broker = Broker::start(&dir.0, &["shards=1"]);
    broker.create_topic("t", 1);
    for number in 0..6 {
        broker.produce("t", 1, number..number + 1, 100);
    }
    broker.kill();
    // The second frame with a record of it, and whatever has reached its segment by now.
    let journal = dir.0.join("journal-0-0");
    let mut bytes = std::fs::read(&journal).unwrap();
    let second = value(1, 100);
    let at = bytes.windows(100).position(|part| part == second);
    let at = at.expect("it is in the journal");
    bytes[at] ^= 1;
    std::fs::write(&journal, bytes).unwrap();
    let segment = dir.0.join("t-0/00000000000000000000.log");
    std::fs::File::options()
        .write(true)
        .open(segment)
        .unwrap()
        .set_len(0)
        .unwrap();

    let folder = dir.0.display().to_string();
    let recover = |more: &[&str]| run(&[&["recover", "--log-dir", &folder], more].concat(), "");
    let broker = Broker::start(&dir.0, &["shards=1"]);
    let used = recover(&[]);
    assert_eq!(used.code, Some(1));
    assert!(
        used.said.contains("in use by another process"),
        "{}",
        used.said
    );
    let address = format!("127.0.0.1:{}", broker.ports[0]);
    let refused = run(
        &[
            "produce",
            "-b",
            &address,
            "--topic",
            "t",
            "--command-property",
            "delivery.timeout.ms=1000",
        ],
        "x\n",
    );
    assert_eq!(refused.code, Some(1), "{}", refused.said);
    broker.stop();

    // The last frame tells what was flushed before it.
    let told = recover(&[]);
    assert_eq!(told.code, Some(0), "{}", told.said);
    assert!(
        told.out
            .starts_with("t-0: offsets [1..5) were flushed and are gone"),
        "{}",
        told.out
    );
    let other = recover(&["--topic", "u", "--accept-loss"]);
    assert_eq!(other.code, Some(1), "{}", other.out);
    let accepted = recover(&["--topic", "t", "--partition", "0", "--accept-loss"]);
    assert!(
        accepted.out.contains("it ends at 1"),
        "{} {}",
        accepted.out,
        accepted.said
    );
    assert!(recover(&[]).out.starts_with("No log in "));

    let broker = Broker::start(&dir.0, &["shards=1"]);
    assert_eq!(broker.consume("t", 0, 1), [0]);
    broker.produce("t", 1, 9..10, 100);
    assert_eq!(broker.consume("t", 0, 2), [0, 9]);
    broker.stop();
}

/// Times of clients come in any order: what a trim by time deletes is told before it is done.
#[test]
fn a_trim_by_time_says_what_goes_and_asks() {
    let dir = TestDir::new("trim");
    let settings = [
        "shards=1",
        "log.message.timestamp.after.max.ms=9223372036854775807",
    ];
    let broker = Broker::start(&dir.0, &settings);
    broker.create_topic("t", 1);
    let mut stream = broker.connect(0);
    // 2026-12-01 is 1796083200000. The one that comes first is dated next year.
    const DAY_MS: i64 = 86_400_000;
    const DECEMBER: i64 = 1_796_083_200_000;
    for (offset, time) in (0..).zip([
        DECEMBER - 5 * DAY_MS,
        DECEMBER + 60 * DAY_MS,
        DECEMBER - 3 * DAY_MS,
        DECEMBER - DAY_MS,
        DECEMBER + DAY_MS,
    ]) {
        let mut builder = corelane::batch::Builder::new();
        builder.push(time, None, Some(b"x"), &[]);
        let told = ask(&mut stream, &produce(1, "t", 0, &builder.build())).1;
        assert_eq!(produced(&told, "t"), (0, offset));
    }
    let address = format!("127.0.0.1:{}", broker.ports[0]);
    let trim = |more: &[&str]| {
        run(
            &[&["topics", "trim", "-b", &address, "--topic", "t"], more].concat(),
            "",
        )
    };
    let starts_at = |expected: &str| {
        let kept = trim(&["--before", "2026-12-30", "--dry-run"]);
        assert_eq!(kept.code, Some(0), "{}", kept.said);
        assert!(kept.out.starts_with(expected), "{}", kept.out);
    };
    // Offset 1 is not older than the day, so that only what lies before it goes.
    let one = "t-0: offsets [0..1), 1 of them; the newest is of 2026-11-26T00:00:00.000Z\n";
    let dry = trim(&["--before", "2026-12-01", "--dry-run"]);
    assert_eq!((dry.code, &*dry.out), (Some(0), one));
    let nobody = trim(&["--before", "2026-12-01"]);
    assert_eq!(nobody.code, Some(1));
    assert!(nobody.said.contains("--yes"), "{}", nobody.said);
    starts_at(one);
    // No record is as new as that: all go, and one of them says that it is newer than the others.
    let all = trim(&["--partition", "0", "--offset", "4", "--dry-run"]);
    assert!(
        all.out
            .contains("[0..4), 4 of them; the newest is of 2027-01-30"),
        "{}",
        all.out
    );
    let done = trim(&["--before", "2026-12-01", "--yes"]);
    assert_eq!(done.code, Some(0), "{}", done.said);
    assert!(done.out.ends_with("t-0 starts at 1 now.\n"), "{}", done.out);
    let none = trim(&["--before", "2026-12-01", "--yes"]);
    assert_eq!(
        (none.code, &*none.out),
        (Some(0), "Nothing is older; nothing is deleted.\n")
    );
    // Once the late one is gone by its offset, a time takes those behind it.
    assert_eq!(
        trim(&["--partition", "0", "--offset", "2", "--yes"]).code,
        Some(0)
    );
    let rest = trim(&["--before", "2026-12-01", "--yes"]);
    assert!(rest.out.contains("[2..4), 2 of them"), "{}", rest.out);
    for (wrong, why) in [
        (&["--before", "yesterday"][..], "is no time"),
        (&["--partition", "7", "--offset", "1"], "no partition 7"),
        (&["--partition", "0", "--offset", "99"], "ends at 5"),
    ] {
        let ended = trim(wrong);
        assert_eq!(ended.code, Some(1), "{wrong:?}");
        assert!(ended.said.contains(why), "{}", ended.said);
    }
    broker.stop();
}
