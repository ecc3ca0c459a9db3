//! `rc_pingpong` with unreliable datagrams: with another of this program, or with the `ibv_ud_pingpong` of rdma-core.
#![forbid(unsafe_code)]

#[path = "rc_pingpong/program.rs"]
mod program;

fn main() -> std::process::ExitCode {
    program::main::<interlock::UnreliableDatagram>()
}
