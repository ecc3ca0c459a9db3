//! The code that the test programs share: the device under test, connected pairs, completions, memory, and programs
//! that tests start.
//!
//! The environment chooses what is tested:
//!
//! | variable | value |
//! |---|---|
//! | `INTERLOCK_DEVICE` | the device to test on; the soft device if it is not set |
//! | `INTERLOCK_SOFT_PROFILE` | which provider the soft device behaves like |
//! | `INTERLOCK_POLLING` | `extended`: completion queues are extended ones |

pub mod completions;
pub mod device;
pub mod link;
pub mod memory;
pub mod needs;
pub mod polling;
pub mod program;
pub mod random;
pub mod side;
pub mod steps;
pub mod victim;

pub use completions::{all, eventually, failure, next, nothing_comes, see_off};
pub use device::{
    PATIENCE, Promise, another_device, context, deviates, has_extended_queues, is_linux_6_12, is_of_a_destroyed_pair,
    lacks, on_hardware, promises_everything, unless_refused, ways,
};
pub use link::{Link, connect_to_each_other, patient};
pub use memory::{Counted, Guarded, filled, message, moved};
pub use needs::{Need, lacks_need};
pub use polling::{POLLING, Queues, extended};
pub use random::Random;
pub use side::{Side, address};

/// Makes a soft device of the test's own, and a checked domain on it: `(fabric, domain)`.
#[macro_export]
macro_rules! own_device {
    () => {
        $crate::own_device!(interlock::soft::Fabric::new())
    };
    ($fabric:expr) => {{
        let fabric: interlock::soft::Fabric = $fabric;
        let domain = interlock::Context::open_on(&fabric, "dev0").unwrap().checked_domain().unwrap();
        (fabric, domain)
    }};
}
