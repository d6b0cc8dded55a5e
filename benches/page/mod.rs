//! The page that benchmarks write their tables to.

use std::{fs, io, path::Path};

/// Writes a text between the marks of this name on a page.
pub fn write(page: &Path, name: &str, text: &str) -> io::Result<()> {
    let old = fs::read_to_string(page)?;
    let (begin, end) = (
        format!("<!-- {name}: begin -->"),
        format!("<!-- {name}: end -->"),
    );
    let parts = old
        .split_once(&begin)
        .and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    let Some((before, after)) = parts else {
        return Err(io::Error::other(format!("the page has no marks {name:?}")));
    };
    fs::write(page, format!("{before}{begin}\n{text}{end}{after}"))
}
