//! The lanes of a timeline: columns in which equal calls are aligned.

use crate::pb::TimelineEntry;

/// More columns no longer make a pattern visible.
const LANES_MAX: usize = 8;

/// The events of one column.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Lane {
    /// Equal calls.
    Same(i32),
    /// The events of a loop that are not equal.
    Loop(String),
}

/// The columns of a timeline. Equal calls share one, and so do the members of a
/// loop that differ.
pub(in crate::cli) struct Lanes(Vec<Lane>);

/// The column and the mark of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) struct LanePosition {
    pub lane: usize,
    pub mark: char,
}

impl Lanes {
    pub fn new(timeline: &[TimelineEntry]) -> Self {
        let mut candidates: Vec<(Lane, LanePriority)> = Vec::new();
        for (order, entry) in timeline.iter().enumerate() {
            let Some(lane) = lane_of(entry) else { continue };
            let cited = !entry.loop_id.is_empty();
            match candidates.iter_mut().find(|(known, _)| *known == lane) {
                Some((_, priority)) => priority.add(cited),
                None => candidates.push((lane, LanePriority::new(order, cited))),
            }
        }
        // Events cited by a loop matter most, then frequent ones.
        candidates
            .sort_by_key(|(_, priority)| std::cmp::Reverse((priority.cited, priority.events)));
        candidates.truncate(LANES_MAX);
        candidates.sort_by_key(|(_, priority)| priority.order);
        Self(candidates.into_iter().map(|(lane, _)| lane).collect())
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn position(&self, entry: &TimelineEntry) -> Option<LanePosition> {
        let own = lane_of(entry)?;
        let lane = self.0.iter().position(|lane| *lane == own)?;
        let letters_before = self
            .0
            .iter()
            .take(lane)
            .filter(|lane| matches!(lane, Lane::Same(_)))
            .count();
        let mark = match own {
            Lane::Same(_) => ('A'..='Z').nth(letters_before).unwrap_or('?'),
            Lane::Loop(_) => '≈',
        };
        Some(LanePosition { lane, mark })
    }

    /// Whether any lane holds equal calls, and whether any holds unequal ones.
    pub fn kinds(&self) -> (bool, bool) {
        let mut lanes = self.0.iter();
        let has_equal = lanes.clone().any(|lane| matches!(lane, Lane::Same(_)));
        (has_equal, lanes.any(|lane| matches!(lane, Lane::Loop(_))))
    }
}

fn lane_of(entry: &TimelineEntry) -> Option<Lane> {
    match (entry.same, entry.loop_id.as_str()) {
        (1.., _) => Some(Lane::Same(entry.same)),
        (_, "") => None,
        (_, loop_id) => Some(Lane::Loop(loop_id.to_owned())),
    }
}

/// How important a lane is to show.
struct LanePriority {
    order: usize,
    events: usize,
    cited: bool,
}

impl LanePriority {
    fn new(order: usize, cited: bool) -> Self {
        Self {
            order,
            events: 1,
            cited,
        }
    }

    fn add(&mut self, cited: bool) {
        self.events += 1;
        self.cited |= cited;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry((same, loop_id): (i32, &str)) -> TimelineEntry {
        TimelineEntry {
            same,
            loop_id: loop_id.to_owned(),
            ..TimelineEntry::default()
        }
    }

    #[track_caller]
    fn check(events: &[(i32, &str)], expected: &str) {
        let timeline: Vec<_> = events.iter().map(|event| entry(*event)).collect();
        let lanes = Lanes::new(&timeline);
        let positions = timeline.iter().map(|entry| match lanes.position(entry) {
            Some(LanePosition { lane, mark }) => format!("{mark}{lane}"),
            None => "·".to_owned(),
        });
        assert_eq!(positions.collect::<Vec<_>>().join(" "), expected);
    }

    #[test]
    fn equal_calls_share_a_column() {
        check(
            &[(1, ""), (2, ""), (1, ""), (0, ""), (2, "")],
            "A0 B1 A0 · B1",
        );
    }

    #[test]
    fn unequal_members_of_a_loop_share_a_column() {
        check(&[(0, "x"), (0, "x"), (1, ""), (1, "")], "≈0 ≈0 A1 A1");
    }

    #[test]
    fn cited_lanes_are_kept_when_there_are_too_many() {
        let mut events: Vec<(i32, &str)> = (1..=9).flat_map(|n| [(n, ""), (n, "")]).collect();
        events.extend([(10, "x"), (10, "x")]);
        let timeline: Vec<_> = events.iter().map(|event| entry(*event)).collect();
        let lanes = Lanes::new(&timeline);
        assert_eq!(lanes.count(), LANES_MAX);
        assert_eq!(lanes.position(&entry((10, "x"))).map(|p| p.mark), Some('H'));
        assert_eq!(lanes.position(&entry((9, ""))), None);
    }
}
