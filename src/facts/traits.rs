//! What a tool's name says. Names are few and are looked at word by word, so each
//! is looked at once and what it says is kept in a number.

use super::{
    ack, sql,
    tools::{self, Class},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Traits {
    /// By the built-in table; `None`: a shell.
    pub class: Option<Class>,
    /// Of a tool in no table: what it does, without a path and with one.
    pub guessed: [Class; 2],
    /// It reads and writes under one name; its arguments say which.
    pub is_editor: bool,
    /// It only looks.
    pub looks: bool,
    /// It acts on something and answers with a receipt.
    pub acts: bool,
    pub runs_sql: bool,
}

/// A class takes so many bits; that of a shell is all ones.
const CLASS_BITS: u32 = 4;
const NO_CLASS: u64 = (1 << CLASS_BITS) - 1;

impl Traits {
    pub fn of(tool: &str) -> Self {
        Self {
            class: tools::built_in(tool),
            guessed: [false, true].map(|has_path| tools::guess(tool, has_path)),
            is_editor: tools::is_editor(tool),
            looks: tools::looks(tool),
            acts: ack::acts(tool),
            runs_sql: sql::runs(tool),
        }
    }

    pub fn packed(self) -> u64 {
        let classes = [self.class, Some(self.guessed[0]), Some(self.guessed[1])];
        let flags = [self.is_editor, self.looks, self.acts, self.runs_sql];
        let flags = flags
            .iter()
            .fold(0, |bits, flag| bits << 1 | u64::from(*flag));
        classes.iter().fold(flags, |bits, class| {
            bits << CLASS_BITS | class.map_or(NO_CLASS, |class| class as u64)
        })
    }

    pub fn unpacked(bits: u64) -> Self {
        let class = |place: u32| {
            let number = bits >> (place * CLASS_BITS) & NO_CLASS;
            Class::ALL.get(number as usize).copied()
        };
        let flag = |place: u32| bits >> (3 * CLASS_BITS + place) & 1 != 0;
        let known = |place| class(place).unwrap_or(Class::Other);
        Self {
            class: class(2),
            guessed: [known(1), known(0)],
            is_editor: flag(3),
            looks: flag(2),
            acts: flag(1),
            runs_sql: flag(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked() {
        for tool in [
            "bash",
            "read_file",
            "mcp__fs__Edit",
            "str_replace_editor",
            "execute_sql",
            "send_email",
            "getWeather",
            "wait_for_job",
            "",
        ] {
            let traits = Traits::of(tool);
            assert_eq!(Traits::unpacked(traits.packed()), traits, "{tool}");
        }
        assert_eq!(Traits::of("bash").class, None);
        assert!(Traits::of("execute_sql").runs_sql && Traits::of("send_email").acts);
    }
}
