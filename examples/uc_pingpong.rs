//! `rc_pingpong` over unreliable connections. The peer is another `uc_pingpong`, or `ibv_uc_pingpong` of rdma-core.
#![forbid(unsafe_code)]

#[path = "rc_pingpong/program.rs"]
mod program;

fn main() -> std::process::ExitCode {
    program::main::<interlock::UnreliableConnection>()
}
