//! Pages of a list: how many entries, where one begins, and how large it may be.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use prost::Message;

use super::InvalidArgument;

const PAGE_SIZE_DEFAULT: usize = 100;
const PAGE_SIZE_MAX: usize = 1_000;
/// A page ends here, whatever `page_size` was requested. Clients accept messages of
/// 4 MiB by default, and 1,000 looping sessions are 7 MB.
const PAGE_BYTES_MAX: usize = 1024 * 1024;

pub(super) fn parse_page_size(requested: i32) -> Result<usize, InvalidArgument> {
    let size = usize::try_from(requested)
        .map_err(|_| InvalidArgument::new("page_size", "must not be negative"))?;
    Ok(match size {
        0 => PAGE_SIZE_DEFAULT,
        size => size.min(PAGE_SIZE_MAX),
    })
}

/// Takes messages up to `PAGE_BYTES_MAX`, and at least one.
pub(super) fn collect_page<M: Message>(messages: impl Iterator<Item = M>) -> Vec<M> {
    let mut page_bytes = 0;
    let mut page = Vec::new();
    for message in messages {
        page_bytes += message.encoded_len();
        if page_bytes > PAGE_BYTES_MAX && !page.is_empty() {
            break;
        }
        page.push(message);
    }
    page
}

/// The token of the page after the entry `last`. It is encoded so that clients
/// treat it as opaque.
pub(super) fn encode_page_token(last: &str) -> String {
    URL_SAFE_NO_PAD.encode(last)
}

/// The entry that the page begins after. An empty token is the first page.
pub(super) fn decode_page_token<T>(
    token: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, InvalidArgument> {
    if token.is_empty() {
        return Ok(None);
    }
    URL_SAFE_NO_PAD
        .decode(token)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .and_then(|last| parse(&last))
        .map(Some)
        .ok_or_else(|| InvalidArgument::new("page_token", "was not given out by this service"))
}
