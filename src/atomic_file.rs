//! Replaces a file as a whole: a reader sees its old contents or the new, never a part.
//!
//! Uses: no other module.

use std::{
    fs::{File, Permissions},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
};

/// Whether the new contents survive a power failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// They do, once `replace` has returned.
    Synced,
    /// They may be lost, and the old ones with them. For a file that is written often and
    /// whose reader treats an empty one as missing.
    Unsynced,
}

/// Writes a new file with exactly this mode and gives it the name of the old one, if there
/// is one. A file that cannot be written completely is removed, and the old one stays.
pub fn replace(path: &Path, contents: &[u8], mode: u32, durability: Durability) -> io::Result<()> {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    // Write it in the same directory: a rename works within one file system.
    let mut builder = tempfile::Builder::new();
    let mut temporary = builder.prefix(".").suffix(".tmp").tempfile_in(dir)?;
    temporary.write_all(contents)?;
    let file = temporary.as_file();
    file.set_permissions(Permissions::from_mode(mode))?;
    if durability == Durability::Synced {
        file.sync_all()?;
    }
    temporary.persist(path)?;
    match durability {
        // The new name is in the directory, which is synced too.
        Durability::Synced => File::open(dir)?.sync_all(),
        Durability::Unsynced => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
        entries
            .map(|entry| name(entry).into_string().unwrap())
            .collect()
    }

    #[test]
    fn a_file_is_replaced_with_its_mode_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        for (contents, mode, durability) in [
            ("first", 0o600, Durability::Synced),
            ("second", 0o664, Durability::Unsynced),
        ] {
            replace(&path, contents.as_bytes(), mode, durability).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), contents);
            let found = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(found & 0o777, mode);
        }
        assert_eq!(names(dir.path()), ["a"]);
    }

    #[test]
    fn a_file_that_cannot_be_replaced_stays_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::create_dir(&path).unwrap();
        replace(&path, b"text", 0o600, Durability::Synced).unwrap_err();
        assert!(path.is_dir());
        assert_eq!(names(dir.path()), ["a"]);
    }
}
