//! How an example chooses its device.

use interlock::Context;
use interlock::error::OpenError;
use std::io::{self, Write};

/// Opens the device `name`, or else the default one. Without hardware it opens the soft device, and says so on stderr.
pub(crate) fn open(name: Option<&str>) -> Result<Context, OpenError> {
    let none = match name.map_or_else(Context::open_default, Context::open) {
        Err(none @ OpenError::NoHardware { .. }) => none,
        opened => return opened,
    };
    // Open the soft device. If this build has none, return `none`, the error that says why there is no hardware.
    let Ok(context) = Context::open("soft0") else { return Err(none) };
    _ = writeln!(io::stderr(), "no usable RDMA device: this runs on soft0, a simulated one (`devices` says more)");
    Ok(context)
}
