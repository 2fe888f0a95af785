//! The broker as a process: its boot and its end, its threads, sockets and system calls.

mod boot;
mod broker;
mod disk;
mod http;
mod sockets;
mod threads;
mod tools;
