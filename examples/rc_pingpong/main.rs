//! Two reliable connections send each other messages in turn, and every byte is checked.
//!
//! Without arguments both ends are here. With them, the other end is another of this program, or the `ibv_rc_pingpong` of
//! rdma-core: `rc_pingpong -h`. `uc_pingpong` and `ud_pingpong` are the same on other transports.
#![forbid(unsafe_code)]

#[path = "program.rs"]
mod program;

fn main() -> std::process::ExitCode {
    program::main::<interlock::ReliableConnection>()
}
