//! A latency histogram as a text chart.

use hdrhistogram::Histogram;

/// Number of buckets between minimum and maximum.
const ROWS: usize = 16;
/// Length of the longest bar in characters.
const WIDTH: usize = 48;

/// Returns the chart: one row per bucket, with a bar for its number of responses. Bucket bounds grow
/// geometrically.
pub(super) fn of(latency: &Histogram<u64>) -> String {
    if latency.is_empty() {
        return String::new();
    }
    let (least, most) = (latency.min().max(1), latency.max());
    let is_single = latency.equivalent(least, most);
    let rows = if is_single { 1 } else { ROWS };
    let step = (most as f64 / least as f64).powf(1.0 / rows as f64);
    let edge = |row: usize| match row {
        0 => 0,
        row if row == rows => most,
        row => (least as f64 * step.powi(row as i32)) as u64,
    };
    // Each recorded value is counted in exactly one row of the chart.
    let mut counts = vec![0; rows];
    for value in latency.iter_recorded() {
        let row = (1..rows)
            .find(|row| value.value_iterated_to() <= edge(*row))
            .unwrap_or(rows);
        counts[row - 1] += value.count_at_value();
    }
    let highest = counts.iter().copied().max().unwrap_or(0).max(1);
    let mut chart = "latency up to  responses\n".to_owned();
    for (row, count) in counts.iter().enumerate() {
        let length = (*count as f64 / highest as f64 * WIDTH as f64).ceil() as usize;
        let bar = "█".repeat(length);
        let up_to = micros(edge(row + 1) as f64 / 1e3);
        chart += &format!("{up_to:>13}  {bar}{}{count}\n", if length > 0 { " " } else { "" });
    }
    chart
}

/// Formats microseconds with three digits and a suitable unit.
pub(super) fn micros(micros: f64) -> String {
    let (value, unit) = match micros {
        ..1e3 => (micros, "us"),
        1e3..1e6 => (micros / 1e3, "ms"),
        _ => (micros / 1e6, "s"),
    };
    match value {
        ..10.0 => format!("{value:.2} {unit}"),
        10.0..100.0 => format!("{value:.1} {unit}"),
        _ => format!("{value:.0} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits() {
        let shown = [
            0.0,
            7.25,
            83.4,
            999.9,
            1234.0,
            45_600.0,
            2_500_000.0,
            61_000_000.0,
        ]
        .map(micros);
        assert_eq!(
            shown,
            [
                "0.00 us", "7.25 us", "83.4 us", "1000 us", "1.23 ms", "45.6 ms", "2.50 s", "61.0 s"
            ]
        );
    }

    #[test]
    fn charts_have_a_bar_for_each_part() {
        let mut latency = Histogram::<u64>::new_with_bounds(1_000, 3_600_000_000_000, 3).unwrap();
        assert_eq!(of(&latency), "");
        latency.record_n(100_000, 90).unwrap();
        latency.record_n(1_000_000, 9).unwrap();
        latency.record(50_000_000).unwrap();
        let chart = of(&latency);
        let lines: Vec<&str> = chart.lines().collect();
        assert_eq!(lines.len(), 1 + ROWS, "{chart}");
        assert!(
            lines[1].ends_with(&format!("{} 90", "█".repeat(WIDTH))),
            "{chart}"
        );
        let counts = lines[1..]
            .iter()
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
        assert_eq!(counts.sum::<u64>(), 100, "{chart}");
        // All values are in one bucket.
        let mut single = Histogram::<u64>::new_with_bounds(1_000, 3_600_000_000_000, 3).unwrap();
        single.record_n(5_000, 3).unwrap();
        assert_eq!(of(&single).lines().count(), 2);
    }
}
