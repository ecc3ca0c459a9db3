//! Two reliable connections send each other messages in turn, and every byte is checked.
//!
//! Without arguments both ends are in this process. Otherwise the peer is another `rc_pingpong` or the C program
//! `ibv_rc_pingpong` of rdma-core: see `rc_pingpong -h`. `uc_pingpong` and `ud_pingpong` use other transports.
#![forbid(unsafe_code)]

#[path = "program.rs"]
mod program;

fn main() -> std::process::ExitCode {
    program::main::<interlock::ReliableConnection>()
}
