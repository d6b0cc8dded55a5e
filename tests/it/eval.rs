//! `unstuck eval`, as a person or a pipeline runs it.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::CommandOutput;

const TRACES: &str = "examples/labelled/traces.ndjson";
const LABELS: &str = "examples/labelled/labels.jsonl";

impl CommandOutput {
    #[track_caller]
    fn figures(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "{}", self.out);
        let line: Value = serde_json::from_str(&self.out).unwrap();
        line["eval"].clone()
    }

    #[track_caller]
    fn assert_prints(&self, part: &str) {
        assert!(self.out.contains(part), "{part:?} is not in\n{}", self.out);
    }
}

fn eval(args: &[&str]) -> CommandOutput {
    let output = Command::new(env!("CARGO_BIN_EXE_unstuck"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .arg("eval")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    output.into()
}

/// The traces and labels of one test.
struct Set {
    dir: TempDir,
}

impl Set {
    fn new(traces: &str, labels: &str) -> Self {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("traces.ndjson"), traces).unwrap();
        fs::write(dir.path().join("labels.jsonl"), labels).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> String {
        let path: &Path = self.dir.path();
        path.join(name).to_str().unwrap().to_owned()
    }

    fn eval(&self, more: &[&str]) -> CommandOutput {
        let (traces, labels) = (self.path("traces.ndjson"), self.path("labels.jsonl"));
        eval(&[&[traces.as_str(), "--labels", labels.as_str()], more].concat())
    }

    #[track_caller]
    fn figures(&self) -> Value {
        self.eval(&["--output", "json"]).ends_with(0).figures()
    }
}

fn call(session: &str, tool: &str, argument: &str) -> String {
    let args = json!({ "q": argument }).to_string();
    let result = format!("the answer to {argument}");
    let call = json!({"tool": tool, "args_json": args, "outcome": "OUTCOME_OK", "result": result});
    json!({"session_id": session, "tool_call": call}).to_string() + "\n"
}

/// `before` different calls, then `repeats` of one: a loop from event `before`,
/// which is found with its third call, at event `before + 2`.
fn session(id: &str, before: usize, repeats: usize) -> String {
    let different = (0..before).map(|n| call(id, "look", &format!("{n} of {before}")));
    let same = std::iter::repeat_n(call(id, "look", "again"), repeats);
    different.chain(same).collect()
}

fn label(session: &str, first_loop_event: Option<u32>) -> String {
    let label = match first_loop_event {
        Some(event) => json!({"session_id": session, "loop": true, "first_loop_event": event}),
        None => json!({"session_id": session, "loop": false}),
    };
    label.to_string() + "\n"
}

/// Four loops, three of them found, 2, 4 and -1 events from their labels;
/// three healthy sessions, one of them reported; ten events without a label
/// and one verdict among them.
fn tiny() -> Set {
    let traces = [
        session("l1", 4, 3),
        session("l2", 4, 3),
        session("l3", 4, 3),
        session("l4", 6, 1),
        session("h1", 5, 1),
        session("h2", 2, 3),
        session("h3", 3, 1),
        session("u1", 4, 1),
        session("u2", 2, 3),
    ];
    let labels = [
        label("l1", Some(4)),
        label("l2", Some(2)),
        label("l3", Some(7)),
        label("l4", Some(3)),
        label("h1", None),
        label("h2", None),
        label("h3", None),
    ];
    Set::new(&traces.concat(), &labels.concat())
}

#[test]
fn the_metrics_match_their_definitions() {
    let figures = tiny().figures();
    let mut labelled = figures["labelled"].clone();
    let fields = labelled.as_object_mut().unwrap();
    for interval in ["precision_interval", "recall_interval"] {
        let interval = fields.remove(interval).unwrap();
        let bounds = ["low", "high"].map(|end| interval[end].as_f64().unwrap());
        assert!(bounds[0] < 0.75 && 0.75 < bounds[1], "{bounds:?}");
    }
    let expected = json!({
        "sessions": 7, "loops": 4, "healthy": 3,
        "true_positives": 3, "false_positives": 1, "false_negatives": 1, "true_negatives": 2,
        "precision": 0.75, "recall": 0.75, "f1": 0.75,
        "delay": {"sessions": 3, "early": 1, "median": 2.0, "p90": 4},
    });
    assert_eq!(labelled, expected);
    assert_eq!(figures["sessions"], 9);
    assert_eq!(figures["events"], 7 * 4 + 6 + 5 + 4 + 10);
    assert_eq!(figures["bad_lines"], 0);
}

#[test]
fn sessions_without_a_label_give_a_rate() {
    let figures = tiny().figures();
    let expected = json!({
        "sessions": 2, "events": 10, "found_sessions": 1, "verdicts": 1,
        "verdicts_per_1000_events": 100.0,
    });
    assert_eq!(figures["unlabelled"], expected);
    let of = &figures["detectors"]["exact_repeat"];
    assert_eq!(of["unlabelled_verdicts"], 1);
    assert_eq!(of["verdicts_per_1000_events"], 100.0);
}

#[test]
fn each_detector_has_its_own_metrics() {
    let repeats = session("a", 0, 3);
    let says = |id: &str| {
        let turn = json!({"role": "ROLE_AGENT", "text": "I will look into it now."});
        (json!({"session_id": id, "turn": turn}).to_string() + "\n").repeat(4)
    };
    let traces = [repeats, says("b"), says("c")].concat();
    let labels = [label("a", Some(0)), label("b", Some(1)), label("c", None)].concat();
    let figures = Set::new(&traces, &labels).figures();
    let of = |name: &str| {
        let of = &figures["detectors"][name];
        let names = ["true_positives", "false_positives", "precision", "recall"];
        names.map(|figure| of[figure].clone())
    };
    assert_eq!(
        of("exact_repeat"),
        [json!(1), json!(0), json!(1.0), json!(0.5)]
    );
    assert_eq!(
        of("similar_turns"),
        [json!(1), json!(1), json!(0.5), json!(0.5)]
    );
    assert_eq!(
        figures["detectors"]["similar_turns"]["delay"]["median"],
        2.0
    );
    assert_eq!(
        of("edit_revert"),
        [json!(0), json!(0), Value::Null, json!(0.0)]
    );
    assert_eq!(figures["labelled"]["recall"], 1.0);
}

#[test]
fn a_detector_that_agrees_with_another_counts_too() {
    let read = |n: usize| {
        let args = json!({"path": "a", "note": n}).to_string();
        json!({"session_id": "s", "tool_call": {
            "tool": "read_file", "args_json": args, "outcome": "OUTCOME_OK", "result": "x",
        }})
        .to_string()
            + "\n"
    };
    let traces = read(0).repeat(3);
    let figures = Set::new(&traces, &label("s", Some(0))).figures();
    let detectors = figures["detectors"].as_object().unwrap().values();
    let found = detectors.filter(|of| of["true_positives"] == 1).count();
    assert_eq!(figures["labelled"]["true_positives"], 1);
    assert!(found > 1, "{figures}");
}

#[test]
fn sources_are_distinguished_by_the_beginning_of_the_session_id() {
    let traces = session("a/1", 0, 4) + &session("b/1", 3, 1);
    let labels = label("a/1", Some(0)) + &label("b/1", None);
    let set = Set::new(&traces, &labels);
    let sources = &set.figures()["sources"];
    assert_eq!(sources["a"]["true_positives"], 1);
    assert_eq!(
        (&sources["b"]["sessions"], &sources["b"]["healthy"]),
        (&json!(1), &json!(1))
    );
    set.eval(&["--split"]).ends_with(0).assert_prints("source");
    let whole = set.eval(&[]).ends_with(0);
    assert!(!whole.out.contains("source"), "{}", whole.out);
}

#[test]
fn an_undefined_metric_is_null_in_json_and_a_dash_in_text() {
    let set = Set::new(&session("h", 3, 1), &label("h", None));
    let figures = set.figures();
    for figure in ["precision", "recall", "f1"] {
        assert_eq!(figures["labelled"][figure], Value::Null);
    }
    let delay = json!({"sessions": 0, "early": 0, "median": null, "p90": null});
    assert_eq!(figures["labelled"]["delay"], delay);
    assert_eq!(
        figures["unlabelled"]["verdicts_per_1000_events"],
        Value::Null
    );
    set.eval(&[])
        .ends_with(0)
        .assert_prints("Precision –, recall –, F1 –.");
}

#[test]
fn sessions_where_label_and_verdict_disagree_are_listed() {
    let labels = label("l4", Some(3)).replace('}', r#","kind":"slow","why":"a reason"}"#);
    let set = tiny();
    let others = fs::read_to_string(set.path("labels.jsonl")).unwrap();
    let others = others.replace(&label("l4", Some(3)), &labels);
    fs::write(set.path("labels.jsonl"), others).unwrap();
    let figures = set.figures();
    let expected = json!([
        {"session_id": "l4", "first_loop_event": 3, "kind": "slow", "why": "a reason"}
    ]);
    assert_eq!(figures["misses"], expected);
    let alarm = &figures["false_alarms"][0];
    assert_eq!(alarm["session_id"], "h2");
    assert_eq!(alarm["detector"], "exact_repeat");
    assert_eq!(alarm["event_index"], 4);
    let ran = set.eval(&[]).ends_with(0);
    ran.assert_prints(
        "False alarms: labelled no loop, but found (1)\n  h2\n    exact_repeat at event 4: ",
    );
    ran.assert_prints("not found (1)\n  l4\n    from event 3: slow, a reason\n");
}

#[test]
fn a_long_list_is_truncated_unless_requested_in_full() {
    let ids: Vec<String> = (10..35).map(|n| format!("s{n}")).collect();
    let traces: String = ids.iter().map(|id| session(id, 0, 3)).collect();
    let labels: String = ids.iter().map(|id| label(id, None)).collect();
    let set = Set::new(&traces, &labels);
    let cut = set.eval(&[]).ends_with(0);
    cut.assert_prints("  s29\n");
    cut.assert_prints("… 5 more; --list shows all");
    assert!(!cut.out.contains("s30"), "{}", cut.out);
    let all = set.eval(&["--list"]).ends_with(0);
    all.assert_prints("  s34\n");
    assert!(!all.out.contains("more;"), "{}", all.out);
    assert_eq!(set.figures()["false_alarms"].as_array().unwrap().len(), 25);
}

#[test]
fn a_label_without_a_session_is_reported_and_not_counted() {
    let set = Set::new(
        &session("a", 0, 3),
        &(label("a", Some(0)) + &label("gone", Some(2)) + &label("lost", None)),
    );
    let figures = set.figures();
    assert_eq!(figures["missing_sessions"], json!(["gone", "lost"]));
    assert_eq!(figures["labelled"]["sessions"], 1);
    assert_eq!(figures["labelled"]["recall"], 1.0);
    set.eval(&[])
        .assert_prints("labelled, but not in the traces (2)\n  gone\n  lost\n");
}

#[test]
fn an_invalid_label_is_a_usage_error_with_its_line() {
    let bad = [
        "x",
        "[]",
        "{}",
        r#"{"session_id":"b"}"#,
        r#"{"session_id":"b","loop":"yes"}"#,
        r#"{"session_id":"b","loop":true,"first_loop_event":-1}"#,
        r#"{"session_id":"b","loop":true,"first_loop_event":1.5}"#,
        r#"{"session_id":"","loop":true}"#,
        r#"{"session_id":"a","loop":true}"#,
    ];
    for line in bad {
        let labels = format!("{}\n{line}\n", label("a", None));
        let set = Set::new(&session("a", 0, 3), &labels);
        let ran = set.eval(&[]).ends_with(2);
        assert_eq!(ran.out, "", "{line}");
        let prefix = format!("unstuck: {}:3: ", set.path("labels.jsonl"));
        assert!(ran.err.starts_with(&prefix), "{line}: {}", ran.err);
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    }
}

#[test]
fn labels_are_required_and_must_exist() {
    eval(&[TRACES]).ends_with(2);
    eval(&["--labels", LABELS]).ends_with(2);
    let ran = eval(&[TRACES, "--labels", "nowhere.jsonl"]).ends_with(2);
    assert!(ran.err.contains("cannot read nowhere.jsonl"), "{}", ran.err);
    let ran = eval(&["nowhere.ndjson", "--labels", LABELS]).ends_with(2);
    assert!(
        ran.err.contains("cannot read nowhere.ndjson"),
        "{}",
        ran.err
    );
    eval(&[TRACES, "--labels", LABELS, "--profile", "none"]).ends_with(2);
}

#[test]
fn an_invalid_trace_line_is_reported_and_skipped() {
    let set = Set::new(
        &("x\n".to_owned() + &session("a", 0, 3)),
        &label("a", Some(0)),
    );
    let ran = set.eval(&["--output", "json"]).ends_with(0);
    assert!(ran.err.contains("traces.ndjson:1: "), "{}", ran.err);
    assert_eq!(ran.figures()["bad_lines"], 1);
    assert_eq!(ran.figures()["labelled"]["recall"], 1.0);
}

#[test]
fn a_minimum_metric_sets_the_exit_code() {
    let check = |args: &[&str], code: i32, message: &str| {
        let ran = tiny().eval(args).ends_with(code);
        assert!(ran.err.contains(message), "{}", ran.err);
        assert!(code == 2 || !ran.out.is_empty());
    };
    check(&["--min-precision", "0.75", "--min-recall", ".75"], 0, "");
    check(
        &["--min-precision", "0.76"],
        1,
        "the precision is 0.7500, the minimum is 0.76",
    );
    check(
        &["--min-recall", "1"],
        1,
        "the recall is 0.7500, the minimum is 1",
    );
    check(&["--min-recall", "1.1"], 2, "from 0 to 1");
    check(&["--min-precision", "NaN"], 2, "from 0 to 1");
    let nothing = Set::new(&session("h", 3, 1), &label("other", Some(1)));
    let ran = nothing.eval(&["--min-recall", "0"]).ends_with(1);
    assert!(ran.err.contains("the recall is undefined"), "{}", ran.err);
}

#[test]
fn shadow_verdicts_find_nothing() {
    let set = tiny();
    let config = set.path("shadow.toml");
    fs::write(&config, "[profiles.default]\nmode = \"shadow\"\n").unwrap();
    let ran = set.eval(&["--config", &config, "--output", "json"]);
    let figures = ran.ends_with(0).figures();
    assert_eq!(figures["labelled"]["true_positives"], 0);
    assert_eq!(figures["unlabelled"]["verdicts"], 0);
    assert_eq!(figures["shadow_verdicts"], 5);
    let ran = set.eval(&["--config", &config]);
    ran.assert_prints("5 shadow verdicts not counted");
}

#[test]
fn a_setting_changes_the_metrics() {
    let set = tiny();
    let config = set.path("off.toml");
    let off = unstuck::detect::NAMES
        .iter()
        .map(|name| format!("[detect.{name}]\nenabled = false\n"));
    fs::write(&config, off.collect::<String>()).unwrap();
    let ran = set.eval(&["--config", &config, "--output", "json"]);
    assert_eq!(ran.ends_with(0).figures()["labelled"]["recall"], 0.0);
}

#[test]
fn json_has_these_keys_and_all_detectors() {
    let figures = tiny().figures();
    let keys: Vec<&str> = figures.as_object().unwrap().keys().map(|k| &**k).collect();
    let mut expected = vec![
        "events",
        "sessions",
        "bad_lines",
        "shadow_verdicts",
        "labelled",
        "unlabelled",
        "detectors",
        "sources",
        "false_alarms",
        "misses",
        "missing_sessions",
    ];
    expected.sort_unstable();
    let sorted = {
        let mut keys = keys;
        keys.sort_unstable();
        keys
    };
    assert_eq!(sorted, expected);
    for name in unstuck::detect::NAMES {
        assert!(figures["detectors"][name].is_object(), "{name}");
    }
}

#[test]
fn two_runs_print_the_same_bytes() {
    for output in ["json", "table"] {
        let args = [TRACES, "--labels", LABELS, "--output", output];
        assert_eq!(eval(&args).ends_with(0).out, eval(&args).out);
    }
}

#[test]
fn hostile_text_cannot_control_a_terminal() {
    let hostile = "w\u{1b}[2J\u{202e}\u{9b}31m\r\nx";
    let missed = "missed\"<b>";
    let labels = [
        json!({"session_id": missed, "loop": true, "kind": hostile, "why": hostile}),
        json!({"session_id": "alarm\\n'\"", "loop": false, "kind": hostile, "why": hostile}),
    ];
    let labels: String = labels.iter().map(|label| format!("{label}\n")).collect();
    let looped = call("alarm\\n'\"", "look", hostile).repeat(3);
    let set = Set::new(&(call(missed, "look", "a") + &looped), &labels);
    for output in ["json", "table"] {
        let ran = set.eval(&["--output", output]).ends_with(0);
        ran.assert_prints("[2J");
        let steers = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!ran.out.contains(steers), "{:?}", ran.out);
    }
    let figures = set.figures();
    assert_eq!(figures["misses"][0]["why"], hostile, "JSON tells it all");
    let bad = Set::new(&looped, "{\"session_id\":\"a\\u001b[2J\",\"loop\":true}\n");
    assert!(!bad.eval(&[]).ends_with(2).err.contains('\u{1b}'));
}

#[test]
fn help_has_the_definitions() {
    let help = eval(&["--help"]).ends_with(0);
    for word in [
        "found ",
        "precision  TP / (TP + FP)",
        "recall ",
        "delay ",
        "per 1,000 ",
    ] {
        help.assert_prints(word);
    }
}

/// The page on tuning shows the output of the program, without detectors that found
/// nothing.
#[test]
fn the_page_on_tuning_shows_the_real_output() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/tuning.md")).unwrap();
    let shown = eval(&[TRACES, "--labels", LABELS]).ends_with(0).out;
    let (table, rest) = shown.split_once("No verdict from ").unwrap();
    let (_, lists) = rest.split_once("\n\n").unwrap();
    for part in [table, lists] {
        assert!(page.contains(part), "docs/tuning.md: show\n{part}");
    }
}
