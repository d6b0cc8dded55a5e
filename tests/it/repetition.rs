//! Repetitive text is found, and text that only looks repetitive is not. The texts in
//! `texts/` were written for these tests.

use std::{fs, path::Path, sync::Arc};

use unstuck::{
    domain::{Action, Verdict},
    engine::RunMode,
    pb::{self, Channel},
};

use crate::{
    harness::{piece, pieces, *},
    play::{Line, Player},
};

/// The text in deltas of at most `bytes` bytes, or of one character.
fn deltas(turn: &str, text: &str, bytes: usize) -> Vec<Line> {
    let mut rest = text;
    let mut deltas = Vec::new();
    while !rest.is_empty() {
        let end = rest.floor_char_boundary(bytes);
        let end = if end == 0 {
            rest.ceil_char_boundary(1)
        } else {
            end
        };
        deltas.push(Line::Delta(piece("s", turn, &rest[..end])));
        rest = &rest[end..];
    }
    deltas
}

/// The verdicts on a text, each with the number of characters streamed so far.
fn stream_text(player: &mut Player, text: &str, bytes: usize) -> Vec<(usize, Arc<Verdict>)> {
    stream_turn(player, "t", text, bytes)
}

fn stream_turn(
    player: &mut Player,
    turn: &str,
    text: &str,
    bytes: usize,
) -> Vec<(usize, Arc<Verdict>)> {
    let mut chars = 0;
    let mut verdicts = Vec::new();
    for line in deltas(turn, text, bytes) {
        if let Line::Delta(delta) = &line {
            chars += delta.text.chars().count();
        }
        let answer = player.play(&line);
        verdicts.extend(answer.and_then(|answer| Some((chars, answer.verdict?))));
    }
    verdicts
}

fn actions(verdicts: &[(usize, Arc<Verdict>)]) -> Vec<Action> {
    verdicts
        .iter()
        .filter_map(|(_, verdict)| verdict.effective_action())
        .collect()
}

// ---- Ordinary text

fn lines(count: u32, line: impl Fn(u32) -> String) -> String {
    (0..count).map(line).collect()
}

/// A simple generator with the same numbers on every machine.
fn figure(n: u32) -> u32 {
    n.wrapping_mul(2_654_435_761)
        .rotate_left(13)
        .wrapping_mul(40_503)
        >> 8
}

const NAMES: [&str; 12] = [
    "parser", "lexer", "store", "engine", "router", "cache", "session", "policy", "config",
    "metrics", "console", "outbox",
];

fn name(n: u32) -> &'static str {
    NAMES[n as usize % NAMES.len()]
}

/// Generated text of the kinds that agents write.
fn generated_texts() -> Vec<(&'static str, String)> {
    let base64 = |n: u32| {
        const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        char::from(DIGITS[figure(n) as usize % 64]).to_string()
    };
    vec![
        ("JSON records", lines(80, |n| format!("  {{\"id\": {n}, \"status\": \"ok\", \"message\": \"processed\", \"retries\": 0}},\n"))),
        ("JSON, deep", lines(60, |n| format!("    {{\n      \"name\": \"{}\",\n      \"enabled\": true,\n      \"limits\": {{\n        \"max\": {},\n        \"min\": 0\n      }}\n    }},\n", name(n), figure(n) % 900))),
        ("CSV", lines(200, |n| format!("2024-03-{:02},{},{}.{:02},EUR,booked\n", n % 28 + 1, figure(n) % 90_000, figure(n + 1) % 500, n % 100))),
        ("a table", lines(60, |n| format!("| `{}` | {} | {} | yes | no |\n", name(n), figure(n) % 100, figure(n + 7) % 100))),
        ("a table of marks", lines(40, |n| format!("| {} | ✅ | ✅ | ❌ | ✅ |\n", name(n)))),
        ("a matrix", lines(60, |n| lines(16, |m| format!("{} ", u32::from(n == m))) + "\n")),
        ("a log", lines(120, |n| format!("2024-05-01T12:{:02}:{:02}Z INFO {} request served path=/api/v1/{} status=200 took={}ms\n", n / 60, n % 60, name(n), figure(n) % 4_000, figure(n + 3) % 90))),
        ("a log of one event", lines(60, |n| format!("[{:02}:{:02}:00] worker-{} heartbeat ok\n", n / 60, n % 60, n % 4))),
        ("test output", lines(90, |n| format!("test {}::tests::case_{} ... ok\n", name(n), figure(n) % 1_000)) + "\ntest result: ok. 90 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n"),
        ("pytest output", lines(20, |n| format!("tests/test_{}.py ....................                      [{:>3}%]\n", name(n), n * 5))),
        ("a progress bar", lines(50, |n| format!("\rDownloading [{:<50}] {:>3}%", "=".repeat(n as usize), n * 2))),
        ("batches", lines(60, |n| format!("Batch {} of 500 done.\n", n + 1))),
        ("files done", lines(60, |n| format!("- [x] Migrated src/{}/{}_{n}.rs\n", name(n), name(n / 5)))),
        ("a diff", lines(60, |n| format!("-    let {0} = {0}_old({n});\n+    let {0} = {0}_new({n});\n", name(n)))),
        ("a rule", format!("Title\n{}\nText below the rule.\n{}\n", "=".repeat(120), "-".repeat(200))),
        ("base64", lines(6_000, base64)),
        ("zeros in base64", format!("iVBORw0KGgo{}SUhEUg{}", "A".repeat(220), lines(2_000, base64))),
        ("hex", lines(100, |n| format!("{:08x}: {:08x} {:08x} {:08x} {:08x}\n", n * 16, figure(n), figure(n + 1), figure(n + 2), figure(n + 3)))),
        ("zeroed memory", lines(40, |n| format!("{:08x}: 0000 0000 0000 0000 0000 0000 0000 0000  ................\n", n * 16))),
        ("a numbered list", lines(60, |n| format!("{}. Check the {} and write down what {} says about {}.\n", n + 1, name(n), name(n + 5), name(figure(n))))),
        ("findings by file", lines(30, |n| format!("### src/{}/{n}.rs\n- Status: reviewed\n- Issues: none found\n- Action: no change needed\n\n", name(n)))),
        ("HTML", lines(60, |n| format!("  <li class=\"item\"><a href=\"/{0}/{n}\">{0} {n}</a></li>\n", name(n)))),
        ("CSS", lines(60, |n| format!(".{}-{n} {{\n  margin: 0;\n  padding: 0;\n  color: #{:06x};\n}}\n", name(n), figure(n) % 0xff_ffff))),
        ("YAML", lines(60, |n| format!("  - name: {}-{n}\n    image: registry.example.com/{0}:1.{}\n    restart: always\n", name(n), n % 9))),
        ("assertions in a fence", format!("```rust\n{}```\n", lines(40, |n| format!("    assert_eq!(parse(\"{n}\"), Ok({n}));\n")))),
        ("equal lines in a fence", format!("```js\n{}```\n", "app.use(express.json());\n".repeat(12))),
        ("a translated array", format!("[{}]", lines(120, |n| format!("\"Seite {n} von 120\", ")))),
        ("imports", lines(60, |n| format!("import {{ {0} }} from \"./{0}/{n}\";\n", name(n)))),
        ("a chorus", "We are on our way, and the road is long,\nwe have bread and wine, and we know the song.\n".repeat(2)),
        ("emphasis", "No, no, no! Very, very, very good. Ha ha ha ha ha. Wait, wait, wait.".to_owned()),
        ("a poll in words", lines(6, |n| format!("The build is still running, {} minutes so far. ", n * 2))),
        ("Korean", lines(30, |n| format!("{n}번 항목은 {}에 관한 것이고, 확인한 결과 {}개의 문제가 있었습니다.\n", name(n), figure(n) % 50))),
        ("emoji", lines(80, |n| ["🙂", "🚀", "👩‍👩‍👧‍👦", "✅", "é", "漢"][figure(n) as usize % 6].to_owned())),
    ]
}

/// Text from this repository: prose, code and data in many languages.
fn corpus_texts() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<_> = ["tests/it/texts", "docs", "src/engine", "examples"]
        .iter()
        .flat_map(|folder| fs::read_dir(root.join(folder)).unwrap())
        .map(|file| file.unwrap().path())
        .collect();
    files.extend(
        [
            "README.md",
            "src/config/default.toml",
            "proto/unstuck/v1/event.proto",
            "scripts/test",
            "LICENSE",
        ]
        .map(|file| root.join(file)),
    );
    files.sort();
    let read = |path: &std::path::PathBuf| {
        let name = path.strip_prefix(root).unwrap().display().to_string();
        Some((name, fs::read_to_string(path).ok()?))
    };
    files
        .iter()
        .filter(|path| path.is_file())
        .filter_map(read)
        .collect()
}

#[test]
fn ordinary_text_gets_no_verdict_however_it_is_cut() {
    let generated_texts = generated_texts()
        .into_iter()
        .map(|(kind, text)| (kind.to_owned(), text));
    let texts: Vec<_> = generated_texts.chain(corpus_texts()).collect();
    let bytes: usize = texts.iter().map(|(_, text)| text.len()).sum();
    println!("{} texts, {} KB", texts.len(), bytes / 1_024);
    for (kind, text) in &texts {
        // Enough of each to fill every window.
        for (bytes, most) in [(1, 4_500), (7, 10_000), (400, 30_000)] {
            let text = &text[..text.floor_char_boundary(most)];
            let verdicts = stream_text(&mut Player::new(), text, bytes);
            let patterns: Vec<_> = verdicts.iter().map(|(at, v)| (at, &v.pattern)).collect();
            assert!(
                verdicts.is_empty(),
                "{kind}, {bytes} bytes at a time: {patterns:?}"
            );
        }
    }
}

// ---- Loops

/// A kind of loop: the text before it, and the loop.
fn loops() -> Vec<(&'static str, String, String)> {
    let fresh = lines(20, |n| {
        format!(
            "The {} talks to the {} by way of {}, which is {} years old. ",
            name(n),
            name(figure(n)),
            name(figure(n + 1)),
            figure(n) % 70
        )
    });
    let shuffled = |parts: &[&str], count: u32| {
        lines(count, |n| {
            format!("{} ", parts[figure(n) as usize % parts.len()])
        })
    };
    let paragraph = "First the importer reads every row and keeps the header aside. Then each value is trimmed, the decimal comma is replaced, and the currency symbol goes to its own column. After that the dates are parsed with three formats in order, and a row whose date cannot be parsed is written to the reject file with its line number. ";
    let plans = [
        "I should check the configuration first.",
        "Wait, the configuration was fine before.",
        "Maybe the test itself is wrong.",
        "Let me look at the test once more.",
        "But the test passed yesterday.",
        "So it must be the configuration after all.",
        "Actually I already looked at the test file.",
    ];
    let farewells = ["Bye.", "Stop.", "Done.", "End.", "Okay.", "Goodbye.", "..."];
    let of = |unit: &str, count: usize| unit.repeat(count);
    vec![
        (
            "a sentence",
            fresh.clone(),
            of("I will now check the file again to be sure. ", 30),
        ),
        (
            "a sentence at once",
            String::new(),
            of("Let me try a different approach to this problem. ", 30),
        ),
        ("a paragraph", fresh.clone(), of(paragraph, 8)),
        (
            "a long section",
            fresh.clone(),
            of(
                &format!(
                    "{paragraph}{}",
                    "The totals are summed per month and per account, rounded at the very end only, and compared with the control total of the bank. If they differ by more than one cent the whole batch is refused. "
                ),
                8,
            ),
        ),
        (
            "a period of 2,000",
            String::new(),
            of(
                &lines(36, |n| {
                    format!(
                        "{} before {} and then {} or {}. ",
                        name(figure(n)),
                        name(figure(n + 50)),
                        figure(n),
                        name(figure(n + 90))
                    )
                }),
                6,
            ),
        ),
        ("a word", fresh.clone(), of("exactly ", 200)),
        ("a short word", fresh.clone(), of("no ", 300)),
        ("a syllable", fresh.clone(), of("ha", 600)),
        ("a letter", fresh.clone(), of("a", 1_000)),
        ("an exclamation mark", fresh.clone(), of("!", 2_000)),
        (
            "a special token",
            String::new(),
            of("0.0.1 <|tool_call_end|>\n\n", 60),
        ),
        (
            "lines of a chant",
            String::new(),
            of(
                "I will not output any text.\n  I am done.\n  I will wait.\n",
                20,
            ),
        ),
        (
            "a flip-flop",
            String::new(),
            of(
                "I'll write the schema first.\n\nWait, I'll write the .env first.\n\nActually, ",
                12,
            ),
        ),
        (
            "Japanese",
            String::new(),
            of(
                "設定ファイルをもう一度確認してから、次の手順に進みます。",
                20,
            ),
        ),
        (
            "Chinese",
            String::new(),
            of("让我再检查一下这个文件的内容。", 40),
        ),
        (
            "Cyrillic",
            fresh.clone(),
            of("Сейчас я ещё раз проверю этот файл. ", 30),
        ),
        ("emoji", String::new(), of("Yay 🎉🎉 we did it 🚀 ", 40)),
        (
            "a counter",
            String::new(),
            lines(60, |n| {
                format!("Attempt {n} failed, I will try the same command again.\n")
            }),
        ),
        (
            "a clock",
            String::new(),
            lines(60, |n| {
                format!("At 12:{n:02} the build was still not done, so I wait some more.\n")
            }),
        ),
        ("shuffled sentences", String::new(), shuffled(&plans, 120)),
        ("farewells", String::new(), shuffled(&farewells, 300)),
        (
            "sentences with fresh ones between",
            fresh.clone(),
            lines(120, |n| {
                if n % 5 == 4 {
                    format!("Perhaps {} has to do with {}. ", name(figure(n)), figure(n))
                } else {
                    format!("{} ", plans[figure(n) as usize % plans.len()])
                }
            }),
        ),
        (
            "a list item",
            String::new(),
            of("- Review the code for possible improvements\n", 30),
        ),
        (
            "a line of code",
            String::new(),
            of("    self.assertEqual(result.status_code, 200)\n", 60),
        ),
        (
            "a fence that never ends",
            "```python\n".to_owned(),
            of("print(\"hello, world\")\n", 300),
        ),
        (
            "code and talk",
            String::new(),
            of(
                "Here is the fixed version:\n\n```python\nreturn value + 1\n```\n\nWait, that is not right. ",
                20,
            ),
        ),
        (
            "a JSON object",
            String::new(),
            of("{\"tool\": \"read_file\", \"path\": \"a.txt\"}\n", 60),
        ),
        ("a rule", fresh.clone(), of("-", 3_000)),
        ("blank lines", fresh, of("\n", 3_000)),
        (
            "hidden characters between",
            String::new(),
            of(
                "I am\u{200b} sure that this is\u{200d} the right file. ",
                30,
            ),
        ),
    ]
}

/// Run with `--nocapture` to see the delays.
#[test]
fn every_kind_of_loop_is_found() {
    println!(
        "{:<36}{:>8}  what is said",
        "characters until it is found", ""
    );
    let loops = loops();
    assert!(loops.len() >= 20);
    for (kind, before, text) in loops {
        let verdicts = stream_text(&mut Player::new(), &format!("{before}{text}"), 1);
        let (at, verdict) = verdicts
            .first()
            .unwrap_or_else(|| panic!("{kind} is not found"));
        let delay = at - before.chars().count();
        println!("{kind:<36}{delay:>8}  {}", verdict.pattern);
        assert_eq!(&*verdict.detector, "repetition");
        assert_eq!(verdict.effective_action(), Some(Action::Warn), "{kind}");
    }
}

// ---- Verdicts and their positions

const SENTENCE: &str = "I will now check the file again to be sure. ";

#[test]
fn a_loop_is_warned_about_then_interrupted_then_escalated() {
    for bytes in [1, 7, 44] {
        let verdicts = stream_text(&mut Player::new(), &SENTENCE.repeat(60), bytes);
        assert_eq!(
            actions(&verdicts),
            [Action::Warn, Action::Break, Action::Escalate],
            "{bytes} at a time"
        );
    }
}

#[test]
fn a_verdict_says_what_is_repeated_how_often_and_since_when() {
    let text = format!("Let me see: {}", SENTENCE.repeat(9));
    let verdicts = stream_text(&mut Player::new(), &text, 1);
    let (_, first) = &verdicts[0];
    assert_eq!(
        first.pattern,
        "wrote the same 44 characters 3 times in a row, from character 11 on: \
         \"I will now check the file again to be sure.\""
    );
    assert_eq!((first.evidence.count, first.evidence.period), (3, 44));
    assert_eq!(first.evidence.excerpt, SENTENCE.trim());
    assert_eq!(first.event_index, None, "there is no event yet");
    let (_, second) = &verdicts[1];
    assert_eq!(second.effective_action(), Some(Action::Break));
    assert!(second.correction.contains(SENTENCE.trim()));
    assert_eq!(first.loop_id, second.loop_id);
}

#[test]
fn the_same_loop_in_a_later_text_is_one_rung_higher() {
    let mut player = Player::new();
    let short = SENTENCE.repeat(4);
    for (turn, expected) in [("1", Action::Warn), ("2", Action::Break)] {
        let verdicts = stream_turn(&mut player, turn, &short, 5);
        assert_eq!(actions(&verdicts), [expected]);
        let end = player.play(&Line::Delta(last_delta("s", turn, "")));
        assert!(end.is_some_and(|end| end.verdict.is_none()));
    }
    // The text before was either ended or abandoned.
    for turn in ["3", "4"] {
        let verdicts = stream_turn(&mut player, turn, &short, 5);
        assert_eq!(actions(&verdicts), [Action::Escalate]);
    }
}

#[test]
fn a_tool_call_restarts_the_text() {
    let mut player = Player::new();
    let half = SENTENCE.repeat(3);
    for n in 0..6 {
        let verdicts = stream_text(&mut player, &half[..120], 9);
        assert_eq!(actions(&verdicts), []);
        let path = format!("{{\"path\": \"{n}\"}}");
        player.event(&call("read_file", &path, "text").of("s"));
    }
}

#[test]
fn the_text_and_its_reasoning_are_checked_separately() {
    let mut player = Player::new();
    let mut interleaved = Vec::new();
    for n in 0..3 {
        for channel in [Channel::Visible, Channel::Reasoning] {
            let text = if n == 2 { &SENTENCE[..20] } else { SENTENCE };
            interleaved.push(Line::Delta(pb::Delta {
                channel: channel.into(),
                ..piece("s", "t", text)
            }));
        }
    }
    assert!(player.verdicts(&interleaved).is_empty());
    let looping: Vec<_> = deltas("t", &SENTENCE.repeat(9), 7)
        .into_iter()
        .map(|line| match line {
            Line::Delta(delta) => Line::Delta(pb::Delta {
                channel: Channel::Reasoning.into(),
                ..delta
            }),
            line @ Line::Event(_) => line,
        })
        .collect();
    let verdicts = player.verdicts(&looping);
    assert_eq!(verdicts[0].effective_action(), Some(Action::Warn));
}

#[test]
fn a_whole_turn_is_checked_and_a_streamed_turn_is_not_checked_twice() {
    let mut player = Player::new();
    let whole = turn(&SENTENCE.repeat(8)).named("whole").of("s");
    let verdict = player.event(&whole).verdict.expect("a loop");
    assert_eq!(
        (&*verdict.detector, verdict.effective_action()),
        ("repetition", Some(Action::Break))
    );
    assert_eq!(verdict.event_index, Some(0));

    let mut player = Player::new();
    let verdicts = stream_text(&mut player, &SENTENCE.repeat(4), 7);
    assert_eq!(actions(&verdicts), [Action::Warn]);
    let end = player.play(&Line::Delta(last_delta("s", "t", "")));
    assert!(end.is_some_and(|end| end.verdict.is_none()));
    let again = player.event(&turn(&SENTENCE.repeat(4)).named("t").of("s"));
    assert!(again.duplicate && again.verdict.is_none());
}

#[test]
fn in_shadow_mode_a_text_is_not_restarted() {
    let shadow = "[profiles.default]\nmode = \"shadow\"";
    let mut player = Player::with(shadow, RunMode::Replay).unwrap();
    let verdicts = stream_text(&mut player, &SENTENCE.repeat(60), 7);
    let actions: Vec<_> = verdicts
        .iter()
        .filter_map(|(_, verdict)| verdict.action)
        .collect();
    assert_eq!(actions, [Action::Warn, Action::Break, Action::Escalate]);
    assert_eq!(
        verdicts[2].1.evidence.count, 18,
        "800 characters from the beginning"
    );
}

#[test]
fn repetition_state_exists_only_while_a_text_is_streamed() {
    let mut player = Player::new();
    player.play(&Line::Delta(last_delta("s", "t", "x")));
    let before = player.engine.state_bytes();
    for line in deltas(
        "t",
        &lines(900, |n| format!("{} {n} ", name(figure(n)))),
        40,
    ) {
        player.play(&line);
    }
    let held = player.engine.state_bytes() - before;
    assert!((4_096..15 * 1_024).contains(&held), "{held} bytes");
    player.play(&Line::Delta(last_delta("s", "t", "")));
    let left = player.engine.state_bytes() - before;
    assert!(left < 4_096, "{left} bytes");
}

/// The state of a session with five turns of 200 words and one that is being
/// streamed after them.
#[test]
fn a_session_that_streams_after_five_turns_stays_small() {
    // Of some 600 words, as many as a report has.
    let word = |n: u32| {
        let letter = |i: u32| char::from(b'a' + (figure(n % 600 + 1_000 * i) % 26) as u8);
        (0..2 + n % 7).map(letter).collect::<String>() + " "
    };
    let words = |from: u32, count: u32| lines(count, |n| word(figure(from + n)));
    let mut player = Player::new();
    for n in 0..5 {
        let turn = format!("t{n}");
        let lines = deltas(&turn, &words(n * 10_000, 200), 7);
        assert_eq!(player.verdicts(&lines).len(), 0);
        player.play(&Line::Delta(last_delta("s", &turn, "")));
    }
    let turns = player.engine.state_bytes();
    let text = words(70_000, 6_000);
    let mut held = |text: &str| {
        assert_eq!(player.verdicts(&deltas("t", text, 7)).len(), 0);
        player.engine.state_bytes()
    };
    let (begun, full) = (held(&text[..1_200]), held(&text[1_200..]));
    println!("{turns} bytes after five turns, {begun} with another, {full} with a long one");
    // The accounting adds an eighth for the overhead of the allocator.
    let counted = |kib: usize| kib * 1_024 / 8 * 9;
    assert!(begun <= counted(15), "{begun} bytes");
    assert!(full <= counted(22), "{full} bytes");
}

#[tokio::test]
async fn the_stream_answers_in_the_middle_of_a_text() {
    let server = Server::start().await;
    let mut stream = server.deltas().await;
    // Each response is read before the next delta, because an unread verdict is
    // replaced by a stronger one. The fourth copy passes the first threshold, the
    // eighth the next.
    for expected in [pb::Action::Warn, pb::Action::Break] {
        for part in SENTENCE.repeat(4).as_bytes().chunks(7) {
            let part = std::str::from_utf8(part).unwrap();
            stream.send(pieces([piece("s", "t", part)])).await;
        }
        let answer = stream.receive().await;
        assert_eq!(answer.action(), expected);
        assert_eq!((&*answer.turn_id, answer.end_of_turn), ("t", false));
        assert_eq!(answer.verdict.unwrap().event_index, -1);
    }
}
