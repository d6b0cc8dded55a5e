//! Prints verdicts, one line each.

use std::io::{self, Write};

use anstream::AutoStream;

use crate::{
    cli::{
        output::{OutputFormat, terminal_dimensions, to_proto_json_line},
        rate::rating_name,
        style::{self, BOLD, DIM},
        text_format::{display_width, sanitize, truncate},
        time_format,
        verdict::{action_name, describe_verdict},
    },
    pb::Verdict,
};

/// The length of the longest action name.
const ACTION_COLUMNS: usize = 10;

struct ColumnWidths {
    /// Omit the year and the seconds.
    short_time: bool,
    detector: usize,
    /// In a wide line, a longer id pushes the rest to the right.
    session: usize,
}

/// Fits the longest built-in detector name.
const WIDE: ColumnWidths = ColumnWidths {
    short_time: false,
    detector: 18,
    session: 24,
};
/// Leaves space for a few words in 80 columns.
const NARROW: ColumnWidths = ColumnWidths {
    short_time: true,
    detector: 14,
    session: 20,
};
/// Below this width a wide line has no space for the description.
const NARROW_COLUMNS: usize = 100;

/// Prints and flushes each verdict immediately.
pub(in crate::cli) struct VerdictPrinter {
    output: OutputFormat,
    with_ids: bool,
}

impl VerdictPrinter {
    pub fn new(output: OutputFormat) -> Self {
        Self {
            output,
            with_ids: false,
        }
    }

    /// Prints the id of each verdict before its line.
    pub fn with_ids(self, with_ids: bool) -> Self {
        Self { with_ids, ..self }
    }

    pub fn print(&mut self, verdict: &Verdict) -> io::Result<()> {
        match self.output {
            OutputFormat::Table => {
                let width_max = terminal_dimensions().map(|(columns, _)| columns);
                let mut out = AutoStream::auto(io::stdout().lock());
                let mut width_max = width_max;
                if self.with_ids {
                    let id = sanitize(&verdict.verdict_id);
                    width_max = width_max.map(|width| width.saturating_sub(id.len() + 2));
                    write!(out, "{id}  ")?;
                }
                write_line(&mut out, verdict, width_max)?;
                out.flush()
            }
            OutputFormat::Json => {
                let mut out = io::stdout().lock();
                writeln!(out, "{}", to_proto_json_line(verdict)?)?;
                out.flush()
            }
        }
    }
}

/// `2026-03-11 09:15:10Z  WARN  read_loop  demo  read src/main.rs 3 times`
fn write_line(out: &mut impl Write, verdict: &Verdict, width_max: Option<usize>) -> io::Result<()> {
    // The texts of the columns.
    let mut time = verdict
        .time
        .as_ref()
        .map(time_format::format_date_time)
        .unwrap_or_default();
    let action = action_name(verdict.action());
    let style = style::action_style(verdict.action());
    let mut session = sanitize(&verdict.session_id);
    let agent = sanitize(&verdict.agent_id);
    if !agent.is_empty() {
        session += &format!(" ({agent})");
    }
    let mut description = sanitize(&describe_verdict(verdict));
    if verdict.shadow {
        description += " (shadow)";
    }
    if let Some(feedback) = &verdict.feedback {
        description += &format!(" (rated {})", rating_name(feedback.rating()));
    }
    // The widths, and the short forms for a narrow line.
    let width_max = width_max.unwrap_or(usize::MAX);
    let widths = if width_max < NARROW_COLUMNS {
        NARROW
    } else {
        WIDE
    };
    let mut detector = sanitize(&verdict.detector);
    if widths.short_time {
        // `03-11 09:15Z`
        time = time.chars().skip(5).take(11).chain(['Z']).collect();
        detector = truncate(&detector, widths.detector);
    }
    // The description is truncated to the remaining width, and the id if it would
    // take all of it.
    let prefix_width = display_width(&time) + 2 + ACTION_COLUMNS + 2 + widths.detector + 2;
    let session_width_max = if widths.short_time {
        widths.session
    } else {
        width_max.saturating_sub(prefix_width)
    };
    session = truncate(&session, session_width_max);
    let remaining =
        width_max.saturating_sub(prefix_width + display_width(&session).max(widths.session) + 2);
    description = truncate(&description, remaining);
    writeln!(
        out,
        "{DIM}{time}{DIM:#}  {style}{action:<ACTION_COLUMNS$}{style:#}  \
         {detector}{}  {BOLD}{session}{BOLD:#}{}  {description}",
        padding(&detector, widths.detector),
        padding(&session, widths.session),
    )
}

/// The blanks that fill `text` up to a width.
fn padding(text: &str, width: usize) -> String {
    " ".repeat(width.saturating_sub(display_width(text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cli::style::strip_colours, detect, pb};

    #[track_caller]
    fn check(verdict: &Verdict, width_max: Option<usize>, expected: &str) {
        let mut out = Vec::new();
        write_line(&mut out, verdict, width_max).unwrap();
        assert_eq!(strip_colours(&out), expected);
    }

    fn verdict() -> Verdict {
        Verdict {
            session_id: "demo".to_owned(),
            time: Some(pbjson_types::Timestamp {
                seconds: 1_773_220_510,
                nanos: 0,
            }),
            action: pb::Action::Warn.into(),
            detector: "read_loop".to_owned(),
            pattern: "read src/main.rs 3 times, nothing changed".to_owned(),
            ..Verdict::default()
        }
    }

    #[test]
    fn the_name_of_every_detector_fits_its_column() {
        for name in detect::NAMES {
            assert!(name.len() <= WIDE.detector, "{name}");
        }
    }

    #[test]
    fn a_verdict_is_a_line_truncated_to_the_width() {
        check(
            &verdict(),
            None,
            "2026-03-11 09:15:10Z  WARN        read_loop           demo                      \
             read src/main.rs 3 times, nothing changed\n",
        );
        check(
            &verdict(),
            Some(100),
            "2026-03-11 09:15:10Z  WARN        read_loop           demo                      \
             read src/main.rs 3 …\n",
        );
    }

    #[test]
    fn a_narrow_line_has_space_for_the_description_and_is_never_too_long() {
        check(
            &verdict(),
            Some(80),
            "03-11 09:15Z  WARN        read_loop       demo                  read src/main.r…\n",
        );
        let long = Verdict {
            session_id: "research/a-very-long-name-of-a-session".to_owned(),
            detector: "interleaved_repeat".to_owned(),
            ..verdict()
        };
        check(
            &long,
            Some(80),
            "03-11 09:15Z  WARN        interleaved_r…  research/a-very-lon…  read src/main.r…\n",
        );
        for width_max in 40..130 {
            let mut out = Vec::new();
            write_line(&mut out, &long, Some(width_max)).unwrap();
            let line = strip_colours(&out);
            let columns = display_width(line.trim_end());
            assert!(
                columns <= width_max.max(62),
                "{columns} of {width_max}: {line}"
            );
        }
    }

    #[test]
    fn a_verdict_without_pattern_is_described_by_its_evidence() {
        let member = |tool: &str| pb::Member {
            tool: tool.to_owned(),
            ..Default::default()
        };
        let bare = Verdict {
            pattern: String::new(),
            members: vec![member("read_file"), member("grep")],
            evidence: Some(pb::Evidence {
                count: 3,
                period: 2,
                ..Default::default()
            }),
            ..verdict()
        };
        assert_eq!(describe_verdict(&bare), "3 laps of 2 read_file, grep");
    }

    #[test]
    fn hostile_text_is_sanitized() {
        let hostile = Verdict {
            session_id: "a\x1b[2Jb".to_owned(),
            agent_id: "\u{9b}31m".to_owned(),
            pattern: "x\r\ny\u{202e}".to_owned(),
            ..verdict()
        };
        check(
            &hostile,
            None,
            "2026-03-11 09:15:10Z  WARN        read_loop           a[2Jb (31m)               x y\n",
        );
    }
}
