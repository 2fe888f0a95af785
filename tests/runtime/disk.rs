//! The broker and its disk.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use corelane::model::limit::SIGNAL_REPEAT_MS;

use crate::broker::{Broker, PATIENCE, TestDir, ask, cpu_time, metadata};

fn run(program: &str, arguments: &[&str]) -> bool {
    let run = Command::new(program)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    run.is_ok_and(|status| status.success())
}

/// A small ext4 of its own, on a loop device.
struct Loop {
    mount: PathBuf,
    _dir: TestDir,
}

impl Loop {
    /// `None` where loop mounts are not allowed (a container).
    fn mount(name: &str) -> Option<Loop> {
        let dir = TestDir::new(name);
        let (image, mount) = (dir.0.join("image"), dir.0.join("mount"));
        std::fs::create_dir(&mount).unwrap();
        let file = std::fs::File::create(&image).unwrap();
        file.set_len(256 << 20).unwrap();
        let made = run("mkfs.ext4", &["-q", image.to_str().unwrap()]);
        let mounted = made
            && run(
                "mount",
                &[
                    "-o",
                    "loop",
                    image.to_str().unwrap(),
                    mount.to_str().unwrap(),
                ],
            );
        if !mounted {
            eprintln!("loop mounts are not allowed here: nothing was tested");
            return None;
        }
        Some(Loop { mount, _dir: dir })
    }

    /// Writes wait until [`Loop::thaw`].
    fn freeze(&self) {
        assert!(run("fsfreeze", &["-f", self.mount.to_str().unwrap()]));
    }

    fn thaw(&self) {
        run("fsfreeze", &["-u", self.mount.to_str().unwrap()]);
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.thaw();
        let since = Instant::now();
        while !run("umount", &[self.mount.to_str().unwrap()]) {
            assert!(since.elapsed() < PATIENCE, "the loop mount stays in use");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_slow_disk_costs_no_cpu_and_stalls_nobody() {
    let Some(disk) = Loop::mount("frozen") else {
        return;
    };
    let broker = Broker::start(&disk.mount.join("data"), &["shards=1"]);
    broker.create_topic("t", 1);
    broker.produce("t", 1, 0..100, 100);
    let mut other = broker.connect(0);
    disk.freeze();
    std::thread::scope(|scope| {
        let producing = scope.spawn(|| broker.produce("t", 1, 100..101, 100));
        // The write is on its way.
        std::thread::sleep(Duration::from_millis(500));
        let (cpu, since) = (cpu_time(broker.pid()), Instant::now());
        for number in 0..20 {
            let asked = Instant::now();
            assert_eq!(ask(&mut other, &metadata(number)).0, number);
            assert!(asked.elapsed() < Duration::from_millis(500));
            std::thread::sleep(Duration::from_millis(100));
        }
        let cpu = cpu_time(broker.pid()) - cpu;
        println!(
            "{cpu:?} of CPU in {:?} with a write in flight",
            since.elapsed()
        );
        assert!(
            !producing.is_finished(),
            "nothing is acknowledged that is not written"
        );
        disk.thaw();
        producing.join().unwrap();
        assert!(cpu < Duration::from_millis(200), "{cpu:?}");
    });
    assert_eq!(broker.consume("t", 0, 101).len(), 101);
    broker.stop();
}

/// What a process that hangs in its stop does is seen only when the disk moves again: until then the kernel keeps its threads.
#[test]
fn a_stop_that_the_disk_holds_up_ends_after_five_seconds_and_at_a_second_signal() {
    let Some(disk) = Loop::mount("held-up") else {
        return;
    };
    for signals in [1, 2] {
        let mut broker = Broker::start(&disk.mount.join("data"), &["shards=1"]);
        if signals == 1 {
            broker.create_topic("t", 1);
        }
        broker.produce("t", 1, 0..100, 100);
        disk.freeze();
        std::thread::scope(|scope| {
            let stopping = Instant::now();
            broker.signal("TERM");
            broker.wait_for_line("stopping");
            match signals {
                1 => {
                    broker.wait_for_line("did not stop within 5000 ms");
                    assert!(stopping.elapsed() >= Duration::from_secs(5));
                }
                _ => {
                    // One that comes at once is the same signal, sent to the process and to its group.
                    std::thread::sleep(Duration::from_millis(SIGNAL_REPEAT_MS));
                    broker.signal("TERM");
                    broker.wait_for_line("a second signal");
                    assert!(stopping.elapsed() < Duration::from_secs(5));
                }
            }
            scope.spawn(|| disk.thaw());
            let expected = [1, 128 + 15][signals - 1];
            assert_eq!(broker.wait().code(), Some(expected));
        });
    }
    // A stop that was cut short is a kill: nothing is lost.
    let broker = Broker::start(&disk.mount.join("data"), &["shards=1"]);
    assert_eq!(broker.consume("t", 0, 200).len(), 200);
    broker.stop();
}

#[test]
fn another_number_of_shards_keeps_every_record() {
    let dir = TestDir::new("shards");
    let mut sent = 0;
    for (round, shards) in [1, 3, 2].into_iter().enumerate() {
        let broker = Broker::start(&dir.0, &[&format!("shards={shards}")]);
        if round == 0 {
            broker.create_topic("t", 5);
        }
        for partition in 0..5 {
            let expected: Vec<u64> = (0..sent).filter(|n| n % 5 == partition).collect();
            let got = broker.consume("t", partition as i32, expected.len());
            assert_eq!(got, expected, "partition {partition} with {shards} shards");
        }
        broker.produce("t", 5, sent..sent + 1000, 300);
        sent += 1000;
        // Once by a kill, once cleanly.
        match round {
            0 => broker.kill(),
            _ => broker.stop(),
        }
    }
}

/// Bytes that the calls of a trace moved: by `sendfile`, and through the process's memory.
fn traced_bytes(trace: &Path) -> (u64, u64) {
    let (mut spliced, mut copied) = (0, 0);
    for line in std::fs::read_to_string(trace).unwrap().lines() {
        let Some((call, result)) = line.rsplit_once(" = ") else {
            continue;
        };
        let bytes = result.split(' ').next().unwrap().parse::<i64>();
        let bytes = bytes.unwrap_or(0).max(0) as u64;
        match call.contains("sendfile") {
            true => spliced += bytes,
            false => copied += bytes,
        }
    }
    (spliced, copied)
}

#[test]
fn record_bytes_of_files_never_pass_through_the_process() {
    let dir = TestDir::new("trace");
    let (count, bytes) = (16_000, 2_000);
    let broker = Broker::start(&dir.0, &["shards=1"]);
    broker.create_topic("t", 1);
    broker.produce("t", 1, 0..count, bytes);
    broker.stop();

    // A new process has nothing in memory: all comes from the files.
    let broker = Broker::start(&dir.0, &["shards=1"]);
    let trace = dir.0.join("trace");
    let mut strace = Command::new("strace")
        .args(["-f", "-qq", "-e"])
        .arg("trace=sendfile,splice,read,pread64,readv,preadv,preadv2,write,pwrite64,writev,pwritev,pwritev2,sendto,sendmsg")
        .args(["-o", trace.to_str().unwrap(), "-p", &broker.pid().to_string()])
        .stderr(Stdio::piped())
        .spawn()
        .expect("strace is installed (apt-get install strace)");
    wait_for_tracer(broker.pid());
    assert_eq!(broker.consume("t", 0, count as usize).len(), count as usize);
    broker.stop();
    strace.wait().unwrap();
    let (spliced, copied) = traced_bytes(&trace);
    let all = count * bytes as u64;
    println!(
        "of {all} record bytes {spliced} were spliced; {copied} bytes were copied for everything else"
    );
    assert!(spliced >= all, "{spliced} of {all}");
    assert!(copied < all / 20, "{copied}");
}

fn wait_for_tracer(pid: u32) {
    let since = Instant::now();
    loop {
        let traced = std::fs::read_dir(format!("/proc/{pid}/task"))
            .unwrap()
            .all(|task| {
                let status = std::fs::read_to_string(task.unwrap().path().join("status"));
                status.is_ok_and(|text| !text.contains("TracerPid:\t0\n"))
            });
        if traced {
            return;
        }
        assert!(since.elapsed() < PATIENCE, "strace does not attach");
        std::thread::sleep(Duration::from_millis(5));
    }
}
