//! Which of the runs that are followed have passed a bar.

use super::{PeriodRun, PeriodTracker, mask_digit};
use crate::{
    domain::{LadderRung, RepetitionSettings},
    text::repetition::content::{self, LEVELS, UnitStats, is_continuation_byte},
};

/// A period that has passed a bar.
pub(in crate::text::repetition) struct PassedThreshold {
    pub bar: LadderRung,
    /// The unit from where the run began.
    pub unit: Vec<u8>,
    pub chars: u32,
    pub count: u32,
    /// Characters from the beginning of the first copy.
    pub span_chars: u64,
    pub is_exact: bool,
}

impl PeriodTracker {
    /// Looks at the runs that are due; the strongest bar that is passed newly.
    #[cold]
    pub fn check_due_runs(
        &mut self,
        fenced: bool,
        settings: &RepetitionSettings,
    ) -> Option<PassedThreshold> {
        self.is_due = false;
        let mut runs = std::mem::take(&mut self.runs);
        for run in &mut runs {
            let least = content::required_span_min(run.period, settings) - run.period;
            if run.unit.is_none() && run.digit_blind_len >= least {
                self.measure_unit(run);
            }
            run.due_at = run.due_at.max(least);
        }
        // Two may have come down to one primitive period.
        runs.sort_unstable_by_key(|run| (run.period, std::cmp::Reverse(run.reported)));
        runs.dedup_by_key(|run| run.period);
        let mut strongest: Option<PassedThreshold> = None;
        for run in &mut runs {
            let Some(threshold) = self.check_run(run, fenced, settings) else {
                continue;
            };
            if strongest
                .as_ref()
                .is_none_or(|other| other.bar < threshold.0)
            {
                strongest = Some(self.describe_threshold(run, threshold));
            }
        }
        self.runs = runs;
        strongest
    }

    /// The bar that a run has passed newly, and whether exactly. Sets when it is
    /// due again.
    fn check_run(
        &self,
        run: &mut PeriodRun,
        fenced: bool,
        settings: &RepetitionSettings,
    ) -> Option<(LadderRung, bool)> {
        let unit = run.unit.filter(|_| run.digit_blind_len >= run.due_at)?;
        let period = run.period;
        let need = |bar| content::required_span(bar, period, unit.chars, settings) - period;
        let exact = unit.thresholds(fenced).map(need);
        let blind = unit
            .digit_blind_thresholds(fenced)
            .map(|bars| bars.map(need));
        let top = |run: u32, needs: &[u32; 3]| needs.iter().rposition(|need| run >= *need);
        let by_exact = top(run.exact_len, &exact);
        let by_blind = blind
            .as_ref()
            .and_then(|needs| top(run.digit_blind_len, needs));
        let bytes_until_next = |now: u32, needs: &[u32; 3]| {
            let next = needs.iter().find(|need| **need > now);
            next.map_or(u32::MAX, |need| need - now)
        };
        let wait = bytes_until_next(run.exact_len, &exact)
            .min(blind.map_or(u32::MAX, |b| bytes_until_next(run.digit_blind_len, &b)));
        run.due_at = run.digit_blind_len.saturating_add(wait);
        let bar = LEVELS[by_exact.max(by_blind)?];
        if Some(bar) <= run.reported {
            return None;
        }
        run.reported = Some(bar);
        Some((bar, by_exact >= by_blind))
    }

    /// Measures the unit of a run, in its primitive period: a multiple may have
    /// been met first.
    fn measure_unit(&self, run: &mut PeriodRun) {
        let unit = self.tail(run.period as usize);
        let is_exact = run.exact_len == run.digit_blind_len;
        let same = |(a, b): (&u8, &u8)| a == b || (!is_exact && mask_digit(*a) == mask_digit(*b));
        let divides = |part: &usize| {
            unit.len().is_multiple_of(*part) && unit[*part..].iter().zip(&unit).all(same)
        };
        if let Some(part) = (1..=unit.len() / 2).find(divides) {
            let more = run.period - part as u32;
            run.period = part as u32;
            run.digit_blind_len += more;
            run.exact_len = match is_exact {
                true => run.digit_blind_len,
                false => self.run_lengths(part).0,
            };
        }
        run.unit = Some(UnitStats::measure(
            &unit[unit.len() - run.period as usize..],
        ));
    }

    fn describe_threshold(
        &self,
        run: &PeriodRun,
        (bar, exact): (LadderRung, bool),
    ) -> PassedThreshold {
        let period = run.period as usize;
        let length = if exact {
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
            bar,
            unit,
            chars,
            count: copies as u32,
            span_chars: copies as u64 * u64::from(chars) + rest_chars as u64,
            is_exact: exact,
        }
    }
}

impl PassedThreshold {
    /// The unit, its numbers being alike where they varied: however many digits
    /// a counter has, it is the same loop.
    pub fn normalized_unit(&self) -> Vec<u8> {
        let mut unit = self.unit.clone();
        if !self.is_exact {
            unit.dedup_by(|a, b| a.is_ascii_digit() && b.is_ascii_digit());
            unit.iter_mut().for_each(|byte| *byte = mask_digit(*byte));
            // A number that lies across the ends is one, too.
            if unit.len() > 1 && unit.first() == Some(&b'0') && unit.last() == Some(&b'0') {
                unit.pop();
            }
        }
        unit
    }
}
