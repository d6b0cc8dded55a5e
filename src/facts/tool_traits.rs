//! What a tool's name says. Names are few and are looked at word by word, so each
//! is looked at once and what it says is kept in a number.

use super::{
    ack, sql,
    tools::{self, ToolClass},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ToolTraits {
    /// By the built-in table; `None`: a shell.
    pub class: Option<ToolClass>,
    /// Of a tool in no table: what it does, without a path and with one.
    pub guessed_class: [ToolClass; 2],
    /// It reads and writes under one name; its arguments say which.
    pub is_editor: bool,
    /// It only looks.
    pub is_read_only: bool,
    /// It acts on something and answers with a receipt.
    pub is_action: bool,
    pub runs_sql: bool,
}

/// A class takes so many bits; that of a shell is all ones.
const CLASS_BITS: u32 = 4;
const NO_CLASS: u64 = (1 << CLASS_BITS) - 1;

impl ToolTraits {
    pub fn from_name(tool: &str) -> Self {
        Self {
            class: tools::classify_built_in(tool),
            guessed_class: [false, true].map(|has_path| tools::guess_class(tool, has_path)),
            is_editor: tools::is_editor(tool),
            is_read_only: tools::is_read_only(tool),
            is_action: ack::has_action_verb(tool),
            runs_sql: sql::is_sql_tool(tool),
        }
    }

    pub fn pack(self) -> u64 {
        let classes = [
            self.class,
            Some(self.guessed_class[0]),
            Some(self.guessed_class[1]),
        ];
        let flags = [
            self.is_editor,
            self.is_read_only,
            self.is_action,
            self.runs_sql,
        ];
        let flags = flags
            .iter()
            .fold(0, |bits, flag| bits << 1 | u64::from(*flag));
        classes.iter().fold(flags, |bits, class| {
            bits << CLASS_BITS | class.map_or(NO_CLASS, |class| class as u64)
        })
    }

    pub fn unpack(bits: u64) -> Self {
        let class = |index: u32| {
            let number = bits >> (index * CLASS_BITS) & NO_CLASS;
            ToolClass::ALL.get(number as usize).copied()
        };
        let flag = |index: u32| bits >> (3 * CLASS_BITS + index) & 1 != 0;
        let class_or_other = |index| class(index).unwrap_or(ToolClass::Other);
        Self {
            class: class(2),
            guessed_class: [class_or_other(1), class_or_other(0)],
            is_editor: flag(3),
            is_read_only: flag(2),
            is_action: flag(1),
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
            let traits = ToolTraits::from_name(tool);
            assert_eq!(ToolTraits::unpack(traits.pack()), traits, "{tool}");
        }
        assert_eq!(ToolTraits::from_name("bash").class, None);
        assert!(
            ToolTraits::from_name("execute_sql").runs_sql
                && ToolTraits::from_name("send_email").is_action
        );
    }
}
