//! Results, as text, CSV and JSON.

use crate::options::{Action, Measure};
use hdrhistogram::Histogram;
use std::fmt::Write;
use std::time::Duration;

/// The results of one round.
pub(crate) struct Row {
    pub(crate) measure: Measure,
    pub(crate) action: Action,
    pub(crate) size: u32,
    pub(crate) figures: Figures,
}

pub(crate) enum Figures {
    Latency {
        iterations: u64,
        /// In µs, named by [`LATENCIES`].
        micros: [f64; 9],
    },
    Bandwidth {
        iterations: u64,
        seconds: f64,
        /// Named by [`BANDWIDTHS`].
        rates: [f64; 3],
    },
}

/// Names of latencies in a table, in CSV and in JSON. The unit is µs.
pub(crate) const LATENCIES: [(&str, &str); 9] = [
    ("min", "min_us"),
    ("p50", "p50_us"),
    ("p90", "p90_us"),
    ("p99", "p99_us"),
    ("p99.9", "p99_9_us"),
    ("p99.99", "p99_99_us"),
    ("max", "max_us"),
    ("mean", "mean_us"),
    ("stdev", "stdev_us"),
];
pub(crate) const P50: usize = 1;
pub(crate) const P99: usize = 3;

const BANDWIDTHS: [(&str, &str); 3] =
    [("MiB/s", "mebibytes_per_second"), ("Gbit/s", "gigabits_per_second"), ("Mmsg/s", "million_messages_per_second")];
pub(crate) const MIB_PER_SECOND: usize = 0;

impl Figures {
    /// The figures of a histogram in ns.
    pub(crate) fn latency(nanos: &Histogram<u64>) -> Self {
        let micros = |nanos: u64| nanos as f64 / 1000.0;
        let percentile = |percent: f64| micros(nanos.value_at_quantile(percent / 100.0));
        let micros = [
            micros(nanos.min()),
            percentile(50.0),
            percentile(90.0),
            percentile(99.0),
            percentile(99.9),
            percentile(99.99),
            micros(nanos.max()),
            nanos.mean() / 1000.0,
            nanos.stdev() / 1000.0,
        ];
        Self::Latency { iterations: nanos.len(), micros }
    }

    pub(crate) fn bandwidth(iterations: u64, size: usize, took: Duration) -> Self {
        let seconds = took.as_secs_f64().max(1e-9);
        let (messages, bytes) = (iterations as f64 / seconds, iterations as f64 * size as f64 / seconds);
        Self::Bandwidth { iterations, seconds, rates: [bytes / f64::from(1 << 20), bytes * 8.0 / 1e9, messages / 1e6] }
    }

    fn iterations(&self) -> u64 {
        match self {
            Self::Latency { iterations, .. } | Self::Bandwidth { iterations, .. } => *iterations,
        }
    }

    /// Name and value of each number.
    fn numbers(&self) -> Vec<(&'static str, f64)> {
        let pair = |names: &[(&str, &'static str)], values: &[f64]| {
            names.iter().map(|names| names.1).zip(values.iter().copied()).collect::<Vec<_>>()
        };
        match self {
            Self::Latency { micros, .. } => pair(&LATENCIES, micros),
            Self::Bandwidth { seconds, rates, .. } => [vec![("seconds", *seconds)], pair(&BANDWIDTHS, rates)].concat(),
        }
    }
}

/// The heading above the rows of a measure and an operation.
pub(crate) fn heading(measure: Measure, action: Action) -> String {
    let (what, names) = match (measure, action) {
        (Measure::Latency, Action::Read) => ("time until a read has completed, in µs", &LATENCIES[..]),
        (Measure::Latency, Action::Send) => ("half of the round trip of a send, in µs", &LATENCIES[..]),
        (Measure::Latency, Action::Write) => ("half of the round trip of a write, in µs", &LATENCIES[..]),
        (Measure::Bandwidth, _) => ("in one direction, 1 MiB = 2^20 bytes", &BANDWIDTHS[..]),
    };
    let mut text = format!("\n{measure} {action}: {what}\n{:>10} {:>10}", "bytes", "iterations");
    for (name, _) in names {
        _ = write!(text, " {name:>10}");
    }
    text + "\n"
}

impl Row {
    pub(crate) fn line(&self) -> String {
        let mut text = format!("{:>10} {:>10}", self.size, self.figures.iterations());
        let (values, digits) = match &self.figures {
            Figures::Latency { micros, .. } => (&micros[..], 2),
            Figures::Bandwidth { rates, .. } => (&rates[..], 4),
        };
        for value in values {
            _ = write!(text, " {value:>10.digits$}");
        }
        text + "\n"
    }
}

/// The settings that all rows have in common.
pub(crate) struct Setting {
    pub(crate) device: String,
    pub(crate) path_mtu: u32,
    pub(crate) both_ends_here: bool,
    pub(crate) event: bool,
    pub(crate) futures: bool,
    pub(crate) depth: u32,
    pub(crate) inline: u16,
}

/// CSV: one line for each row. A field that a measure does not have is empty.
pub(crate) fn csv(setting: &Setting, rows: &[Row]) -> String {
    let names =
        || LATENCIES.iter().map(|names| names.1).chain(["seconds"]).chain(BANDWIDTHS.iter().map(|names| names.1));
    let mut text = "device,measure,operation,size_bytes,iterations".to_owned();
    names().for_each(|name| text += &format!(",{name}"));
    text += "\n";
    let device = setting.device.replace([',', '"', '\n'], "_");
    for row in rows {
        let numbers = row.figures.numbers();
        _ = write!(text, "{device},{},{},{},{}", row.measure, row.action, row.size, row.figures.iterations());
        for name in names() {
            match numbers.iter().find(|number| number.0 == name) {
                Some((_, value)) => _ = write!(text, ",{value:.6}"),
                None => text += ",",
            }
        }
        text += "\n";
    }
    text
}

pub(crate) fn json(setting: &Setting, rows: &[Row]) -> String {
    let Setting { path_mtu, both_ends_here, event, futures, depth, inline, .. } = setting;
    let device = quoted(&setting.device);
    let mut text = format!(
        "{{\n  \"format\": 1,\n  \"device\": {device},\n  \"path_mtu_bytes\": {path_mtu},\n  \
         \"both_ends_in_one_process\": {both_ends_here},\n  \
         \"sleeps_for_completions\": {event},\n  \"awaits_futures\": {futures},\n  \"tx_depth\": {depth},\n  \"inline_bytes\": {inline},\n  \"results\": ["
    );
    for (number, row) in rows.iter().enumerate() {
        text += if number == 0 { "\n" } else { ",\n" };
        let (measure, action) = (row.measure, row.action);
        let (size, iterations) = (row.size, row.figures.iterations());
        _ = write!(
            text,
            "    {{\"measure\": \"{measure}\", \"operation\": \"{action}\", \"size_bytes\": {size}, \
             \"iterations\": {iterations}"
        );
        for (name, value) in row.figures.numbers() {
            _ = write!(text, ", \"{name}\": {value:.6}");
        }
        text += "}";
    }
    text + "\n  ]\n}\n"
}

fn quoted(text: &str) -> String {
    let mut quoted = "\"".to_owned();
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            char if char.is_control() => _ = write!(quoted, "\\u{:04x}", u32::from(char)),
            char => quoted.push(char),
        }
    }
    quoted + "\""
}
