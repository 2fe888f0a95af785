//! Listening sockets.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{SocketFlags, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

/// Connections that the kernel finishes for us while we are busy; the kernel's own `somaxconn` caps it.
const BACKLOG: i32 = 4096;

/// Binds and listens. Port 0 takes a free one. No SO_REUSEPORT: a second broker on the same port must be an error.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_nonblocking(true)?;
    // Lets a restarted broker bind while connections of the old one are in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        // `[::]` takes IPv4 clients too, as Java's wildcard does.
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

pub(super) enum Accepted {
    Connection(OwnedFd, SocketAddr, SocketAddr),
    /// This one was gone before it was taken.
    Lost,
    /// None is waiting.
    None,
    /// Out of file descriptors or memory: try again after a pause.
    Exhausted(io::Error),
}

/// Takes one waiting connection. Accepting is poll and `accept4`, never an operation of the ring: a cancelled accept there could lose
/// a connection that the kernel had already handed over.
pub(super) fn accept(listener: &OwnedFd) -> Accepted {
    use rustix::io::Errno;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (socket, peer) = match rustix::net::acceptfrom_with(listener, flags) {
        Ok(taken) => taken,
        Err(Errno::AGAIN) => return Accepted::None,
        Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
            return Accepted::Exhausted(errno.into());
        }
        // EINTR, ECONNABORTED, EPROTO and the network errors that Linux passes on from the new socket.
        Err(_) => return Accepted::Lost,
    };
    let local = rustix::net::getsockname(&socket).ok();
    let (Some(peer), Some(local)) = (
        peer.and_then(|a| SocketAddr::try_from(a).ok()),
        local.and_then(|a| SocketAddr::try_from(a).ok()),
    ) else {
        return Accepted::Lost;
    };
    // Answers are gathered by ourselves, so nothing is gained by waiting for more; a dead peer is noticed by the kernel.
    let options = sockopt::set_tcp_nodelay(socket.as_fd(), true)
        .and_then(|()| sockopt::set_socket_keepalive(socket.as_fd(), true));
    match options {
        Ok(()) => Accepted::Connection(socket, peer, local),
        Err(_) => Accepted::Lost,
    }
}
