//! The terminal colours of actions, statuses and lanes.

use anstyle::{AnsiColor, Style};

use crate::pb::{Action, SessionStatus};

pub(super) const PLAIN: Style = Style::new();
pub(super) const BOLD: Style = Style::new().bold();
pub(super) const DIM: Style = Style::new().dimmed();
pub(super) const RED: Style = AnsiColor::Red.on_default();

/// The colour of an action: from cyan for those that only notify to red for those that
/// stop the agent.
pub(super) fn action_style(action: Action) -> Style {
    let color = match action {
        Action::Unspecified | Action::Alert => AnsiColor::Cyan,
        Action::Warn => AnsiColor::Yellow,
        Action::Throttle | Action::Checkpoint | Action::Ask => AnsiColor::Magenta,
        Action::Block | Action::Break | Action::Escalate => AnsiColor::Red,
        Action::Terminate => AnsiColor::BrightRed,
    };
    color.on_default().bold()
}

/// Bold for a session that needs attention, dim for a closed one.
pub(super) fn status_style(status: SessionStatus) -> Style {
    match status {
        SessionStatus::Looping => AnsiColor::Yellow.on_default().bold(),
        SessionStatus::Active => AnsiColor::Green.on_default(),
        SessionStatus::Terminated => AnsiColor::Red.on_default(),
        SessionStatus::Quarantined => AnsiColor::Magenta.on_default().bold(),
        SessionStatus::Ended | SessionStatus::Unspecified => DIM,
    }
}

/// The colour of a column of the timeline. Neighbours differ.
pub(super) fn lane_style(lane: usize) -> Style {
    const COLORS: [AnsiColor; 6] = [
        AnsiColor::Cyan,
        AnsiColor::Magenta,
        AnsiColor::Yellow,
        AnsiColor::Green,
        AnsiColor::Blue,
        AnsiColor::Red,
    ];
    let color = COLORS.get(lane % COLORS.len()).copied();
    color.map_or(BOLD, |color| color.on_default().bold())
}

/// Removes colour sequences and leaves every other control character.
#[cfg(test)]
pub(super) fn strip_colours(page: &[u8]) -> String {
    let page = std::str::from_utf8(page).unwrap();
    let mut pieces = page.split('\x1b');
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let after_parameters = piece
            .strip_prefix('[')
            .map(|sequence| sequence.trim_start_matches(|c: char| c.is_ascii_digit()));
        match after_parameters.and_then(|rest| rest.strip_prefix('m')) {
            Some(text) => out += text,
            None => out = out + "\x1b" + piece,
        }
    }
    out
}
