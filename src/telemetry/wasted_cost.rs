use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use metrics::{GaugeFn, Key, Label};
use metrics_exporter_prometheus::{
    LabelSet,
    formatting::{write_help_line, write_metric_line, write_type_line},
};

use crate::domain::DetectorId;

const NAME: &str = "unstuck_wasted_cost_usd_total";
const HELP: &str = "US dollars that loops have cost.";

/// What loops have cost, by detector: a counter with fractions. The `metrics`
/// facade has whole counters only, and a gauge would be exposed as one, which
/// `rate` and every tool that looks at the type would take amiss; so this one
/// is kept and written out here.
pub(super) struct WastedCost(Vec<DetectorCost>);

struct DetectorCost {
    labels: LabelSet,
    /// The bits of an `f64`.
    usd: AtomicU64,
}

impl WastedCost {
    pub fn new(detectors: &[&str]) -> Self {
        let zero_cost = |name: &&str| {
            let key = Key::from_parts(NAME, vec![Label::new("detector", (*name).to_owned())]);
            DetectorCost {
                labels: LabelSet::from_key_and_global(&key, &Default::default()),
                usd: AtomicU64::new(0),
            }
        };
        Self(detectors.iter().map(zero_cost).collect())
    }

    /// A counter never falls: what is not an amount is left out.
    pub fn add(&self, detector: DetectorId, usd: f64) {
        if let Some(cost) = self.0.get(detector.index())
            && usd > 0.0
            && usd.is_finite()
        {
            GaugeFn::increment(&cost.usd, usd);
        }
    }

    pub fn render(&self, text: &mut String) {
        write_help_line(text, NAME, None, None, HELP);
        write_type_line(text, NAME, None, None, "counter");
        for cost in &self.0 {
            let usd = f64::from_bits(cost.usd.load(Relaxed));
            write_metric_line::<&str, f64>(text, NAME, None, &cost.labels, None, usd, None);
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_a_counter_with_fractions_that_never_falls() {
        let money = WastedCost::new(&["read_loop", "rule:\"mine\""]);
        for usd in [0.25, 0.125, -1.0, f64::NAN, f64::INFINITY] {
            money.add(DetectorId(0), usd);
        }
        money.add(DetectorId(9), 1.0);
        let mut text = String::new();
        money.render(&mut text);
        assert_eq!(
            text,
            "# HELP unstuck_wasted_cost_usd_total US dollars that loops have cost.\n\
             # TYPE unstuck_wasted_cost_usd_total counter\n\
             unstuck_wasted_cost_usd_total{detector=\"read_loop\"} 0.375\n\
             unstuck_wasted_cost_usd_total{detector=\"rule:\\\"mine\\\"\"} 0\n\n"
        );
    }
}
