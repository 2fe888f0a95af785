use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use bytes::Bytes;
use corelane::disk::blocking;
use corelane::log::{Block, DirEntry, DiskDone, DiskError, DiskOp, DiskResult, FileId, MemSpan};

use crate::rig::{Rig, test_dir};

const BLOCK: usize = 4096;

fn open(file: u64, path: &str, allocate: u64) -> DiskOp {
    DiskOp::Open {
        file: FileId(file),
        path: path.into(),
        create: true,
        allocate,
    }
}

/// A span of `len` bytes that differ from span to span.
fn span(len: usize, seed: u8) -> MemSpan {
    let block: Rc<Block> = Block::new(len);
    block.append_with(len, |target| {
        for (i, byte) in target.iter_mut().enumerate() {
            *byte = (i as u8).wrapping_mul(31).wrapping_add(seed);
        }
    });
    MemSpan::new(&block, 0, len)
}

fn write(file: u64, at: u64, data: Vec<MemSpan>, sync: bool) -> DiskOp {
    DiskOp::Write {
        file: FileId(file),
        at,
        data,
        sync,
    }
}

const DONE: DiskResult = Ok(DiskDone::Done);

/// The same operations through the ring and through the blocking driver.
fn both(test: impl Fn(&Path, &mut dyn FnMut(DiskOp) -> DiskResult)) {
    let dir = test_dir("ring");
    let mut rig = Rig::new(&dir);
    test(&dir, &mut |op| rig.run_one(op));
    std::fs::remove_dir_all(dir).unwrap();
    let dir = test_dir("blocking");
    let mut disk = blocking::Disk::new(&dir);
    test(&dir, &mut |op| disk.run(op));
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn what_is_written_is_in_the_file_and_is_read_back() {
    both(|dir, run| {
        assert_eq!(run(DiskOp::MakeDir { path: "a/b".into() }), DONE);
        assert_eq!(
            run(open(1, "a/b/log", 1 << 20)),
            Ok(DiskDone::Opened { len: 1 << 20 })
        );
        let (first, last) = (span(2 * BLOCK, 1), span(100, 2));
        assert_eq!(
            run(write(
                1,
                BLOCK as u64,
                vec![first.clone(), last.clone()],
                true
            )),
            DONE
        );
        let mut expected = first.bytes().to_vec();
        expected.extend_from_slice(last.bytes());
        let file = std::fs::File::open(dir.join("a/b/log")).unwrap();
        let mut found = vec![0; expected.len()];
        file.read_exact_at(&mut found, BLOCK as u64).unwrap();
        assert_eq!(found, expected);
        // The padding of the last block is zeros, not what was in memory behind.
        let mut padding = vec![1; BLOCK - 100];
        file.read_exact_at(&mut padding, 3 * BLOCK as u64 + 100)
            .unwrap();
        assert!(padding.iter().all(|b| *b == 0));
        let read = |at, len| DiskOp::Read {
            file: FileId(1),
            at,
            len,
        };
        assert_eq!(
            run(read(BLOCK as u64, expected.len() as u32)),
            Ok(DiskDone::Read(expected.into()))
        );
        assert_eq!(run(DiskOp::Flush { file: FileId(1) }), DONE);
        assert_eq!(
            run(DiskOp::Truncate {
                file: FileId(1),
                len: 10_000
            }),
            DONE
        );
        // Fewer bytes at the end of the file, none behind it.
        match run(read(9_000, 5_000)) {
            Ok(DiskDone::Read(bytes)) => assert_eq!(bytes.len(), 1_000),
            other => panic!("{other:?}"),
        }
        assert_eq!(run(read(20_000, 10)), Ok(DiskDone::Read(Bytes::new())));
        assert_eq!(
            run(DiskOp::Allocate {
                file: FileId(1),
                to: 64 << 10
            }),
            DONE
        );
        assert_eq!(file.metadata().unwrap().len(), 64 << 10);
        assert_eq!(run(DiskOp::Close { file: FileId(1) }), DONE);
        assert_eq!(
            run(DiskOp::Flush { file: FileId(1) }),
            Err(DiskError::Io(libc::EBADF))
        );
    });
}

#[test]
fn opening_makes_only_what_is_asked_for() {
    both(|dir, run| {
        let missing = DiskOp::Open {
            file: FileId(1),
            path: "none".into(),
            create: false,
            allocate: 4096,
        };
        assert_eq!(run(missing), Err(DiskError::NotFound));
        std::fs::write(dir.join("old"), b"12345").unwrap();
        let existing = DiskOp::Open {
            file: FileId(2),
            path: "old".into(),
            create: false,
            allocate: 4096,
        };
        assert_eq!(run(existing), Ok(DiskDone::Opened { len: 5 }));
        assert_eq!(
            run(open(3, "old", 8192)),
            Ok(DiskDone::Opened { len: 8192 })
        );
        assert_eq!(&std::fs::read(dir.join("old")).unwrap()[..5], b"12345");
    });
}

#[test]
fn names_are_listed_replaced_renamed_and_removed() {
    both(|dir, run| {
        let replace = |path: &str, data: &'static [u8]| DiskOp::Replace {
            path: path.into(),
            data: Bytes::from_static(data),
        };
        assert_eq!(run(DiskOp::MakeDir { path: "t-0".into() }), DONE);
        assert_eq!(run(DiskOp::MakeDir { path: "t-0".into() }), DONE);
        assert_eq!(run(replace("checkpoint", b"0\n1\n")), DONE);
        assert_eq!(run(replace("checkpoint", b"0\n22\n")), DONE);
        assert_eq!(
            run(replace("t-0/partition.metadata", b"version: 0\n")),
            DONE
        );
        assert_eq!(
            run(DiskOp::ReadFile {
                path: "checkpoint".into()
            }),
            Ok(DiskDone::Read(Bytes::from_static(b"0\n22\n")))
        );
        assert_eq!(
            run(DiskOp::List { path: "".into() }),
            Ok(DiskDone::List(vec![
                DirEntry {
                    name: "checkpoint".into(),
                    is_dir: false,
                    len: 5
                },
                DirEntry {
                    name: "t-0".into(),
                    is_dir: true,
                    len: 0
                },
            ]))
        );
        let rename = DiskOp::Rename {
            from: "t-0".into(),
            to: "t-0.x-delete".into(),
        };
        assert_eq!(run(rename), DONE);
        assert!(dir.join("t-0.x-delete/partition.metadata").exists());
        for _ in 0..2 {
            let remove = DiskOp::Remove {
                path: "t-0.x-delete".into(),
            };
            assert_eq!(run(remove), DONE);
        }
        assert!(!dir.join("t-0.x-delete").exists());
        for missing in [
            DiskOp::List { path: "no".into() },
            DiskOp::ReadFile { path: "no".into() },
            DiskOp::Rename {
                from: "no".into(),
                to: "nowhere".into(),
            },
        ] {
            assert_eq!(run(missing), Err(DiskError::NotFound));
        }
    });
}

/// So many that their changes become durable together: each has its own outcome all the same.
#[test]
fn operations_side_by_side_do_what_one_after_the_other_does() {
    const COUNT: u64 = 600;
    let dir = test_dir("together");
    let mut rig = Rig::new(&dir);
    let each = |op: &dyn Fn(u64) -> DiskOp| (0..COUNT).map(op).collect::<Vec<_>>();
    let made = rig.run(each(&|n| DiskOp::MakeDir {
        path: format!("d{n}/sub"),
    }));
    assert!(made.iter().all(|result| *result == DONE));
    let opened = rig.run(each(&|n| open(n, &format!("d{n}/log"), 8192)));
    let expected = Ok(DiskDone::Opened { len: 8192 });
    assert!(opened.iter().all(|result| *result == expected));
    // Every seventh has no such directory; the others are not touched by that.
    let replaced = rig.run(each(&|n| DiskOp::Replace {
        path: match n % 7 {
            0 => format!("missing{n}/file"),
            _ => format!("d{n}/sub/file"),
        },
        data: Bytes::from(n.to_string()),
    }));
    for (n, result) in (0..).zip(replaced) {
        if n % 7 == 0 {
            assert_eq!(result, Err(DiskError::NotFound));
        } else {
            assert_eq!(result, DONE);
            let read = std::fs::read_to_string(dir.join(format!("d{n}/sub/file")));
            assert_eq!(read.unwrap(), n.to_string());
        }
    }
    let mixed = rig.run(each(&|n| match n % 4 {
        0 => DiskOp::Truncate {
            file: FileId(n),
            len: n,
        },
        1 => DiskOp::Allocate {
            file: FileId(n),
            to: 16384,
        },
        2 => DiskOp::Rename {
            from: format!("d{n}"),
            to: format!("e{n}"),
        },
        _ => DiskOp::Remove {
            path: format!("d{n}"),
        },
    }));
    assert!(mixed.iter().all(|result| *result == DONE));
    for n in 0..COUNT {
        let log = |name: &str| std::fs::metadata(dir.join(format!("{name}{n}/log")));
        let (here, renamed) = (log("d"), log("e"));
        match n % 4 {
            0 => assert_eq!(here.unwrap().len(), n),
            1 => assert_eq!(here.unwrap().len(), 16384),
            2 => assert!(here.is_err() && renamed.unwrap().len() == 8192),
            _ => assert!(here.is_err() && renamed.is_err()),
        }
    }
    let left = rig.run_one(DiskOp::List {
        path: "d1/sub".into(),
    });
    let Ok(DiskDone::List(left)) = left else {
        panic!("{left:?}");
    };
    let names: Vec<_> = left.iter().map(|entry| &entry.name[..]).collect();
    assert_eq!(names, ["file"], "no temporary file is left");
    std::fs::remove_dir_all(dir).unwrap();
}

/// More than may be in memory at a time, and one that is larger than that by itself.
#[test]
fn reads_beyond_the_memory_for_them_all_complete() {
    const MIB: usize = 1 << 20;
    let dir = test_dir("reads");
    let mut rig = Rig::new(&dir);
    let bytes: Vec<u8> = (0..20 * MIB as u32).map(|n| (n >> 8) as u8).collect();
    std::fs::write(dir.join("f"), &bytes).unwrap();
    assert!(rig.run_one(open(1, "f", 0)).is_ok());
    let mut ranges: Vec<(usize, usize)> = (0..60).map(|n| (n * MIB / 3, 2 * MIB)).collect();
    ranges.push((0, 20 * MIB));
    ranges.push((20 * MIB, MIB));
    let read = |&(at, len): &(usize, usize)| DiskOp::Read {
        file: FileId(1),
        at: at as u64,
        len: len as u32,
    };
    let results = rig.run(ranges.iter().map(read).collect());
    for ((at, len), result) in ranges.into_iter().zip(results) {
        let Ok(DiskDone::Read(found)) = result else {
            panic!("{result:?}");
        };
        let end = (at + len).min(bytes.len());
        assert!(found == bytes[at..end], "{len} bytes at {at}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn more_pieces_than_the_kernel_takes_at_once_arrive_in_order() {
    let dir = test_dir("pieces");
    let mut rig = Rig::new(&dir);
    let count = 2_500;
    rig.run_one(open(1, "log", (count * BLOCK) as u64)).unwrap();
    let spans: Vec<MemSpan> = (0..count).map(|i| span(BLOCK, (i % 251) as u8)).collect();
    let expected: Vec<u8> = spans.iter().flat_map(|s| s.bytes().to_vec()).collect();
    assert_eq!(rig.run_one(write(1, 0, spans, true)), DONE);
    assert!(std::fs::read(dir.join("log")).unwrap() == expected);
    std::fs::remove_dir_all(dir).unwrap();
}

/// 1,500 pairs of write and flush are three times what the submission queue holds.
#[test]
fn synced_writes_beyond_the_queue_all_complete() {
    let dir = test_dir("pairs");
    let mut rig = Rig::new(&dir);
    let count = 1_500u64;
    rig.run_one(open(1, "log", count * BLOCK as u64)).unwrap();
    let ops = (0..count)
        .map(|i| write(1, i * BLOCK as u64, vec![span(BLOCK, i as u8)], true))
        .chain([DiskOp::Flush { file: FileId(1) }])
        .collect();
    assert!(rig.run(ops).iter().all(|result| *result == DONE));
    std::fs::remove_dir_all(dir).unwrap();
}

/// A small ext4 on a loop device; `None` where mounting is not allowed.
struct SmallFs(std::path::PathBuf);

impl SmallFs {
    fn new(dir: &Path, megabytes: u64) -> Option<SmallFs> {
        let image = dir.join("image");
        let mount = dir.join("mount");
        std::fs::create_dir_all(&mount).ok()?;
        let file = std::fs::File::create(&image).ok()?;
        file.set_len(megabytes << 20).ok()?;
        let run = |program: &str, args: &[&std::ffi::OsStr]| -> Option<()> {
            let output = Command::new(program).args(args).output().ok()?;
            output.status.success().then_some(())
        };
        run("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), image.as_ref()])?;
        run(
            "mount",
            &[
                "-o".as_ref(),
                "loop".as_ref(),
                image.as_ref(),
                mount.as_ref(),
            ],
        )?;
        Some(SmallFs(mount))
    }
}

impl Drop for SmallFs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
    }
}

#[test]
fn a_full_disk_refuses_space_and_keeps_what_it_has() {
    let dir = test_dir("full");
    let Some(small) = SmallFs::new(&dir, 16) else {
        eprintln!("skipped: no loop mounts here");
        return;
    };
    {
        let mut rig = Rig::new(&small.0);
        rig.run_one(open(1, "kept", 1 << 20)).unwrap();
        assert_eq!(rig.run_one(write(1, 0, vec![span(BLOCK, 7)], true)), DONE);
        assert_eq!(
            rig.run_one(open(2, "too-large", 64 << 20)),
            Err(DiskError::NoSpace)
        );
        let allocate = DiskOp::Allocate {
            file: FileId(1),
            to: 64 << 20,
        };
        assert_eq!(rig.run_one(allocate), Err(DiskError::NoSpace));
        let replace = DiskOp::Replace {
            path: "small".into(),
            data: vec![1; 32 << 20].into(),
        };
        assert_eq!(rig.run_one(replace), Err(DiskError::NoSpace));
        // Allocated blocks can still be written, and reads go on.
        assert_eq!(
            rig.run_one(write(1, 512 << 10, vec![span(BLOCK, 8)], true)),
            DONE
        );
        let read = DiskOp::Read {
            file: FileId(1),
            at: 0,
            len: 4096,
        };
        assert_eq!(
            rig.run_one(read),
            Ok(DiskDone::Read(span(BLOCK, 7).bytes().to_vec().into()))
        );
        // Space comes back: so does writing.
        assert_eq!(
            rig.run_one(DiskOp::Remove {
                path: "too-large".into()
            }),
            DONE
        );
        let again = DiskOp::Replace {
            path: "small".into(),
            data: vec![1; 1 << 20].into(),
        };
        assert_eq!(rig.run_one(again), DONE);
    }
    drop(small);
    std::fs::remove_dir_all(dir).unwrap();
}
