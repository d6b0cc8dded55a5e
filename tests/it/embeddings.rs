//! Turns compared with static embeddings: with a real model if the feature is built in; a
//! clear error if it is not, or if the model is missing.

use unstuck::engine::RunMode;

use crate::play::Player;

fn refusal(config: &str) -> String {
    match Player::with(config, RunMode::Replay) {
        Ok(_) => panic!("it loads: {config}"),
        Err(refused) => refused.to_string(),
    }
}

#[cfg(not(feature = "embeddings"))]
#[test]
fn a_build_without_models_refuses_the_key() {
    let error = refusal("[detect.similar_turns]\nmodel = 'models/small'");
    assert!(error.contains("`detect.similar_turns.model`"), "{error}");
    assert!(error.contains("--features embeddings"), "{error}");
}

#[cfg(feature = "embeddings")]
mod with_a_model {
    use std::{env, fs, path::Path};

    use serde_json::json;
    use tempfile::TempDir;
    use unstuck::domain::Action;

    use super::*;
    use crate::play::Line;

    /// The Python package `wordllama` carries a table of 32,000 tokens and its
    /// tokenizer; the variable names the folder where it is installed.
    const PACKAGE: &str = "UNSTUCK_WORDLLAMA";
    const TABLE: &str = "weights/l2_supercat_256.safetensors";
    const TOKENIZER: &str = "tokenizers/l2_supercat_tokenizer_config.json";

    fn model() -> TempDir {
        let package = env::var(PACKAGE).unwrap_or_else(|_| {
            panic!("{PACKAGE} must name the folder of the installed Python package wordllama")
        });
        let folder = TempDir::new().unwrap();
        for (from, to) in [(TABLE, "model.safetensors"), (TOKENIZER, "tokenizer.json")] {
            let from = Path::new(&package).join(from);
            fs::copy(&from, folder.path().join(to)).unwrap();
        }
        folder
    }

    fn config(folder: &Path) -> String {
        format!(
            "[detect.similar_turns]\nmodel = '{}'\nsimilarity = 0.6\n",
            folder.display()
        )
    }

    /// The same in other words; two of them share one word in five at most.
    const REWORDED: [&str; 4] = [
        "I will inspect the configuration loader first.",
        "First of all the config loader has to be inspected.",
        "The loader of the configuration needs inspection before anything else.",
        "Inspecting the loader for configuration files is the first step.",
    ];
    const DIFFERENT: [&str; 4] = [
        "The parser is fine, the bug is in the emitter.",
        "I have written the release notes for version two.",
        "The database has been moved to the new host.",
        "Your flight to Lisbon is booked.",
    ];

    /// A call before each turn, so that no rule about idle agents has a say; it
    /// brings nothing new, else saying the same of it would be no loop.
    fn session(turns: [&str; 4]) -> Vec<Line> {
        let line = |value| Line::parse(&value).unwrap();
        let step = |(n, text): (usize, &str)| {
            let args = format!("{{\"n\": {n}}}");
            let call = json!({"tool": "bash", "args_json": args, "result": "no such file"});
            [
                line(json!({"session_id": "s", "tool_call": call})),
                line(json!({"session_id": "s", "turn": {"role": "ROLE_AGENT", "text": text}})),
            ]
        };
        turns.into_iter().enumerate().flat_map(step).collect()
    }

    fn actions(config: &str, lines: &[Line]) -> Vec<Action> {
        // The calls find nothing four times, which is a loop of its own.
        let config = format!("{config}\n[detect.error_streak]\nwindow = 0\n");
        let mut player = Player::with(&config, RunMode::Replay).unwrap();
        let verdicts = player.verdicts(lines);
        verdicts
            .iter()
            .filter_map(|verdict| verdict.action)
            .collect()
    }

    #[test]
    fn a_paraphrase_is_similar_by_meaning_and_not_by_words() {
        let folder = model();
        let config = config(folder.path());
        assert_eq!(actions("", &session(REWORDED)), []);
        assert_eq!(actions(&config, &session(REWORDED)), [Action::Warn]);
        assert_eq!(actions(&config, &session(DIFFERENT)), []);
    }

    #[test]
    fn streamed_turns_are_compared_by_meaning_too() {
        let folder = model();
        let lines: Vec<Line> = REWORDED
            .iter()
            .enumerate()
            .flat_map(|(n, text)| {
                let (begin, end) = text.split_at(20);
                let delta = |text: &str, end: bool| {
                    json!({"delta": {"session_id": "s", "turn_id": format!("t{n}"), "text": text, "end_of_turn": end}})
                };
                let call = json!({"session_id": "s", "tool_call": {"tool": "bash", "args_json": format!("{{\"n\": {n}}}"), "result": "no such file"}});
                [call, delta(begin, false), delta(end, true)]
            })
            .map(|value| Line::parse(&value).unwrap())
            .collect();
        assert_eq!(actions(&config(folder.path()), &lines), [Action::Warn]);
    }

    #[test]
    fn profiles_may_share_a_model_and_not_name_two() {
        let folder = model();
        let config = config(folder.path());
        let shared = format!(
            "{config}[profiles.lenient.detect.similar_turns]\nmodel = '{}'",
            folder.path().display()
        );
        assert!(Player::with(&shared, RunMode::Replay).is_ok());
        let two = format!("{config}[profiles.lenient.detect.similar_turns]\nmodel = 'other'");
        let error = refusal(&two);
        assert!(error.contains("all profiles share one model"), "{error}");
    }

    #[test]
    fn a_missing_model_is_named_with_its_key() {
        let error = refusal("[detect.similar_turns]\nmodel = 'no/such/model'");
        assert!(error.contains("`detect.similar_turns.model`"), "{error}");
        assert!(
            error.contains("cannot read no/such/model/tokenizer.json"),
            "{error}"
        );
        let folder = model();
        fs::remove_file(folder.path().join("model.safetensors")).unwrap();
        let error = refusal(&config(folder.path()));
        assert!(error.contains("model.safetensors"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_model_is_refused() {
        let folder = model();
        let table = folder.path().join("model.safetensors");
        fs::write(&table, "no table").unwrap();
        let error = refusal(&config(folder.path()));
        assert!(error.contains("is not a static embedding model"), "{error}");
    }

    /// A table of safetensors: its header's length, its header, zeros.
    fn table(shape: &str, bytes: usize) -> Vec<u8> {
        let header = format!(
            "{{\"t\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[0,{bytes}]}}}}"
        );
        let length = (header.len() as u64).to_le_bytes();
        [&length[..], header.as_bytes(), &vec![0; bytes]].concat()
    }

    #[test]
    fn a_table_of_the_wrong_shape_is_refused_with_its_shape() {
        let folder = model();
        for (shape, bytes, why) in [
            (
                "[8]",
                32,
                "one table of tokens by dimensions is needed, found t [8]",
            ),
            ("[0,4]", 0, "its table is empty: [0, 4]"),
            ("[2,4]", 32, "2 rows, but tokenizer.json knows 32000 tokens"),
        ] {
            fs::write(folder.path().join("model.safetensors"), table(shape, bytes)).unwrap();
            let error = refusal(&config(folder.path()));
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_file_too_large_for_a_static_table_is_not_read() {
        let folder = model();
        let file = fs::File::create(folder.path().join("model.safetensors")).unwrap();
        file.set_len(512 * 1024 * 1024 + 1).unwrap();
        let error = refusal(&config(folder.path()));
        assert!(error.contains("at most 536870912"), "{error}");
    }
}
