//! `rc_pingpong` over unreliable connections: with another of this program, or with the `ibv_uc_pingpong` of rdma-core.
#![forbid(unsafe_code)]

#[path = "rc_pingpong/program.rs"]
mod program;

fn main() -> std::process::ExitCode {
    program::main::<interlock::UnreliableConnection>()
}
