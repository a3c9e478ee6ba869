//! A plot for each quantity: both axes logarithmic, so that a power is a straight line, and what is
//! linear runs along the grey diagonal.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::series::Series;

const WIDTH: u32 = 420;
const HEIGHT: u32 = 300;
const COLOURS: [RGBColor; 4] = [
    RGBColor(0x1b, 0x6c, 0xa8),
    RGBColor(0xc8, 0x55, 0x3d),
    RGBColor(0x3a, 0x7d, 0x44),
    RGBColor(0x7d, 0x5b, 0xa6),
];
const GRID: RGBColor = RGBColor(0xee, 0xee, 0xee);
const LINEAR: RGBColor = RGBColor(0xbb, 0xbb, 0xbb);
const FONT: (&str, u32) = ("sans-serif", 14);

type Area<'t> = DrawingArea<SVGBackend<'t>, Shift>;

/// All series, those along one quantity and of one unit in one plot.
///
/// # Errors
/// When the plotting library refuses something: no file is written here.
pub(super) fn svg(all: &[Series]) -> anyhow::Result<String> {
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
    let rows = groups.len().div_ceil(2).max(1);
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (2 * WIDTH, rows as u32 * HEIGHT))
            .into_drawing_area();
        root.fill(&WHITE)?;
        for (area, (along, unit, members)) in root.split_evenly((rows, 2)).iter().zip(&groups) {
            panel(area, along, unit, members)?;
        }
        root.present()?;
    }
    Ok(text)
}

/// The whole decades that have all values.
fn decades(values: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    let logs = values.map(|value| value.max(1e-9).log10());
    let least = logs.clone().fold(f64::INFINITY, f64::min).floor();
    let most = logs.fold(f64::NEG_INFINITY, f64::max).ceil().max(least + 1.0);
    10_f64.powf(least)..10_f64.powf(most)
}

fn panel(area: &Area<'_>, along: &str, unit: &str, members: &[&Series]) -> anyhow::Result<()> {
    let points = || members.iter().flat_map(|series| &series.points);
    let across = decades(points().map(|(x, _)| *x));
    let up = decades(points().map(|(_, y)| *y));
    let top = up.end;
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .margin_right(26)
        .x_label_area_size(34)
        .y_label_area_size(58)
        .build_cartesian_2d(across.log_scale(), up.log_scale())?;
    let number = |value: &f64| format!("{value}");
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .label_style(FONT)
        .x_desc(along)
        .y_desc(unit)
        .x_label_formatter(&number)
        .y_label_formatter(&number)
        .draw()?;
    for (series, colour) in members.iter().zip(COLOURS.iter().cycle()) {
        // What it would be, were it linear.
        if let (Some((x, y)), Some((end, _))) = (series.points.first(), series.points.last()) {
            let end = end.min(x * top / y);
            let line = [(*x, *y), (end, y * end / x)];
            chart.draw_series(DashedLineSeries::new(line, 3, 3, LINEAR.stroke_width(1)))?;
        }
        let line = LineSeries::new(series.points.iter().copied(), colour.stroke_width(2));
        chart
            .draw_series(line)?
            .label(series.name.as_str())
            .legend(|(x, y)| PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(2)));
        let dots = series.points.iter().map(|point| Circle::new(*point, 3, colour.filled()));
        chart.draw_series(dots)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(FONT)
        .draw()?;
    Ok(())
}
