//! The verdicts of a closed session in the audit log.

use std::{
    io::{self, Write},
    ops::ControlFlow,
};

use crate::{
    cli::{
        client::Client,
        style::DIM,
        text_format::{pluralize, sanitize},
    },
    pb::{self, Verdict},
};

/// The last verdicts, oldest first.
#[derive(Default)]
pub(super) struct EarlierVerdicts {
    pub verdicts: Vec<Verdict>,
    /// The number of older verdicts that are not in `verdicts`.
    omitted: usize,
}

/// A session id that is reused for years may have thousands.
const VERDICTS_MAX: usize = 32;
const PAGE_SIZE: i32 = 1_000;

/// Fetches the verdicts. An error is printed, and the page is shown without them.
pub(super) async fn fetch(client: &Client, session_id: &str) -> EarlierVerdicts {
    let mut earlier = EarlierVerdicts::default();
    let request = pb::ListVerdictsRequest {
        session_id: session_id.to_owned(),
        page_size: PAGE_SIZE,
        ..Default::default()
    };
    let fetched = client
        .for_each_verdict_page(request, |verdicts| {
            earlier.push_page(verdicts);
            Ok(ControlFlow::Continue(()))
        })
        .await;
    if let Err(error) = fetched {
        anstream::eprintln!("unstuck: cannot list earlier verdicts: {error}");
    }
    earlier
}

impl EarlierVerdicts {
    fn push_page(&mut self, verdicts: Vec<Verdict>) {
        self.verdicts.extend(verdicts);
        let excess = self.verdicts.len().saturating_sub(VERDICTS_MAX);
        self.verdicts.drain(..excess);
        self.omitted += excess;
    }

    /// Writes how to list the omitted verdicts.
    pub fn write_note(&self, out: &mut impl Write, session_id: &str) -> io::Result<()> {
        if self.omitted == 0 {
            return Ok(());
        }
        let more = pluralize(self.omitted.try_into().unwrap_or(u64::MAX), "verdict");
        let id = sanitize(session_id);
        writeln!(
            out,
            "  {DIM}{more} omitted: unstuck verdicts --session {id}{DIM:#}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::style::strip_colours;

    #[test]
    fn the_last_verdicts_are_kept_and_older_ones_are_counted() {
        let mut earlier = EarlierVerdicts::default();
        for page in 0..3 {
            let verdict = |n: usize| Verdict {
                verdict_id: format!("{:03}", 20 * page + n),
                ..Verdict::default()
            };
            earlier.push_page((0..20).map(verdict).collect());
        }
        assert_eq!(earlier.verdicts.len(), VERDICTS_MAX);
        assert_eq!(earlier.verdicts[0].verdict_id, "028");
        let mut out = Vec::new();
        earlier.write_note(&mut out, "a\x1bb").unwrap();
        let expected = "  28 verdicts omitted: unstuck verdicts --session ab\n\n";
        assert_eq!(strip_colours(&out), expected);
    }
}
