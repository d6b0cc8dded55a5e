//! Which of the runs that are followed have passed a bar.

use super::{Followed, Periods, blind};
use crate::{
    domain::{Bar, RepeatSettings},
    text::repeats::content::{self, BARS, Unit, is_inner},
};

/// A period that has passed a bar.
pub(in crate::text::repeats) struct Passed {
    pub bar: Bar,
    /// The unit from where the run began.
    pub unit: Vec<u8>,
    pub chars: u32,
    pub count: u32,
    /// Characters from the beginning of the first copy.
    pub span_chars: u64,
    pub exact: bool,
}

impl Periods {
    /// Looks at the runs that are due; the strongest bar that is passed newly.
    #[cold]
    pub fn passed(&mut self, fenced: bool, settings: &RepeatSettings) -> Option<Passed> {
        self.is_due = false;
        let mut runs = std::mem::take(&mut self.followed);
        for run in &mut runs {
            let least = content::least_span(run.period, settings) - run.period;
            if run.unit.is_none() && run.blind >= least {
                self.measure(run);
            }
            run.due = run.due.max(least);
        }
        // Two may have come down to one primitive period.
        runs.sort_unstable_by_key(|run| (run.period, std::cmp::Reverse(run.said)));
        runs.dedup_by_key(|run| run.period);
        let mut strongest: Option<Passed> = None;
        for run in &mut runs {
            let Some(passed) = self.look(run, fenced, settings) else {
                continue;
            };
            if strongest.as_ref().is_none_or(|other| other.bar < passed.0) {
                strongest = Some(self.describe(run, passed));
            }
        }
        self.followed = runs;
        strongest
    }

    /// The bar that a run has passed newly, and whether exactly. Sets when it is
    /// due again.
    fn look(
        &self,
        run: &mut Followed,
        fenced: bool,
        settings: &RepeatSettings,
    ) -> Option<(Bar, bool)> {
        let unit = run.unit.filter(|_| run.blind >= run.due)?;
        let period = run.period;
        let need = |bar| content::span(bar, period, unit.chars, settings) - period;
        let exact = unit.bars(fenced).map(need);
        let blind = unit.blind_bars(fenced).map(|bars| bars.map(need));
        let top = |run: u32, needs: &[u32; 3]| needs.iter().rposition(|need| run >= *need);
        let by_exact = top(run.exact, &exact);
        let by_blind = blind.as_ref().and_then(|needs| top(run.blind, needs));
        let next = |now: u32, needs: &[u32; 3]| {
            let next = needs.iter().find(|need| **need > now);
            next.map_or(u32::MAX, |need| need - now)
        };
        let wait = next(run.exact, &exact).min(blind.map_or(u32::MAX, |b| next(run.blind, &b)));
        run.due = run.blind.saturating_add(wait);
        let bar = BARS[by_exact.max(by_blind)?];
        if Some(bar) <= run.said {
            return None;
        }
        run.said = Some(bar);
        Some((bar, by_exact >= by_blind))
    }

    /// Measures the unit of a run, in its primitive period: a multiple may have
    /// been met first.
    fn measure(&self, run: &mut Followed) {
        let unit = self.tail(run.period as usize);
        let is_exact = run.exact == run.blind;
        let same = |(a, b): (&u8, &u8)| a == b || (!is_exact && blind(*a) == blind(*b));
        let divides = |part: &usize| {
            unit.len().is_multiple_of(*part) && unit[*part..].iter().zip(&unit).all(same)
        };
        if let Some(part) = (1..=unit.len() / 2).find(divides) {
            let more = run.period - part as u32;
            run.period = part as u32;
            run.blind += more;
            run.exact = match is_exact {
                true => run.blind,
                false => self.runs(part).0,
            };
        }
        run.unit = Some(Unit::of(&unit[unit.len() - run.period as usize..]));
    }

    fn describe(&self, run: &Followed, (bar, exact): (Bar, bool)) -> Passed {
        let period = run.period as usize;
        let length = if exact { run.exact } else { run.blind };
        let span = length as usize + period;
        let mut unit = self.tail(period);
        let rest = &unit[period - span % period..];
        let of_rest = rest.iter().filter(|byte| !is_inner(**byte)).count();
        let chars = run.unit.map_or(run.period, |unit| unit.chars);
        let copies = span / period;
        unit.rotate_left(period - span % period);
        Passed {
            bar,
            unit,
            chars,
            count: copies as u32,
            span_chars: copies as u64 * u64::from(chars) + of_rest as u64,
            exact,
        }
    }
}

impl Passed {
    /// The unit, its numbers being alike where they varied: however many digits
    /// a counter has, it is the same loop.
    pub fn folded(&self) -> Vec<u8> {
        let mut unit = self.unit.clone();
        if !self.exact {
            unit.dedup_by(|a, b| a.is_ascii_digit() && b.is_ascii_digit());
            unit.iter_mut().for_each(|byte| *byte = blind(*byte));
            // A number that lies across the ends is one, too.
            if unit.len() > 1 && unit.first() == Some(&b'0') && unit.last() == Some(&b'0') {
                unit.pop();
            }
        }
        unit
    }
}
