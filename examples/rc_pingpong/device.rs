//! Which device a program runs on.

use interlock::{Context, OpenError};
use std::io::{self, Write};

/// The device of that name; without a name the default one, or else the soft device, which one line on stderr tells.
pub(crate) fn open(name: Option<&str>) -> Result<Context, OpenError> {
    let none = match name.map_or_else(Context::open_default, Context::open) {
        Err(none @ OpenError::NoHardware { .. }) => none,
        opened => return opened,
    };
    // A build without the soft device has only the reason why there is nothing.
    let Ok(context) = Context::open("soft0") else { return Err(none) };
    _ = writeln!(io::stderr(), "no usable RDMA device: this runs on soft0, a simulated one (`devices` says more)");
    Ok(context)
}
