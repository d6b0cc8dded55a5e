//! What the service does to protect others from its own faults.

use metrics::{Counter, Gauge};

/// Where a panic was contained.
#[derive(Clone, Copy, Debug)]
pub enum PanicSite {
    /// In a session, which is quarantined.
    Session,
    /// In a stream's task, which ended with a reason.
    Stream,
    /// In any other call, which was answered with one.
    Call,
}

pub(super) struct SafetyMetrics {
    panics: [Counter; 3],
    breaker_open: Gauge,
    withheld_terminations: Counter,
}

impl SafetyMetrics {
    #[expect(
        clippy::disallowed_macros,
        reason = "a part of the one place where metrics are made"
    )]
    pub fn register() -> Self {
        use metrics::{counter, describe_counter, describe_gauge, gauge};

        describe_counter!(
            "unstuck_panics_total",
            "Bugs that were contained, by where they struck."
        );
        describe_gauge!(
            "unstuck_breaker_open",
            "1 while detectors warn instead of terminating, since they would end too many sessions."
        );
        describe_counter!(
            "unstuck_terminations_withheld_total",
            "Terminations that the breaker made warnings of."
        );
        let zero = |counter: Counter| {
            counter.absolute(0);
            counter
        };
        let breaker_open = gauge!("unstuck_breaker_open");
        breaker_open.set(0);
        Self {
            panics: ["session", "stream", "call"]
                .map(|place| zero(counter!("unstuck_panics_total", "where" => place))),
            breaker_open,
            withheld_terminations: zero(counter!("unstuck_terminations_withheld_total")),
        }
    }

    pub fn count_panic(&self, site: PanicSite) {
        self.panics[site as usize].increment(1);
    }

    pub fn set_breaker_open(&self, is_open: bool) {
        self.breaker_open.set(f64::from(u8::from(is_open)));
    }

    pub fn count_withheld_termination(&self) {
        self.withheld_terminations.increment(1);
    }
}
