//! Lists the RDMA devices, and what keeps each port from working. `-v` adds limits and GID tables.
#![forbid(unsafe_code)]

use interlock::cm::Channel;
use interlock::device::{GidEntry, GidKind, LinkLayer, PortState};
use interlock::number::Mtu;
use interlock::{Context, Device, Port};
use lexopt::prelude::*;
use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::iter;
use std::process::ExitCode;

const HELP: &str = "\
Which RDMA devices there are, and what keeps each port from working.

  devices [-v]

  -v, --verbose   limits, and the whole GID table of each port
  -h, --help      this
";

fn main() -> ExitCode {
    match run(&mut io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let causes = iter::successors(Some(&*error), |&error| error.source());
            let text: Vec<_> = causes.map(ToString::to_string).collect();
            _ = writeln!(io::stderr(), "devices: {}", text.join(": "));
            ExitCode::FAILURE
        }
    }
}

fn run(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let mut verbose = false;
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('v') | Long("verbose") => verbose = true,
            Short('h') | Long("help") => return Ok(out.write_all(HELP.as_bytes())?),
            other => return Err(format!("{} (-h lists what there is)", other.unexpected()).into()),
        }
    }
    let devices = interlock::devices()?;
    for device in devices.iter().filter(|device| !device.is_soft()) {
        show(out, device, verbose)?;
    }
    if devices.iter().all(Device::is_soft) {
        no_hardware(out)?;
    } else {
        locked_memory(out)?;
    }
    for device in devices.iter().filter(|device| device.is_soft()) {
        show(out, device, verbose)?;
    }
    Ok(())
}

fn show(out: &mut impl Write, device: &Device, verbose: bool) -> io::Result<()> {
    write!(out, "{}  GUID {:#018x}", device.name(), device.guid())?;
    if device.is_soft() {
        write!(out, "  soft device: reaches queue pairs of its own process only")?;
    }
    writeln!(out)?;
    let (context, ports) = match look(device) {
        Ok(found) => found,
        Err(error) => return problem(out, &why_not_opened(device, &*error)),
    };
    let promises = context.promises();
    if !promises.are_reviewed() {
        writeln!(out, "  nobody has reviewed this provider: nothing is taken for granted (docs/providers.md)")?;
    }
    let rdma_cm = Channel::open(&context);
    if context.is_iwarp() {
        writeln!(out, "  iWARP: queue pairs are connected by address, through rdma_cm, and in no other way")?;
        if let Err(error) = &rdma_cm {
            problem(out, &format!("rdma_cm is missing, so nothing can be connected: {error}"))?;
        }
    }
    if verbose {
        writeln!(out, "  provider             {}", promises.provider())?;
        let said = rdma_cm.map_or_else(|error| format!("no: {error}"), |_| "yes".to_owned());
        writeln!(out, "  rdma_cm              {said}")?;
        if let Some(address) = context.pci_address() {
            writeln!(out, "  PCI address          {address}")?;
        }
        if let Some(node) = context.numa_node() {
            writeln!(out, "  NUMA node            {node}")?;
        }
        limits(out, &context)?;
    }
    for port in &ports {
        show_port(out, device, port, context.is_iwarp(), verbose)?;
    }
    Ok(())
}

fn look(device: &Device) -> Result<(Context, Vec<Port>), Box<dyn Error>> {
    let context = device.open()?;
    let ports = context.ports()?;
    Ok((context, ports))
}

/// Adds the cause to an error of opening a device: if libibverbs may not open a device node, it looks for another one
/// and reports that there is none.
fn why_not_opened(device: &Device, error: &dyn Error) -> String {
    let nodes = names_in("/sys/class/infiniband_verbs").into_iter().filter(|node| {
        let name = fs::read_to_string(format!("/sys/class/infiniband_verbs/{node}/ibdev")).unwrap_or_default();
        name.trim() == device.name()
    });
    let faults = nodes.filter_map(|node| {
        let path = format!("/dev/infiniband/{node}");
        let opened = fs::File::options().read(true).write(true).open(&path);
        let hint = match opened.err()?.kind() {
            io::ErrorKind::PermissionDenied => {
                "may not be opened by this user: add it to the group that may, or write a udev rule"
            }
            io::ErrorKind::NotFound => {
                "is not there: is udev running, and in a container: was /dev/infiniband passed in?"
            }
            _ => return None,
        };
        Some(format!("; {path} {hint}"))
    });
    format!("cannot be used: {error}{}", faults.collect::<String>())
}

fn problem(out: &mut impl Write, text: &str) -> io::Result<()> {
    writeln!(out, "    ! {text}")
}

fn show_port(out: &mut impl Write, device: &Device, port: &Port, is_iwarp: bool, verbose: bool) -> io::Result<()> {
    write!(out, "  port {}: {}, {}", port.number(), state(port.state()), layer(port.link_layer()))?;
    write!(out, ", MTU {}", port.active_mtu())?;
    if port.lid() != 0 {
        write!(out, ", LID {:#06x}", port.lid())?;
    }
    match port.gid() {
        // On iWARP a GID is not an address: peers reach the device by the IP addresses of its interface.
        _ if is_iwarp => writeln!(out)?,
        Some(row) => writeln!(out, ", {}", describe(&row))?,
        None => writeln!(out, ", no GID")?,
    }
    for text in problems(port, device, is_iwarp) {
        problem(out, &text)?;
    }
    if verbose {
        let lanes = port.active_width().map_or("? lanes".to_owned(), |lanes| format!("{lanes} x"));
        writeln!(out, "    link {lanes} {}, MTU up to {}", port.active_speed(), port.max_mtu())?;
        if port.link_layer() == LinkLayer::InfiniBand {
            let (manager, bits) = (port.subnet_manager_lid(), port.lid_mask_control());
            writeln!(out, "    subnet manager at LID {manager:#06x}, LMC {bits}")?;
        }
        writeln!(out, "    longest message {} bytes", port.max_message_bytes())?;
        for row in port.gids() {
            writeln!(out, "    GID index {:3}: {}", row.index(), describe(row))?;
        }
    }
    Ok(())
}

fn describe(row: &GidEntry) -> String {
    let kind = match row.kind {
        GidKind::InfiniBand => "InfiniBand".to_owned(),
        GidKind::RoceV1 => "RoCE v1".to_owned(),
        GidKind::RoceV2 => "RoCE v2".to_owned(),
        other => format!("{other:?}"),
    };
    let interface = row.interface_name().map(|name| format!(" on {name}")).unwrap_or_default();
    format!("{kind} {}{interface} (index {})", row.gid, row.index())
}

fn state(state: PortState) -> String {
    match state {
        PortState::Down => "down".to_owned(),
        PortState::Init => "initializing".to_owned(),
        PortState::Armed => "armed".to_owned(),
        PortState::Active => "active".to_owned(),
        PortState::ActiveDefer => "active, link lost a moment ago".to_owned(),
        other => format!("{other:?}"),
    }
}

fn layer(layer: LinkLayer) -> &'static str {
    match layer {
        LinkLayer::InfiniBand => "InfiniBand",
        LinkLayer::Ethernet => "Ethernet",
        _ => "link layer not said",
    }
}

/// Prints what keeps the port from working, or from working well.
fn problems(port: &Port, device: &Device, is_iwarp: bool) -> Vec<String> {
    let mut problems = Vec::new();
    let ethernet = port.link_layer() == LinkLayer::Ethernet;
    let interfaces = interfaces(port, device);
    let interface = interfaces.first().map_or("INTERFACE", String::as_str);
    match port.state() {
        PortState::Active => {}
        PortState::Down if ethernet => problems.push(format!(
            "the port is down, so nothing can be sent: is the cable in, and is {interface} up \
             (`ip link set {interface} up`)?"
        )),
        PortState::Down => problems.push("the port is down, so nothing can be sent: is the cable in?".to_owned()),
        PortState::Init | PortState::Armed => problems.push(
            "the port waits for a subnet manager: run one on this fabric (opensm), or look why it does not answer"
                .to_owned(),
        ),
        other => problems.push(format!("the port is not active: {}", state(other))),
    }
    if is_iwarp {
        return problems;
    }
    match port.gid() {
        None if ethernet => problems.push(format!(
            "there is no GID, so no peer can reach it: give {interface} an address \
             (`ip addr add ADDRESS dev {interface}`)"
        )),
        Some(row) if ethernet && row.gid.is_link_local() => problems.push(format!(
            "only link-local GIDs, which work on this link only: give {interface} an address of a subnet"
        )),
        Some(row) if row.kind == GidKind::RoceV1 => {
            problems.push("only RoCE v1, which no router passes on".to_owned());
        }
        _ => {}
    }
    if ethernet && port.active_mtu() < Mtu::Bytes1024 {
        problems.push(format!(
            "the MTU of {} is less than the 1024 that ibv_rc_pingpong and others take: \
             raise that of {interface} to 1500",
            port.active_mtu()
        ));
    } else if ethernet && port.active_mtu() < Mtu::Bytes4096 && !interfaces.is_empty() {
        problems.push(format!(
            "note: packets carry {} bytes; 4096 need an MTU of 4200 on {interface} and on every switch",
            port.active_mtu()
        ));
    }
    problems
}

/// The network interfaces of a port: those of its GIDs, or else those in sysfs.
fn interfaces(port: &Port, device: &Device) -> Vec<String> {
    let mut names: Vec<String> = port.gids().iter().filter_map(GidEntry::interface_name).collect();
    if names.is_empty() && !device.is_soft() {
        let folder = format!("/sys/class/infiniband/{}", device.name());
        let parent = fs::read_to_string(format!("{folder}/parent")).unwrap_or_default();
        names = match parent.trim() {
            "" => names_in(&format!("{folder}/device/net")),
            parent => vec![parent.to_owned()],
        };
    }
    names.dedup();
    names
}

/// The names in a folder; empty if there is no such folder.
fn names_in(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn limits(out: &mut impl Write, context: &Context) -> io::Result<()> {
    let attributes = match context.attributes() {
        Ok(attributes) => attributes,
        Err(error) => return problem(out, &error.to_string()),
    };
    writeln!(out, "  firmware             {}", attributes.firmware())?;
    writeln!(out, "  queue pairs          {}", attributes.max_queue_pairs())?;
    writeln!(out, "  requests in a queue  {}", attributes.max_queue_depth())?;
    writeln!(out, "  completion entries   {}", attributes.max_completion_entries())?;
    writeln!(out, "  regions              {}", attributes.max_regions())?;
    writeln!(out, "  bytes in a region    {:#x}", attributes.max_region_bytes())?;
    writeln!(out, "  reads at once        {} as responder", attributes.max_responder_reads())?;
    writeln!(out, "                       {} as initiator", attributes.max_initiator_reads())?;
    writeln!(out, "  atomics              {}", if attributes.has_atomics() { "yes" } else { "no" })
}

/// Prints what to do on a machine without RDMA.
fn no_hardware(out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "No RDMA device.")?;
    let known = names_in("/sys/class/infiniband");
    if !known.is_empty() {
        return problem(
            out,
            &format!(
                "the kernel has {}, but not for programs: `modprobe ib_uverbs`, \
                 and in a container pass in /dev/infiniband",
                known.join(", ")
            ),
        );
    }
    writeln!(out, "  Without such hardware, the kernel can do RDMA over any Ethernet interface (as root):")?;
    writeln!(out, "    modprobe rdma_rxe && rdma link add rxe0 type rxe netdev INTERFACE")?;
    writeln!(out, "  The soft devices need nothing, but live in one process:")
}

/// Warns of a low limit of locked memory, which limits registered memory.
fn locked_memory(out: &mut impl Write) -> io::Result<()> {
    const ENOUGH: u64 = 64 << 20;
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = limit.and_then(|columns| columns.split_whitespace().next()).unwrap_or("unlimited");
    let Ok(bytes) = soft.parse::<u64>() else { return Ok(()) };
    if bytes >= ENOUGH || may_lock_all() {
        return Ok(());
    }
    writeln!(out, "This process may register {} KiB of memory at once, which is little.", bytes >> 10)?;
    problem(out, "raise the limit: `ulimit -l unlimited`, memlock in limits.conf, or LimitMEMLOCK= of a systemd unit")
}

/// Whether the process has CAP_IPC_LOCK, so that the limit does not apply.
fn may_lock_all() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    bits >> CAP_IPC_LOCK & 1 == 1
}
