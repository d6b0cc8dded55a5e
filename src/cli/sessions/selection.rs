//! The selection of sessions to list: the filter, the number and the order.

use std::{cmp::Ordering, collections::HashMap};

use super::SessionTableRow;
use crate::{
    cli::text_format::format_labels,
    pb::{self, Session, SessionStatus},
};

#[derive(Debug, clap::Args)]
pub(super) struct SelectionArgs {
    /// Only this many sessions, the first in the order.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// The order [default: severity].
    #[arg(long, value_enum, value_name = "ORDER")]
    sort: Option<SortOrder>,
    /// Only sessions with all of these words in their id, labels, profile, or the detector
    /// or pattern of their last verdict.
    #[arg(long, value_name = "WORDS", default_value = "")]
    search: String,
}

impl SelectionArgs {
    pub fn to_selector(&self) -> SessionSelector {
        SessionSelector {
            limit: self
                .limit
                .map(|limit| limit.try_into().unwrap_or(usize::MAX)),
            sort: self.sort,
            search: SearchWords::new(&self.search),
            ..Default::default()
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum SortOrder {
    /// Worst first: looping by action, trend and waste; then active; then closed.
    #[default]
    Severity,
    /// The highest cost of loops first.
    Cost,
    /// Oldest first.
    Age,
    /// Most recently seen first.
    LastSeen,
    Id,
}

impl SortOrder {
    pub fn compare(self, a: &SessionTableRow, b: &SessionTableRow) -> Ordering {
        let order = match self {
            Self::Severity => a.cmp_worst_first(b),
            Self::Cost => a.cmp_cost_first(b),
            Self::Age => a.cmp_oldest_first(b),
            Self::LastSeen => a.cmp_last_seen_first(b),
            Self::Id => Ordering::Equal,
        };
        order.then_with(|| a.id().cmp(b.id()))
    }
}

/// Words that must all occur, in any case.
#[derive(Clone, Debug, Default)]
pub(in crate::cli) struct SearchWords(Vec<String>);

impl SearchWords {
    pub fn new(text: &str) -> Self {
        let words = text.split_whitespace();
        Self(words.map(str::to_lowercase).collect())
    }

    /// Whether each word occurs in one of the texts.
    pub fn match_any<'a>(&self, texts: impl IntoIterator<Item = &'a str>) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let texts: Vec<String> = texts.into_iter().map(str::to_lowercase).collect();
        let occurs = |word: &String| texts.iter().any(|text| text.contains(word.as_str()));
        self.0.iter().all(occurs)
    }
}

/// The sessions to list.
#[derive(Clone, Default)]
pub(in crate::cli) struct SessionSelector {
    pub status: Option<SessionStatus>,
    pub labels: HashMap<String, String>,
    pub limit: Option<usize>,
    pub sort: Option<SortOrder>,
    pub search: SearchWords,
}

impl SessionSelector {
    pub fn to_request(&self) -> pb::ListSessionsRequest {
        /// The service's maximum.
        const PAGE_SIZE: i32 = 1_000;
        pb::ListSessionsRequest {
            page_size: PAGE_SIZE,
            page_token: String::new(),
            status: self.status.unwrap_or_default().into(),
            labels: self.labels.clone(),
            ..pb::ListSessionsRequest::default()
        }
    }

    pub fn limit(&self) -> usize {
        self.limit.unwrap_or(usize::MAX)
    }

    pub fn matches(&self, session: &Session) -> bool {
        let labels = format_labels(&session.labels);
        let mut texts = vec![session.session_id.as_str(), session.profile.as_str()];
        texts.extend(labels.iter().map(String::as_str));
        let last = session.termination.as_ref();
        if let Some(last) = last.or(session.last_verdicts.last()) {
            texts.extend([last.detector.as_str(), last.pattern.as_str()]);
        }
        self.search.match_any(texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_must_occur_in_some_text_whatever_its_case() {
        let words = SearchWords::new("  WEB refund ");
        assert!(words.match_any(["support/Refund-4471", "team=web"]));
        assert!(!words.match_any(["support/refund-4471", "team=ops"]));
        assert!(SearchWords::default().match_any([]));
    }
}
