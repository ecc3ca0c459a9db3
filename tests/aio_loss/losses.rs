//! A network that loses packets.

use interlock::Context;
use interlock::soft::{Fabric, Fault};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use support::{Random, another_device, context};

/// Two devices that reach each other, and the means by which the network between them loses packets.
#[derive(Debug)]
pub(crate) struct Network {
    /// One end.
    pub(crate) left: Context,
    /// The other end. On iWARP it is the same device: two devices of one machine do not reach each other there.
    pub(crate) right: Context,
    means: Means,
}

/// How packets get lost.
#[derive(Debug)]
enum Means {
    /// The test tells the soft device which packets to lose.
    Told(Fabric),
    /// The kernel loses some of the packets that leave by these network interfaces.
    Kernel(&'static [&'static str]),
}

impl Network {
    /// The network of the device under test.
    ///
    /// If two pairs of soft-RoCE are on the same device, their packets do not use the network. So the other end is on
    /// another device. On soft iWARP a stream to the own address uses the loopback interface.
    pub(crate) fn new() -> Self {
        let left = context();
        let means = match (left.is_soft(), left.is_iwarp()) {
            // The fabric belongs to this process, so lost packets do not disturb other test programs.
            (true, _) => Means::Told(Fabric::process().clone()),
            (false, true) => Means::Kernel(&["lo"]),
            (false, false) => Means::Kernel(&["veth-rxe0", "veth-rxe1"]),
        };
        let right = match left.is_iwarp() {
            true => left.clone(),
            false => Context::open(&another_device().expect("a second device")).unwrap(),
        };
        Self { left, right, means }
    }

    /// Loses `percent` of the packets until the returned value is dropped. All tests of a program share the
    /// network, so tests that call this take turns.
    pub(crate) fn lose(&self, percent: u32) -> Losses {
        match &self.means {
            Means::Told(fabric) => Losses {
                percent,
                fabric: Some(fabric.clone()),
                told: AtomicU64::new(0),
                since_an_answer: AtomicU64::new(0),
                interfaces: &[],
            },
            Means::Kernel(interfaces) => {
                for interface in *interfaces {
                    let loss = format!("{percent}%");
                    tc(&["qdisc", "replace", "dev", interface, "root", "netem", "limit", "100000", "loss", &loss]);
                }
                Losses {
                    percent,
                    fabric: None,
                    told: AtomicU64::new(0),
                    since_an_answer: AtomicU64::new(0),
                    interfaces,
                }
            }
        }
    }
}

/// A network loses packets as long as this value lives.
#[derive(Debug)]
pub(crate) struct Losses {
    percent: u32,
    fabric: Option<Fabric>,
    told: AtomicU64,
    /// How many losses the soft device was told to cause since the last answer.
    since_an_answer: AtomicU64,
    interfaces: &'static [&'static str],
}

/// How many losses may be pending on the soft device at once. If only one pair sends, each of its retries meets the
/// next pending loss. With more losses, the pair would run out of retries.
const MOST_AT_ONCE: u64 = 2;

impl Losses {
    /// Call this before each request. It makes the soft device lose about `percent` of the requests and of the answers.
    pub(crate) fn at_a_request(&self, random: &mut Random) {
        let Some(fabric) = &self.fabric else { return };
        for is_request in [true, false] {
            let is_lost = random.below(100) < self.percent as usize;
            if is_lost && self.since_an_answer.fetch_add(1, Ordering::Relaxed) < MOST_AT_ONCE {
                self.told.fetch_add(1, Ordering::Relaxed);
                fabric.inject(if is_request {
                    Fault::RequestsLost { count: 1 }
                } else {
                    Fault::AnswersLost { count: 1 }
                });
            }
        }
    }

    /// Call this after each answer.
    pub(crate) fn at_an_answer(&self) {
        self.since_an_answer.store(0, Ordering::Relaxed);
    }

    /// How many packets were lost so far.
    pub(crate) fn lost(&self) -> u64 {
        let by_kernel = self.interfaces.iter().map(|interface| {
            let said = tc(&["-s", "qdisc", "show", "dev", interface]);
            let (_, rest) = said.split_once("dropped ").expect("statistics of the interface");
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
            digits.and_then(|digits| digits.parse::<u64>().ok()).expect("a number of packets")
        });
        self.told.load(Ordering::Relaxed) + by_kernel.sum::<u64>()
    }
}

impl Drop for Losses {
    fn drop(&mut self) {
        for interface in self.interfaces {
            tc(&["qdisc", "del", "dev", interface, "root"]);
        }
    }
}

/// Runs `tc` of iproute2, as root. Returns what it says.
fn tc(arguments: &[&str]) -> String {
    // `/usr/sbin` is not always in the PATH, not even for root.
    let program = if std::path::Path::new("/usr/sbin/tc").exists() { "/usr/sbin/tc" } else { "tc" };
    let output = Command::new(program).args(arguments).output().expect("tc, of iproute2");
    assert!(output.status.success(), "tc {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
