//! The agent's own plan or todo list.

use memchr::memmem;

/// How a step is marked as done, as a value of JSON or in Markdown.
const DONE_MARKS: &[&str] = &["\"completed\"", "\"done\"", "[x]", "\u{2705}"];

/// Longer arguments hold more than a plan.
const PLAN_BYTES_MAX: usize = 16 * 1024;

/// The number of steps that a plan marks as done. Cost: four linear passes, for plans only.
pub(super) fn count_steps_done(args: &str) -> u16 {
    let bytes = args.as_bytes();
    let plan = bytes.get(..PLAN_BYTES_MAX).unwrap_or(bytes);
    let marks = DONE_MARKS.iter();
    let count: usize = marks
        .map(|mark| memmem::find_iter(plan, mark.as_bytes()).count())
        .sum();
    count.try_into().unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_are_done_are_counted() {
        let todos = r#"{"todos": [{"content": "a", "status": "completed"}, {"content": "the completed b", "status": "pending"}]}"#;
        assert_eq!(count_steps_done(todos), 1);
        assert_eq!(
            count_steps_done(r#"{"todos": "- [x] a\n- [x] b\n- [ ] c"}"#),
            2
        );
        assert_eq!(count_steps_done(""), 0);
    }
}
