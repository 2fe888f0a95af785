//! Is a range of a file in the page cache?
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, ReadWriteFlags};

use crate::model::limit::BLOCK_BYTES;

/// `cachestat`, since Linux 6.5; neither libc nor rustix names it. The number is the same on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

#[repr(C)]
struct CacheStatRange {
    off: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct CacheStat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// An older kernel, or a sandbox that does not let it through.
static MISSING: AtomicBool = AtomicBool::new(false);

/// Whether `[at..at + bytes)` of the file is in the page cache. A hint: the answer may be old when it arrives. Bytes past the end of
/// the file count as resident.
pub(super) fn resident(file: &OwnedFd, at: u64, bytes: usize) -> bool {
    if !MISSING.load(Ordering::Relaxed) {
        let range = CacheStatRange {
            off: at,
            len: bytes as u64,
        };
        let mut stat = CacheStat::default();
        // SAFETY: both structures live during the call and have the kernel's layout.
        let result = unsafe {
            libc::syscall(
                SYS_CACHESTAT,
                file.as_raw_fd(),
                &range as *const CacheStatRange,
                &mut stat as *mut CacheStat,
                0u32,
            )
        };
        if result == 0 {
            return stat.cached >= pages(at, bytes);
        }
        MISSING.store(true, Ordering::Relaxed);
    }
    // One byte of the first and the last page: proof for these two only, but a range is brought in and evicted as one.
    [at, at + bytes.max(1) as u64 - 1].into_iter().all(|probe| {
        let mut byte = [0u8];
        let read = rustix::io::preadv2(
            file,
            &mut [std::io::IoSliceMut::new(&mut byte)],
            probe,
            ReadWriteFlags::NOWAIT,
        );
        !matches!(read, Err(Errno::AGAIN))
    })
}

fn pages(at: u64, bytes: usize) -> u64 {
    let page = BLOCK_BYTES as u64;
    (at + bytes as u64).div_ceil(page) - at / page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_touches_the_pages_of_its_first_and_last_byte() {
        assert_eq!(pages(0, 4096), 1);
        assert_eq!(pages(4095, 2), 2);
        assert_eq!(pages(4096, 8192), 2);
        assert_eq!(pages(1, 8192), 3);
    }
}
