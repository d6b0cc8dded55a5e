//! Counters of costs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use metrics::{GaugeFn, Key, Label};
use metrics_exporter_prometheus::{
    LabelSet,
    formatting::{write_help_line, write_metric_line, write_type_line},
};

use crate::domain::DetectorId;

/// A cost in US dollars: a counter with fractions. Counters of the `metrics` facade are
/// integers. A gauge would be exposed with the type gauge, which `rate` and other tools
/// that read the type do not accept. This counter is therefore kept and rendered here.
pub(super) struct CostCounter {
    name: &'static str,
    help: &'static str,
    series: Vec<CostSeries>,
}

struct CostSeries {
    labels: LabelSet,
    /// The bits of an `f64`.
    usd: AtomicU64,
}

impl CostCounter {
    /// A counter without labels.
    pub fn new(name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            help,
            series: vec![CostSeries::new(name, Vec::new())],
        }
    }

    /// A counter with a series for each detector.
    pub fn by_detector(name: &'static str, help: &'static str, detectors: &[&str]) -> Self {
        let series = detectors.iter().map(|detector| {
            let label = Label::new("detector", (*detector).to_owned());
            CostSeries::new(name, vec![label])
        });
        Self {
            name,
            help,
            series: series.collect(),
        }
    }

    pub fn add(&self, usd: f64) {
        self.add_to(0, usd);
    }

    pub fn add_for(&self, detector: DetectorId, usd: f64) {
        self.add_to(detector.index(), usd);
    }

    /// Ignores what is not a positive amount, because a counter never decreases.
    fn add_to(&self, index: usize, usd: f64) {
        if let Some(series) = self.series.get(index)
            && usd > 0.0
            && usd.is_finite()
        {
            GaugeFn::increment(&series.usd, usd);
        }
    }

    pub fn render(&self, text: &mut String) {
        let Self { name, help, series } = self;
        write_help_line(text, name, None, None, help);
        write_type_line(text, name, None, None, "counter");
        for series in series {
            let usd = f64::from_bits(series.usd.load(Relaxed));
            write_metric_line::<&str, f64>(text, name, None, &series.labels, None, usd, None);
        }
        text.push('\n');
    }
}

impl CostSeries {
    fn new(name: &'static str, labels: Vec<Label>) -> Self {
        let key = Key::from_parts(name, labels);
        Self {
            labels: LabelSet::from_key_and_global(&key, &Default::default()),
            usd: AtomicU64::new(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::help::{WASTED_COST, WASTED_COST_HELP};

    #[test]
    fn wasted_cost_is_a_counter_with_fractions_that_never_decreases() {
        let detectors = ["read_loop", "rule:\"mine\""];
        let cost = CostCounter::by_detector(WASTED_COST, WASTED_COST_HELP, &detectors);
        for usd in [0.25, 0.125, -1.0, f64::NAN, f64::INFINITY] {
            cost.add_for(DetectorId(0), usd);
        }
        cost.add_for(DetectorId(9), 1.0);
        let mut text = String::new();
        cost.render(&mut text);
        assert_eq!(
            text,
            "# HELP unstuck_wasted_cost_usd_total US dollars spent in loops.\n\
             # TYPE unstuck_wasted_cost_usd_total counter\n\
             unstuck_wasted_cost_usd_total{detector=\"read_loop\"} 0.375\n\
             unstuck_wasted_cost_usd_total{detector=\"rule:\\\"mine\\\"\"} 0\n\n"
        );
    }
}
