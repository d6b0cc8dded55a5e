//! The counter of wasted cost.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use metrics::{GaugeFn, Key, Label};
use metrics_exporter_prometheus::{
    LabelSet,
    formatting::{write_help_line, write_metric_line, write_type_line},
};

use super::help::{WASTED_COST, WASTED_COST_HELP};
use crate::domain::DetectorId;

/// The cost of loops in US dollars, by detector: a counter with fractions. Counters
/// of the `metrics` facade are integers. A gauge would be exposed with the type gauge,
/// which `rate` and other tools that read the type do not accept. This counter is
/// therefore kept and rendered here.
pub(super) struct WastedCost(Vec<DetectorCost>);

struct DetectorCost {
    labels: LabelSet,
    /// The bits of an `f64`.
    usd: AtomicU64,
}

impl DetectorCost {
    fn new(detector: &str) -> Self {
        let label = Label::new("detector", detector.to_owned());
        let key = Key::from_parts(WASTED_COST, vec![label]);
        Self {
            labels: LabelSet::from_key_and_global(&key, &Default::default()),
            usd: AtomicU64::new(0),
        }
    }
}

impl WastedCost {
    pub fn new(detectors: &[&str]) -> Self {
        Self(
            detectors
                .iter()
                .map(|name| DetectorCost::new(name))
                .collect(),
        )
    }

    /// Ignores what is not a positive amount, because a counter never decreases.
    pub fn add(&self, detector: DetectorId, usd: f64) {
        if let Some(cost) = self.0.get(detector.index())
            && usd > 0.0
            && usd.is_finite()
        {
            GaugeFn::increment(&cost.usd, usd);
        }
    }

    pub fn render(&self, text: &mut String) {
        write_help_line(text, WASTED_COST, None, None, WASTED_COST_HELP);
        write_type_line(text, WASTED_COST, None, None, "counter");
        for cost in &self.0 {
            let usd = f64::from_bits(cost.usd.load(Relaxed));
            write_metric_line::<&str, f64>(text, WASTED_COST, None, &cost.labels, None, usd, None);
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wasted_cost_is_a_counter_with_fractions_that_never_decreases() {
        let cost = WastedCost::new(&["read_loop", "rule:\"mine\""]);
        for usd in [0.25, 0.125, -1.0, f64::NAN, f64::INFINITY] {
            cost.add(DetectorId(0), usd);
        }
        cost.add(DetectorId(9), 1.0);
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
