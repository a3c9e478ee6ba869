//! A plot for each quantity: both axes logarithmic, so that a power is a straight line, and what is
//! linear runs along the grey diagonal. SVG by hand: a few lines and labels need no crate.

use std::fmt::Write;

use super::Series;

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 300.0;
const MARGIN: f64 = 46.0;
const COLOURS: [&str; 4] = ["#1b6ca8", "#c8553d", "#3a7d44", "#7d5ba6"];

/// All series, those along one quantity and of one unit in one plot.
pub(super) fn svg(all: &[Series]) -> String {
    let mut groups: Vec<(&str, &str, Vec<&Series>)> = Vec::new();
    for series in all {
        match groups
            .iter_mut()
            .find(|(along, unit, _)| (*along, *unit) == (series.along, series.unit))
        {
            Some((_, _, members)) => members.push(series),
            None => groups.push((series.along, series.unit, vec![series])),
        }
    }
    let rows = groups.len().div_ceil(2) as f64;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        2.0 * WIDTH,
        rows * HEIGHT
    );
    for (at, (along, unit, members)) in groups.iter().enumerate() {
        let (x, y) = ((at % 2) as f64 * WIDTH, (at / 2) as f64 * HEIGHT);
        let _ = writeln!(text, "<g transform=\"translate({x},{y})\">");
        panel(&mut text, along, unit, members);
        text.push_str("</g>\n");
    }
    text.push_str("</svg>\n");
    text
}

/// From values to places between two ends.
struct Axis {
    least: f64,
    span: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Self {
        let logs = values.map(|value| value.max(1e-9).log10());
        let least = logs.clone().fold(f64::INFINITY, f64::min).floor();
        let most = logs.fold(f64::NEG_INFINITY, f64::max).ceil();
        Self { least, span: (most - least).max(1.0), from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value.max(1e-9).log10() - self.least) / self.span;
        self.from + share * (self.to - self.from)
    }

    fn decades(&self) -> impl Iterator<Item = f64> + use<> {
        let least = self.least as i32;
        (least..=least + self.span as i32).map(|power| 10_f64.powi(power))
    }
}

fn panel(text: &mut String, along: &str, unit: &str, members: &[&Series]) {
    let points = || members.iter().flat_map(|series| &series.points);
    let across = Axis::new(points().map(|(x, _)| *x), MARGIN, WIDTH - 12.0);
    let up = Axis::new(points().map(|(_, y)| *y), HEIGHT - MARGIN, 26.0);
    for decade in across.decades() {
        let x = across.at(decade);
        let _ = writeln!(
            text,
            "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"#eee\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{decade}</text>",
            up.from,
            up.to,
            up.from + 14.0
        );
    }
    for decade in up.decades() {
        let y = up.at(decade);
        let _ = writeln!(
            text,
            "<line x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#eee\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{decade}</text>",
            across.from,
            across.to,
            across.from - 4.0,
            y + 4.0
        );
    }
    let _ = writeln!(
        text,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{along}</text>\
         <text x=\"4\" y=\"14\">{unit}</text>",
        f64::midpoint(across.from, across.to),
        HEIGHT - 12.0
    );
    for (number, series) in members.iter().enumerate() {
        let colour = COLOURS.get(number % COLOURS.len()).unwrap_or(&"black");
        // What it would be, were it linear.
        if let (Some((x, y)), Some((end, _))) = (series.points.first(), series.points.last()) {
            let _ = writeln!(
                text,
                "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"#ccc\" \
                 stroke-dasharray=\"3 3\"/>",
                across.at(*x),
                up.at(*y),
                across.at(*end),
                up.at(y * end / x).max(up.to)
            );
        }
        let line: Vec<String> = series
            .points
            .iter()
            .map(|(x, y)| format!("{:.1},{:.1}", across.at(*x), up.at(*y)))
            .collect();
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            line.join(" ")
        );
        for (x, y) in &series.points {
            let (x, y) = (across.at(*x), up.at(*y));
            let _ =
                writeln!(text, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>",
            across.from + 8.0,
            38.0 + 14.0 * number as f64,
            series.name
        );
    }
}
