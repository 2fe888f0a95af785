//! One `recvmsg` into memory that is not initialised yet: a frame's own buffer first, what is behind it into the shared one.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use bytes::BytesMut;

/// Receives without waiting. At most `own_bytes_max` bytes go to the spare capacity of `own`, the rest to that of `shared`. Gives
/// what was received in all (0 is the end of the stream) and whether more room was offered than was filled.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    own: Option<(&mut BytesMut, usize)>,
    shared: Option<&mut BytesMut>,
) -> io::Result<(usize, bool)> {
    let mut pieces = [libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; 2];
    let mut count = 0;
    let mut own_room = 0;
    let mut own_buffer = None;
    if let Some((buffer, bytes_max)) = own {
        let spare = buffer.spare_capacity_mut();
        own_room = spare.len().min(bytes_max);
        pieces[count].iov_base = spare.as_mut_ptr().cast();
        pieces[count].iov_len = own_room;
        count += 1;
        own_buffer = Some(buffer);
    }
    let mut shared_room = 0;
    let mut shared_buffer = None;
    if let Some(buffer) = shared {
        let spare = buffer.spare_capacity_mut();
        shared_room = spare.len();
        pieces[count].iov_base = spare.as_mut_ptr().cast();
        pieces[count].iov_len = shared_room;
        count += 1;
        shared_buffer = Some(buffer);
    }
    assert!(own_room + shared_room > 0, "room to receive into");
    // SAFETY: all-zero is a valid msghdr.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = pieces.as_mut_ptr();
    header.msg_iovlen = count as _;
    // SAFETY: the header names `count` pieces of live memory that nobody else reads or writes during the call.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut header, libc::MSG_DONTWAIT) };
    let Ok(received) = usize::try_from(received) else {
        return Err(io::Error::last_os_error());
    };
    assert!(
        received <= own_room + shared_room,
        "the kernel keeps to the room"
    );
    let to_own = received.min(own_room);
    if let Some(buffer) = own_buffer {
        let len = buffer.len() + to_own;
        // SAFETY: the kernel has written the first `to_own` bytes of the spare capacity.
        unsafe { buffer.set_len(len) };
    }
    if let Some(buffer) = shared_buffer {
        let len = buffer.len() + (received - to_own);
        // SAFETY: the kernel has filled the own piece before this one, so the rest is here.
        unsafe { buffer.set_len(len) };
    }
    Ok((received, received < own_room + shared_room))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn own_buffer_is_filled_before_the_shared_one() {
        let (mut there, here) = UnixStream::pair().unwrap();
        there.write_all(b"abcdefghij").unwrap();
        let mut own = BytesMut::from(&b"__"[..]);
        own.reserve(64);
        let mut shared = BytesMut::with_capacity(64);
        let got = receive(here.as_fd(), Some((&mut own, 4)), Some(&mut shared)).unwrap();
        assert_eq!(got, (10, true));
        assert_eq!((&own[..], &shared[..]), (&b"__abcd"[..], &b"efghij"[..]));
        let nothing = receive(here.as_fd(), None, Some(&mut shared)).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        drop(there);
        assert_eq!(
            receive(here.as_fd(), Some((&mut own, 1)), None).unwrap(),
            (0, true)
        );
    }
}
