//! Texts that are meant to cost as much as possible: for the counts of instructions
//! (`benches/counts.rs`) and for the tests of the bounds (`tests/it/work.rs`).

#![allow(dead_code, reason = "each user needs some of it")]

use std::fmt::Write;

/// The number of texts.
pub const COUNT: usize = 200;

/// A small generator (SplitMix64), so that the texts are the same on every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// Mostly a small number, less than 2 to the power of `bits`.
    pub fn small(&mut self, bits: usize) -> usize {
        let bits = self.below(bits);
        self.below(1 << bits)
    }

    pub fn pick<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        items[self.below(items.len())]
    }

    pub fn chars(&mut self, alphabet: &str, count: usize) -> String {
        let alphabet: Vec<char> = alphabet.chars().collect();
        (0..count)
            .map(|_| alphabet[self.below(alphabet.len())])
            .collect()
    }
}

/// All texts, by name, each of about this many bytes.
pub fn texts(bytes: usize) -> Vec<(String, String)> {
    let mut texts: Vec<(String, String)> = named(bytes)
        .into_iter()
        .map(|(name, text)| (name.to_owned(), text))
        .collect();
    for seed in 0.. {
        if texts.len() == COUNT {
            break;
        }
        let genes = Genes::random(&mut Random(seed));
        texts.push((format!("{genes:?}"), genes.text(bytes)));
    }
    for (_, text) in &mut texts {
        text.truncate(text.floor_char_boundary(bytes));
    }
    texts
}

/// Ordinary sentences, none of which comes twice.
pub fn prose(bytes: usize) -> String {
    const WORDS: &[&str] = &[
        "the",
        "service",
        "reads",
        "a",
        "file",
        "and",
        "writes",
        "its",
        "result",
        "to",
        "disk",
        "before",
        "it",
        "answers",
        "because",
        "nothing",
        "may",
        "be",
        "lost",
        "when",
        "power",
        "fails",
        "however",
        "we",
        "could",
        "also",
        "keep",
        "some",
        "of",
        "these",
        "records",
        "in",
        "memory",
        "until",
        "there",
        "is",
        "more",
        "work",
        "than",
        "time",
        "configuration",
        "parser",
        "worker",
        "message",
        "between",
        "several",
        "processes",
    ];
    let mut random = Random(1);
    let mut text = String::new();
    while text.len() < bytes {
        for _ in 0..6 + random.below(12) {
            text.push_str(random.pick(WORDS));
            text.push(' ');
        }
        text.pop();
        text.push_str(". ");
    }
    text.truncate(bytes);
    text
}

/// Texts of one kind each.
#[allow(clippy::too_many_lines, reason = "a list is as long as it is")]
fn named(bytes: usize) -> Vec<(&'static str, String)> {
    let mut random = Random(7);
    let random = &mut random;
    vec![
        ("binary digits", random.chars("01", bytes)),
        ("digits", random.chars("0123456789", bytes)),
        ("digits in groups of ten", groups(random, 10, " ", bytes)),
        ("digits in groups of three", groups(random, 3, ",", bytes)),
        ("ternary digits on lines", groups(random, 31, "\n", bytes)),
        ("counted names", fill(bytes, |n| format!("x{n}. "))),
        ("counted lines", fill(bytes, |n| format!("{n}\n"))),
        (
            "random counters",
            fill(bytes, |_| format!("x{}. ", random.below(2))),
        ),
        (
            "time stamps",
            fill(bytes, |n| {
                format!(
                    "2026-07-{:02} {:02}:{:02}:{:02}.{:03} ",
                    n % 28 + 1,
                    n % 24,
                    n % 60,
                    n * 7 % 60,
                    n * 37 % 1_000
                )
            }),
        ),
        (
            "unix times",
            fill(bytes, |n| format!("{} ", 1_700_000_000 + n * 61)),
        ),
        (
            "JSON rows",
            fill(bytes, |n| {
                format!(
                    "{{\"id\": {n}, \"name\": \"user{n}\", \"score\": {}.{}, \"active\": true}},\n",
                    n * 17 % 100,
                    n % 10
                )
            }),
        ),
        (
            "JSON of numbers",
            fill(bytes, |n| format!("{},", n * 2_654_435_761 % 1_000)),
        ),
        ("JSON of small numbers", "0,".repeat(bytes / 2)),
        (
            "CSV",
            fill(bytes, |n| {
                format!("{n},{},{:.2},{}\n", n * n % 9_973, n as f64 / 7.0, n % 2)
            }),
        ),
        (
            "log lines",
            fill(bytes, |n| {
                format!(
                    "INFO worker-{} request {} took {} ms status=200 path=/api/v1/items\n",
                    n % 8,
                    n * 7_919 % 100_000,
                    n % 97
                )
            }),
        ),
        (
            "hex dump",
            fill(bytes, |n| {
                format!(
                    "{:08x}  {:016x} {:016x}\n",
                    n * 16,
                    random.next(),
                    random.next()
                )
            }),
        ),
        ("hex", random.chars("0123456789abcdef", bytes)),
        (
            "uuids",
            fill(bytes, |_| {
                let bits = random.next();
                format!(
                    "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x} ",
                    bits as u32,
                    bits >> 48,
                    bits & 0xfff,
                    bits >> 52,
                    bits >> 16
                )
            }),
        ),
        (
            "base64",
            random.chars(
                "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
                bytes,
            ),
        ),
        (
            "IP addresses",
            fill(bytes, |n| {
                format!(
                    "10.{}.{}.{}:{} ",
                    n % 256,
                    n / 3 % 256,
                    n * 7 % 256,
                    n % 65_536
                )
            }),
        ),
        ("a phrase", "different approach ".repeat(bytes / 19)),
        (
            "phrases",
            fill(bytes, |n| {
                format!(
                    "{} {n}. ",
                    [
                        "different approach",
                        "let me try",
                        "start over",
                        "i will try again",
                        "hello"
                    ][n % 5]
                )
            }),
        ),
        (
            "a greeting",
            "How can I help you today? ".repeat(bytes / 26),
        ),
        (
            "Fibonacci word",
            substitution("a", bytes, |c| if c == 'a' { "ab" } else { "a" }),
        ),
        (
            "Fibonacci word of digits",
            substitution("0", bytes, |c| if c == '0' { "01" } else { "0" }),
        ),
        (
            "Fibonacci word of words",
            spaced(&substitution("a", bytes / 4, |c| {
                if c == 'a' { "ab" } else { "a" }
            })),
        ),
        (
            "Thue-Morse word",
            substitution("a", bytes, |c| if c == 'a' { "ab" } else { "ba" }),
        ),
        (
            "Thue-Morse word of digits",
            substitution("0", bytes, |c| if c == '0' { "01" } else { "10" }),
        ),
        (
            "Thue-Morse word of words",
            spaced(&substitution("a", bytes / 4, |c| {
                if c == 'a' { "ab" } else { "ba" }
            })),
        ),
        (
            "paper folding word",
            fill(bytes, |n| {
                (if ((n + 1) >> ((n + 1).trailing_zeros() + 1)) & 1 == 0 {
                    "a"
                } else {
                    "b"
                })
                .to_owned()
            }),
        ),
        ("de Bruijn word", de_bruijn(2, 16, bytes)),
        ("de Bruijn word of ten", de_bruijn(10, 5, bytes)),
        ("one letter", "a".repeat(bytes)),
        ("one digit", "7".repeat(bytes)),
        (
            "zeros and a one",
            fill(bytes, |n| {
                if n % 40 == 39 {
                    "1".to_owned()
                } else {
                    "0".to_owned()
                }
            }),
        ),
        ("spaces", " ".repeat(bytes)),
        ("newlines", "\n".repeat(bytes)),
        ("tabs and newlines", "\t\n".repeat(bytes / 2)),
        ("fences", "```\n".repeat(bytes / 4)),
        (
            "fences with text",
            fill(bytes, |n| format!("```\n{}\n", n % 3)),
        ),
        ("short words", "a b c d e f g h ".repeat(bytes / 16)),
        (
            "random short words",
            fill(bytes, |_| {
                format!(
                    "{} ",
                    random.pick(&["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"])
                )
            }),
        ),
        ("short sentences", "a. b. c. d. ".repeat(bytes / 12)),
        (
            "random sentences",
            fill(bytes, |_| {
                format!(
                    "{} ",
                    random.pick(&[
                        "We look at it again now.",
                        "The test fails as before.",
                        "Let me check the log first.",
                        "Maybe the cache is stale.",
                        "I will read the file again."
                    ])
                )
            }),
        ),
        (
            "sentences with a new one between",
            fill(bytes, |n| {
                if n % 3 == 2 {
                    format!("Something quite new number {} is here. ", word(n))
                } else {
                    "We look at it again now. ".to_owned()
                }
            }),
        ),
        (
            "long words",
            "abcdefghijklmnopqrstuvwxyz".repeat(bytes / 26),
        ),
        (
            "a word without end",
            random.chars("abcdefghijklmnopqrstuvwxyz", bytes),
        ),
        (
            "combining marks",
            "e\u{301}\u{302}\u{303}".repeat(bytes / 7),
        ),
        ("only marks", "\u{301}".repeat(bytes / 2)),
        ("emoji", "👩‍👩‍👧‍👦🎉".repeat(bytes / 29)),
        (
            "random emoji",
            random.chars("😀😁😂🤣😃😄😅😆😉😊", bytes / 4),
        ),
        (
            "Chinese",
            random.chars("的一是不了人我在有他这中大来上国", bytes / 3),
        ),
        ("Arabic digits", random.chars("٠١٢٣٤٥٦٧٨٩", bytes / 2)),
        ("capitals that grow", "İßŉǰΐ".repeat(bytes / 10)),
        (
            "invisible characters",
            "a\u{200b}\u{feff}".repeat(bytes / 7),
        ),
        ("quotes", random.chars("\"'`", bytes)),
        ("braces", random.chars("{}[]()", bytes)),
        ("open braces", "[".repeat(bytes)),
        ("backslashes", "\\".repeat(bytes)),
        ("escaped quotes", "\\\"".repeat(bytes / 2)),
        ("keys", "\"id\":1,\"ts\":2,".repeat(bytes / 14)),
        ("open keys", "\"id\":\"".repeat(bytes / 6)),
        ("data keys", "{\"data\":\"x\"".repeat(bytes / 11)),
        ("data URIs", "data:image/png;base64,".repeat(bytes / 22)),
        ("slashes", "/".repeat(bytes)),
        ("paths", fill(bytes, |n| format!("/tmp/a{n}/b/c "))),
        ("base64 with slashes", "aB3/".repeat(bytes / 4)),
        ("ANSI escapes", "\x1b[31mred\x1b[0m ".repeat(bytes / 13)),
        ("open ANSI escapes", "\x1b[".repeat(bytes / 2)),
        (
            "ANSI parameters",
            format!("\x1b[{}", "1;".repeat(bytes / 2)),
        ),
        ("operators", random.chars(";|&>", bytes)),
        ("heredocs", "cat <<A\n".repeat(bytes / 8)),
        ("a patch", "*** Begin Patch\n*".repeat(bytes / 17)),
        ("assignments", "a=b ".repeat(bytes / 4)),
        (
            "a script in bash -c",
            format!("bash -c \"{}\"", "echo \\\"a\\\"; ".repeat(bytes / 13)),
        ),
        ("SQL", fill(bytes, |n| format!("UPDATE t{n} a b c d "))),
        (
            "SQL values",
            fill(bytes, |n| {
                format!("INSERT INTO t VALUES ({n}, '{}'); ", n * 7 % 1_000)
            }),
        ),
        (
            "failures",
            "1 failed, 2 passed in 0.1s\n".repeat(bytes / 27),
        ),
        ("statuses", "status code 503 500 502 ".repeat(bytes / 24)),
        ("colons", "a:b:c:".repeat(bytes / 6)),
        ("hyphens", "abcdef01-".repeat(bytes / 9)),
        (
            "decimals",
            fill(bytes, |n| format!("{}.{} ", n, n * 7 % 1_000)),
        ),
        (
            "durations",
            fill(bytes, |n| format!("{}ms {}s ", n, n % 60)),
        ),
        ("anchors at odd distances", snippets(random, 64, 17, bytes)),
        ("anchors at many distances", snippets(random, 40, 64, bytes)),
        ("anchors of digits", digit_snippets(random, bytes)),
        ("copies of itself", copies(random, 33, 80, bytes)),
        ("long copies of itself", copies(random, 300, 2_000, bytes)),
        (
            "a period with single changes",
            near_periodic("I will now check the file again to be sure. ", 45, bytes),
        ),
        (
            "a long period with single changes",
            near_periodic(&prose(700), 701, bytes),
        ),
        (
            "a period of digits with single changes",
            near_periodic("0123456789012345678901234567890", 97, bytes),
        ),
        ("nested periods", nested(bytes)),
        (
            "loops of 160 bytes each",
            fill(bytes, |n| {
                format!("{} and then it goes. ", word(n)).repeat(8)
            }),
        ),
        (
            "loops of words of 200 bytes each",
            fill(bytes, |n| {
                format!("{} {} ", word(n), word(n + 1)).repeat(14)
            }),
        ),
        (
            "lines that grow",
            fill(bytes, |n| format!("{}\n", "ab".repeat(n % 60))),
        ),
        ("grams at the recount", recounts(bytes)),
        ("anchors in one bucket", one_bucket(bytes)),
        (
            "lines of one letter",
            fill(bytes, |n| {
                format!("{}\n", char::from(b'a' + (n % 26) as u8))
            }),
        ),
        (
            "fences around periods",
            fill(bytes, |_| "```\nabcdefgh\n".to_owned()),
        ),
        (
            "few words in any order",
            fill(bytes, |_| {
                format!(
                    "{} ",
                    random.pick(&["a", "b", "c", "d", "e", "f", "g", "h", "i"])
                )
            }),
        ),
        (
            "periods of digits that all differ",
            digits_at_periods(random, bytes),
        ),
    ]
}

fn fill(bytes: usize, mut part: impl FnMut(usize) -> String) -> String {
    let mut text = String::with_capacity(bytes + 128);
    for n in 0.. {
        if text.len() >= bytes {
            break;
        }
        text.push_str(&part(n));
    }
    text
}

fn groups(random: &mut Random, digits: usize, separator: &str, bytes: usize) -> String {
    fill(bytes, |_| random.chars("0123456789", digits) + separator)
}

fn spaced(text: &str) -> String {
    text.chars()
        .map(|c| if c == 'a' { "one " } else { "two " })
        .collect()
}

/// A word for each number.
fn word(n: usize) -> String {
    let letter = |i: u32| char::from(b'a' + (n / 26usize.pow(i) % 26) as u8);
    (0..4).map(letter).chain("xy".chars()).collect()
}

/// The fixed point of a substitution.
fn substitution(first: &str, bytes: usize, image: impl Fn(char) -> &'static str) -> String {
    let mut text = first.to_owned();
    while text.len() < bytes {
        text = text.chars().map(&image).collect();
    }
    text.truncate(bytes);
    text
}

/// A word in which all words of this many letters occur once (greedy, by last use).
fn de_bruijn(letters: usize, order: u32, bytes: usize) -> String {
    let contexts = letters.pow(order - 1);
    let mut next = vec![0_u8; contexts];
    let mut context = 0;
    (0..bytes)
        .map(|_| {
            let letter = next[context] as usize % letters;
            next[context] = next[context].wrapping_add(1);
            context = (context * letters + letter) % contexts;
            char::from(b"0123456789"[letter])
        })
        .collect()
}

/// The same text again and again, with gaps of any length between.
fn snippets(random: &mut Random, length: usize, gap: usize, bytes: usize) -> String {
    let snippet = random.chars("abcdefghijklmnopqrstuvwxyz ", length);
    fill(bytes, |_| {
        let gap = random.below(gap);
        snippet.clone() + &random.chars("ABCDEFGHIJ ", gap)
    })
}

/// The same with other digits in each copy.
fn digit_snippets(random: &mut Random, bytes: usize) -> String {
    fill(bytes, |_| {
        let gap = random.below(40);
        let digits = random.chars("01", 16);
        let mut snippet = String::new();
        for (n, digit) in digits.chars().enumerate() {
            let _ = write!(snippet, "{}{digit}w", char::from(b'a' + n as u8));
        }
        snippet + &random.chars("ABCDEFGHIJ ", gap)
    })
}

/// Each part is a copy of a part of the last 4 KiB.
fn copies(random: &mut Random, least: usize, most: usize, bytes: usize) -> String {
    let mut text = random.chars("abcdefghijklmnopqrstuvwxyz ", 4_096.min(bytes / 2));
    while text.len() < bytes {
        let length = least + random.below(most - least);
        let start = text.len() - (length + random.below(4_000)).min(text.len());
        let end = (start + length).min(text.len());
        let copy = text[start..end].to_owned();
        text.push_str(&copy);
        text.push(char::from(b'a' + random.below(26) as u8));
    }
    text
}

/// A period in which one character changes every `distance` characters.
fn near_periodic(unit: &str, distance: usize, bytes: usize) -> String {
    let text = unit.repeat(bytes / unit.len() + 1);
    let changed = text.char_indices().map(|(n, c)| {
        let is_changed = n % distance == distance - 1;
        match c {
            '0'..='9' if is_changed => char::from(b'0' + (n / distance % 10) as u8),
            _ if is_changed => char::from(b'a' + (n / distance % 26) as u8),
            c => c,
        }
    });
    changed.collect()
}

/// A period of periods of periods, each with a mark at its end.
fn nested(bytes: usize) -> String {
    let mut text = "ab".to_owned();
    for mark in ["c", "d", "e", "f", "g", "h", "i"].iter().cycle() {
        if text.len() >= bytes {
            break;
        }
        text = text.repeat(5) + mark;
    }
    text
}

/// Text whose rolling hash over 32 bytes falls into one bucket of the table of anchors as
/// often as a choice of letters allows.
fn one_bucket(bytes: usize) -> String {
    const GOLDEN_RATIO: u32 = 0x9e37_79b1;
    let weight = (0..32).fold(1u32, |power, _| power.wrapping_mul(GOLDEN_RATIO));
    let (mut text, mut hash): (Vec<u8>, u32) = (Vec::new(), 0);
    while text.len() < bytes {
        let leaves = text
            .len()
            .checked_sub(32)
            .map_or(0, |at| u32::from(text[at]));
        let rolled = |byte: u8| {
            hash.wrapping_mul(GOLDEN_RATIO)
                .wrapping_add(byte.into())
                .wrapping_sub(leaves.wrapping_mul(weight))
        };
        let first = 33 + (text.len() % 15) as u8;
        let mut letters = (first..48).chain(58..127).chain(33..first);
        let byte = letters
            .find(|byte| rolled(*byte).wrapping_mul(GOLDEN_RATIO) >> 26 == 0)
            .unwrap_or(first);
        hash = rolled(byte);
        text.push(byte);
    }
    String::from_utf8(text).unwrap_or_default()
}

/// Letters with a period, and digits between them that differ in each copy.
fn digits_at_periods(random: &mut Random, bytes: usize) -> String {
    fill(bytes, |_| {
        let digits = random.chars("0123456789", 8);
        let mut copy = String::new();
        for (letter, digit) in "abcdefgh".chars().zip(digits.chars()) {
            copy.extend([letter, 'x', digit]);
        }
        copy
    })
}

/// Words whose groups of three occur eight times in 1,024.
fn recounts(bytes: usize) -> String {
    let mut random = Random(3);
    fill(bytes, |_| {
        let mut order: Vec<usize> = (0..128).collect();
        for n in (1..order.len()).rev() {
            order.swap(n, random.below(n + 1));
        }
        order
            .into_iter()
            .map(|n| format!("{} a b ", char::from(b'a' + (n % 26) as u8)))
            .collect()
    })
}

/// The description of a text by a few numbers, so that a search can change them and look
/// for texts that cost more.
#[derive(Clone, Debug)]
pub struct Genes {
    pub seed: u64,
    /// Units that are repeated.
    pub units: Vec<Unit>,
    /// Copies of a unit before the next one.
    pub copies: usize,
    /// Random characters after each copy, at most.
    pub gap: usize,
    /// One character in this many is changed; 0: none.
    pub change_every: usize,
    /// The order of the units is random.
    pub is_shuffled: bool,
}

/// The characters of a unit, and their number.
#[derive(Clone, Debug)]
pub struct Unit {
    pub alphabet: usize,
    pub chars: usize,
}

pub const ALPHABETS: &[&str] = &[
    "01",
    "0123456789",
    "ab",
    "a1",
    "a1 ",
    "abc ",
    "abcdefghij. ",
    "0123456789 .:-",
    "x0123456789. ",
    "{}[]\":, a1",
    "\n`~ ",
    "\n ab",
    "éü1 ",
    "漢字。",
    "aA0/+=",
    "\\\"'`$",
    ".!? \nab",
    "abcdefghijklmnopqrstuvwxyz",
];

impl Genes {
    pub fn random(random: &mut Random) -> Self {
        let unit = |random: &mut Random| Unit {
            alphabet: random.below(ALPHABETS.len()),
            chars: 1 + random.small(12),
        };
        Self {
            seed: random.next(),
            units: (0..1 + random.below(4)).map(|_| unit(random)).collect(),
            copies: 1 + random.small(8),
            gap: random.small(7),
            change_every: random.small(9),
            is_shuffled: random.below(2) == 1,
        }
    }

    /// The genes that begin with one seed and are changed with each of the others, in
    /// this order. Seeds are separated by spaces.
    pub fn of_lineage(seeds: &str) -> Self {
        let mut seeds = seeds.split(' ').filter_map(|seed| seed.parse().ok());
        let first = Self::random(&mut Random(seeds.next().unwrap_or_default()));
        seeds.fold(first, |genes, seed| genes.mutated(&mut Random(seed)))
    }

    /// A copy with a change.
    pub fn mutated(&self, random: &mut Random) -> Self {
        let mut genes = self.clone();
        match random.below(7) {
            0 => genes.seed = random.next(),
            1 => {
                let at = random.below(genes.units.len());
                genes.units[at].alphabet = random.below(ALPHABETS.len());
            }
            2 => {
                let at = random.below(genes.units.len());
                let chars = genes.units[at].chars;
                let changed = [
                    chars + 1,
                    chars.saturating_sub(1),
                    chars * 2,
                    chars / 2,
                    1 + random.below(200),
                ];
                genes.units[at].chars = changed[random.below(changed.len())].clamp(1, 4_000);
            }
            3 => genes.copies = (1 + random.below(genes.copies * 2)).min(500),
            4 => genes.gap = random.below(genes.gap * 2 + 2).min(200),
            5 => genes.change_every = random.below(genes.change_every * 2 + 2).min(1_000),
            _ => return Self::random(random),
        }
        genes
    }

    pub fn text(&self, bytes: usize) -> String {
        let mut random = Random(self.seed);
        let units: Vec<String> = self
            .units
            .iter()
            .map(|unit| random.chars(ALPHABETS[unit.alphabet], unit.chars))
            .collect();
        let mut text = String::with_capacity(bytes + 8_192);
        let mut next = 0;
        while text.len() < bytes {
            next = if self.is_shuffled {
                random.below(units.len())
            } else {
                (next + 1) % units.len()
            };
            for _ in 0..self.copies {
                self.push_copy(
                    &mut text,
                    &units[next],
                    ALPHABETS[self.units[next].alphabet],
                    &mut random,
                );
                if text.len() >= bytes {
                    break;
                }
            }
        }
        text.truncate(text.floor_char_boundary(bytes));
        text
    }

    fn push_copy(&self, text: &mut String, unit: &str, alphabet: &str, random: &mut Random) {
        for c in unit.chars() {
            if self.change_every > 0 && random.below(self.change_every) == 0 {
                text.push_str(&random.chars(alphabet, 1));
            } else {
                text.push(c);
            }
        }
        let gap = random.below(self.gap + 1);
        text.push_str(&random.chars(alphabet, gap));
    }
}
