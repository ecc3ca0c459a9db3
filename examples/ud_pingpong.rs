//! `rc_pingpong` with unreliable datagrams. The peer is another `ud_pingpong`, or `ibv_ud_pingpong` of rdma-core.
#![forbid(unsafe_code)]

#[path = "rc_pingpong/program.rs"]
mod program;

fn main() -> std::process::ExitCode {
    program::main::<interlock::UnreliableDatagram>()
}
