//! What the audit log has of a session that is over.

use std::io::{self, Write};

use crate::{
    cli::{
        client::Client,
        style::DIM,
        text_format::{pluralize, sanitize},
    },
    pb::{self, Verdict},
};

/// The latest of its verdicts, oldest first.
#[derive(Default)]
pub(super) struct EarlierVerdicts {
    pub verdicts: Vec<Verdict>,
    /// How many more there are, before these.
    omitted: usize,
}

/// A page for a person: an id that is used for years may have thousands.
const VERDICTS_MAX: usize = 32;
const PAGE_SIZE: i32 = 1_000;

/// What cannot be had is told, and nothing else is kept back for it.
pub(super) async fn fetch(client: &Client, session_id: &str) -> EarlierVerdicts {
    let mut history = EarlierVerdicts::default();
    let mut request = pb::ListVerdictsRequest {
        session_id: session_id.to_owned(),
        page_size: PAGE_SIZE,
        ..Default::default()
    };
    loop {
        let page = client
            .call(request.clone(), async |mut service, request| {
                service.list_verdicts(request).await
            })
            .await;
        match page {
            Ok(page) => {
                history.push_page(page.verdicts);
                if page.next_page_token.is_empty() {
                    return history;
                }
                request.page_token = page.next_page_token;
            }
            Err(failure) => {
                anstream::eprintln!("unstuck: earlier verdicts: {failure}");
                return history;
            }
        }
    }
}

impl EarlierVerdicts {
    fn push_page(&mut self, verdicts: Vec<Verdict>) {
        self.verdicts.extend(verdicts);
        let excess = self.verdicts.len().saturating_sub(VERDICTS_MAX);
        self.verdicts.drain(..excess);
        self.omitted += excess;
    }

    /// Where the rest is.
    pub fn write_note(&self, out: &mut impl Write, session_id: &str) -> io::Result<()> {
        if self.omitted == 0 {
            return Ok(());
        }
        let more = pluralize(self.omitted.try_into().unwrap_or(u64::MAX), "verdict");
        let id = sanitize(session_id);
        writeln!(
            out,
            "  {DIM}{more} before these: unstuck verdicts --session {id}{DIM:#}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::style::strip_colours;

    #[test]
    fn of_many_the_last_are_kept_and_the_rest_is_counted() {
        let mut history = EarlierVerdicts::default();
        for page in 0..3 {
            let verdict = |n: usize| Verdict {
                verdict_id: format!("{:03}", 20 * page + n),
                ..Verdict::default()
            };
            history.push_page((0..20).map(verdict).collect());
        }
        assert_eq!(history.verdicts.len(), VERDICTS_MAX);
        assert_eq!(history.verdicts[0].verdict_id, "028");
        let mut out = Vec::new();
        history.write_note(&mut out, "a\x1bb").unwrap();
        let told = "  28 verdicts before these: unstuck verdicts --session ab\n\n";
        assert_eq!(strip_colours(&out), told);
    }
}
