//! Checks which runs have passed a threshold.
//!
//! When a run first becomes long enough for any threshold, its unit is reduced to the
//! primitive period and measured: what it consists of decides how often it must repeat
//! (see `content`). Reducing compares the unit with itself once per prime factor of its
//! length; it happens once per run. After each check the run is given the length at which
//! its next threshold is due. Checks, measurements and reports are paid for in advance.

use super::{PeriodRun, PeriodTracker, mask_digit};
use crate::{
    domain::{EscalationLevel, RepetitionSettings},
    text::{
        repetition::content::{self, LEVELS, UnitStats, is_continuation_byte},
        work_budget::steps,
    },
};

/// Units of work for a check: once, and for each run.
const CHECK_UNITS: u32 = 16;
const CHECK_UNITS_PER_RUN: u32 = 12;
/// Units of work for measuring a unit, and for reporting it, per byte of it.
const UNITS_PER_MEASURED_BYTE: u32 = 6;
const UNITS_PER_REPORTED_BYTE: u32 = 6;

/// A period that has passed a threshold.
pub(in crate::text::repetition) struct PassedThreshold {
    pub level: EscalationLevel,
    /// The unit, rotated to where the run began.
    pub unit: Vec<u8>,
    pub chars: u32,
    pub count: u32,
    /// Characters from the start of the first copy to here.
    pub span_chars: u64,
    pub is_exact: bool,
}

impl PeriodTracker {
    /// Checks the due runs. Returns the strongest threshold newly passed.
    #[cold]
    pub fn check_due_runs(
        &mut self,
        fenced: bool,
        settings: &RepetitionSettings,
    ) -> Option<PassedThreshold> {
        self.is_due = false;
        let units = CHECK_UNITS + CHECK_UNITS_PER_RUN * self.runs.len() as u32;
        if !self.budget.consume(self.total_bytes, units) {
            self.runs.clear();
            return None;
        }
        steps::count(8 * self.runs.len());
        let mut runs = std::mem::take(&mut self.runs);
        runs.retain_mut(|run| {
            let len_min = content::required_span_min(run.period, settings) - run.period;
            run.due_at = run.due_at.max(len_min);
            if run.unit.is_some() || run.digit_blind_len < len_min {
                return true;
            }
            // A run whose unit is too much work is dropped, and perhaps found again later.
            let is_affordable = self
                .budget
                .consume(self.total_bytes, run.period * UNITS_PER_MEASURED_BYTE);
            if is_affordable {
                self.measure_unit(run);
            }
            is_affordable
        });
        // Two runs may have been reduced to the same primitive period.
        runs.sort_unstable_by_key(|run| (run.period, std::cmp::Reverse(run.reported)));
        runs.dedup_by_key(|run| run.period);
        let mut strongest: Option<PassedThreshold> = None;
        for run in &mut runs {
            let Some((level, is_exact)) = self.check_run(run, fenced, settings) else {
                continue;
            };
            let is_stronger = strongest.as_ref().is_none_or(|other| other.level < level);
            let units = run.period * UNITS_PER_REPORTED_BYTE;
            if is_stronger && self.budget.consume(self.total_bytes, units) {
                strongest = Some(self.describe(run, level, is_exact));
            }
        }
        self.runs = runs;
        strongest
    }

    /// The level that a run has newly reached, and whether by exact copies. Sets when the
    /// run is due again.
    fn check_run(
        &self,
        run: &mut PeriodRun,
        fenced: bool,
        settings: &RepetitionSettings,
    ) -> Option<(EscalationLevel, bool)> {
        let unit = run.unit.filter(|_| run.digit_blind_len >= run.due_at)?;
        let period = run.period;
        // The length that each level needs, for exact and for digit-blind copies.
        let length_for =
            |threshold| content::required_span(threshold, period, unit.chars, settings) - period;
        let exact = unit.thresholds(fenced).map(length_for);
        let blind = unit
            .digit_blind_thresholds(fenced)
            .map(|thresholds| thresholds.map(length_for));
        // The highest level that each has reached.
        let by_exact = highest_reached(run.exact_len, &exact);
        let by_blind = blind
            .as_ref()
            .and_then(|lengths| highest_reached(run.digit_blind_len, lengths));
        // The next length at which either may reach another.
        let until_blind = blind.map_or(u32::MAX, |lengths| {
            bytes_until_next(run.digit_blind_len, &lengths)
        });
        let wait = bytes_until_next(run.exact_len, &exact).min(until_blind);
        run.due_at = run.digit_blind_len.saturating_add(wait);
        let level = LEVELS[by_exact.max(by_blind)?];
        if Some(level) <= run.reported {
            return None;
        }
        run.reported = Some(level);
        Some((level, by_exact >= by_blind))
    }

    /// Reduces the run to its primitive period, since a multiple may have been found
    /// first, and measures the unit.
    fn measure_unit(&self, run: &mut PeriodRun) {
        steps::count(6 * run.period as usize);
        let unit = self.tail(run.period as usize);
        let is_exact = run.exact_len == run.digit_blind_len;
        let part = if is_exact {
            primitive_period(&unit)
        } else {
            primitive_period(&unit.iter().copied().map(mask_digit).collect::<Vec<u8>>())
        };
        if part < unit.len() {
            let more = run.period - part as u32;
            run.period = part as u32;
            run.digit_blind_len += more;
            run.exact_len = if is_exact {
                run.digit_blind_len
            } else {
                self.run_lengths(part).0
            };
        }
        run.unit = Some(UnitStats::measure(
            &unit[unit.len() - run.period as usize..],
        ));
    }

    fn describe(&self, run: &PeriodRun, level: EscalationLevel, is_exact: bool) -> PassedThreshold {
        let period = run.period as usize;
        steps::count(2 * period);
        let length = if is_exact {
            run.exact_len
        } else {
            run.digit_blind_len
        };
        let span = length as usize + period;
        let mut unit = self.tail(period);
        let rest = &unit[period - span % period..];
        let rest_chars = rest
            .iter()
            .filter(|byte| !is_continuation_byte(**byte))
            .count();
        let chars = run.unit.map_or(run.period, |unit| unit.chars);
        let copies = span / period;
        unit.rotate_left(period - span % period);
        PassedThreshold {
            level,
            unit,
            chars,
            count: copies as u32,
            span_chars: copies as u64 * u64::from(chars) + rest_chars as u64,
            is_exact,
        }
    }
}

/// The length of the shortest part that the unit is a repetition of. It is the unit's
/// length divided by prime factors, as long as the quotient is a period. Takes a pass over
/// the unit for each prime factor, of which a period has at most eleven.
fn primitive_period(unit: &[u8]) -> usize {
    let is_period = |part: usize| unit[part..] == unit[..unit.len() - part];
    let (mut part, mut rest, mut factor) = (unit.len(), unit.len(), 2);
    while rest > 1 {
        if factor * factor > rest {
            factor = rest;
        }
        if rest.is_multiple_of(factor) {
            rest /= factor;
            if is_period(part / factor) {
                part /= factor;
            }
        } else {
            factor += 1;
        }
    }
    part
}

/// The highest level whose length is reached.
fn highest_reached(length: u32, needed: &[u32; 3]) -> Option<usize> {
    needed.iter().rposition(|needed| length >= *needed)
}

/// How many bytes are missing to the next level.
fn bytes_until_next(length: u32, needed: &[u32; 3]) -> u32 {
    let next = needed.iter().find(|needed| **needed > length);
    next.map_or(u32::MAX, |needed| needed - length)
}

impl PassedThreshold {
    /// The unit with each number replaced by one zero if the copies differ in them: a
    /// counter is the same loop however many digits it has.
    pub fn normalized_unit(&self) -> Vec<u8> {
        let mut unit = self.unit.clone();
        if !self.is_exact {
            unit.dedup_by(|a, b| a.is_ascii_digit() && b.is_ascii_digit());
            unit.iter_mut().for_each(|byte| *byte = mask_digit(*byte));
            // A number may also span the end and the start of the unit.
            if unit.len() > 1 && unit.first() == Some(&b'0') && unit.last() == Some(&b'0') {
                unit.pop();
            }
        }
        unit
    }
}
