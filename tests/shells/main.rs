//! The shells against real sockets and real files, with a stub in the place of the shard.

mod disk;
mod net;
mod rig;
