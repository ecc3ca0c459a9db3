//! Draws the results: a panel for each measure, with message sizes from left to right, on two logarithmic axes.
//!
//! This code uses no plotting library, which would make every build of the tests longer.

use crate::options::{Action, Measure};
use crate::report::{Figures, MIB_PER_SECOND, P50, P99, Row, Setting};
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const PANEL: f64 = 430.0;
/// The margins of a panel.
const LEFT: f64 = 80.0;
const RIGHT: f64 = 160.0;
const TOP: f64 = 58.0;
const BOTTOM: f64 = 62.0;

/// A curve of a panel.
struct Curve {
    name: String,
    colour: &'static str,
    is_dashed: bool,
    /// Pairs of size in bytes and value.
    points: Vec<(f64, f64)>,
}

pub(crate) fn svg(setting: &Setting, rows: &[Row]) -> String {
    let panels: Vec<_> =
        Measure::ALL.into_iter().filter(|measure| rows.iter().any(|row| row.measure == *measure)).collect();
    let height = PANEL * panels.len() as f64;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for (number, measure) in panels.into_iter().enumerate() {
        _ = writeln!(text, "<g transform=\"translate(0 {})\">", number as f64 * PANEL);
        panel(&mut text, setting, measure, rows);
        text += "</g>\n";
    }
    text + "</svg>\n"
}

fn curves(measure: Measure, rows: &[Row]) -> Vec<Curve> {
    let mut curves = Vec::new();
    for (action, colour) in Action::ALL.into_iter().zip(["#0072b2", "#d55e00", "#009e73"]) {
        let values = |value: &dyn Fn(&Figures) -> f64| {
            let rows = rows.iter().filter(|row| row.measure == measure && row.action == action);
            let mut points: Vec<_> = rows.map(|row| (f64::from(row.size), value(&row.figures))).collect();
            points.sort_by(|left, right| left.0.total_cmp(&right.0));
            points
        };
        let latency = |which: usize| {
            move |figures: &Figures| match figures {
                Figures::Latency { micros, .. } => micros[which],
                Figures::Bandwidth { rates, .. } => rates[MIB_PER_SECOND],
            }
        };
        let names = match measure {
            Measure::Latency => vec![("p50", P50, false), ("p99", P99, true)],
            Measure::Bandwidth => vec![("", 0, false)],
        };
        for (name, which, is_dashed) in names {
            let name = format!("{action} {name}").trim_end().to_owned();
            curves.push(Curve { name, colour, is_dashed, points: values(&latency(which)) });
        }
    }
    curves.retain(|curve| !curve.points.is_empty());
    curves
}

fn panel(text: &mut String, setting: &Setting, measure: Measure, rows: &[Row]) {
    let curves = curves(measure, rows);
    let all = || curves.iter().flat_map(|curve| curve.points.iter().copied());
    let x = Axis::of_sizes(all().map(|point| point.0));
    let y = Axis::of_values(all().map(|point| point.1));
    let (right, bottom) = (WIDTH - RIGHT, PANEL - BOTTOM);
    let at_x = |size: f64| LEFT + x.place(size) * (right - LEFT);
    let at_y = |value: f64| bottom - y.place(value) * (bottom - TOP);

    let (title, unit) = match measure {
        Measure::Latency => ("Latency: half of a round trip (send, write), time to complete (read)", "µs, logarithmic"),
        Measure::Bandwidth => ("Bandwidth in one direction", "MiB/s (1 MiB = 2^20 bytes), logarithmic"),
    };
    let ends = if setting.both_ends_here { "both ends in one process" } else { "two processes" };
    let waits = if setting.event { "sleeping" } else { "polling" };
    let mtu = setting.path_mtu;
    let about = escaped(&format!("{}, path MTU {mtu} bytes, {ends}, {waits}", setting.device));
    _ = writeln!(text, "<text x=\"{LEFT}\" y=\"24\" font-size=\"16\" font-weight=\"bold\">{title}</text>");
    _ = writeln!(text, "<text x=\"{LEFT}\" y=\"43\" fill=\"#666\">{about}</text>");

    for tick in &x.ticks {
        let at = at_x(*tick);
        _ = writeln!(text, "<path d=\"M{at:.1} {TOP}V{bottom}\" stroke=\"#e4e4e4\"/>");
        _ = writeln!(
            text,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 18.0,
            size(*tick)
        );
    }
    for tick in &y.ticks {
        let at = at_y(*tick);
        _ = writeln!(text, "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#e4e4e4\"/>");
        _ = writeln!(text, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>", LEFT - 8.0, at + 4.0);
    }
    let (middle, centre) = ((LEFT + right) / 2.0, (TOP + bottom) / 2.0);
    _ = writeln!(text, "<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"#444\"/>");
    _ = writeln!(text, "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">message size, bytes</text>", PANEL - 22.0);
    _ = writeln!(text, "<text transform=\"translate(20 {centre}) rotate(-90)\" text-anchor=\"middle\">{unit}</text>");

    for (number, Curve { name, colour, is_dashed, points }) in curves.iter().enumerate() {
        let dashes = if *is_dashed { " stroke-dasharray=\"6 4\"" } else { "" };
        let stroke = format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}");
        let path: Vec<_> = points.iter().map(|(x, y)| format!("{:.1},{:.1}", at_x(*x), at_y(*y))).collect();
        _ = writeln!(text, "<polyline points=\"{}\" {stroke}/>", path.join(" "));
        let fill = if *is_dashed { "#fff" } else { colour };
        for (x, y) in points {
            let (x, y) = (at_x(*x), at_y(*y));
            _ = writeln!(text, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{fill}\" stroke=\"{colour}\"/>");
        }
        let (from, to, line) = (right + 18.0, right + 50.0, TOP + 8.0 + 20.0 * number as f64);
        _ = writeln!(text, "<path d=\"M{from} {line}H{to}\" {stroke}/>");
        _ = writeln!(text, "<text x=\"{}\" y=\"{}\">{name}</text>", to + 8.0, line + 4.0);
    }
}

/// A logarithmic axis.
struct Axis {
    least: f64,
    most: f64,
    ticks: Vec<f64>,
}

impl Axis {
    /// An axis from one power of two to another.
    fn of_sizes(sizes: impl Iterator<Item = f64> + Clone) -> Self {
        let least = sizes.clone().fold(f64::INFINITY, f64::min).log2().floor();
        let most = sizes.fold(0.0, f64::max).log2().ceil().max(least + 1.0);
        let step = ((most - least) / 12.0).ceil() as usize;
        let ticks = (least as i32..=most as i32).step_by(step).map(|power| 2_f64.powi(power)).collect();
        Self { least: 2_f64.powf(least), most: 2_f64.powf(most), ticks }
    }

    /// An axis between values of 1, 2 or 5 times a power of ten.
    fn of_values(values: impl Iterator<Item = f64> + Clone) -> Self {
        let least = values.clone().fold(f64::INFINITY, f64::min).max(1e-3);
        let most = values.fold(0.0, f64::max).max(least);
        // The numbers are parsed from text, so that 0.1 prints as 0.1. The result of a multiplication can be a bit off.
        let steps = || (-4..=9).flat_map(|power| [1, 2, 5].map(|digit| format!("{digit}e{power}")));
        let steps = || steps().filter_map(|step| step.parse::<f64>().ok());
        let first = steps().take_while(|step| *step <= least).last().unwrap_or(least);
        let last = steps().find(|step| *step >= most && *step > first).unwrap_or(most);
        let ticks = steps().filter(|step| (first..=last).contains(step)).collect();
        Self { least: first, most: last, ticks }
    }

    /// The position of a value on the axis, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        ((value.max(self.least) / self.least).ln() / (self.most / self.least).ln()).clamp(0.0, 1.0)
    }
}

fn size(bytes: f64) -> String {
    let bytes = bytes as u64;
    match bytes {
        0..1024 => bytes.to_string(),
        1024..0x10_0000 => format!("{} Ki", bytes >> 10),
        _ => format!("{} Mi", bytes >> 20),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace(char::is_control, " ")
}
