//! `unstuck init`: hooks in the settings of agents, beside what is there, and out again.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
    process::Output,
};

use serde_json::Value;

use crate::{
    harness::DEADLINE,
    hook_command::{Home, ok, serve_tcp, serve_unix},
    lifecycle::{output, text},
};

const AGENTS: [&str; 8] = [
    "claude-code",
    "codex",
    "gemini",
    "qwen",
    "copilot",
    "cline",
    "opencode",
    "pi",
];

fn init(home: &Home, args: &[&str]) -> Output {
    output(home.command(&[&["init"], args].concat()))
}

#[track_caller]
fn init_ok(home: &Home, args: &[&str]) -> String {
    let ran = init(home, args);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    text(&ran.stdout).to_owned()
}

/// All files of a home but those of the service: mode, target of a link, content.
fn files(home: &Home) -> BTreeMap<String, (u32, String)> {
    fn walk(dir: &Path, root: &Path, found: &mut BTreeMap<String, (u32, String)>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path
                .strip_prefix(root)
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned();
            let kind = fs::symlink_metadata(&path).unwrap();
            if kind.is_dir() {
                if ![".local", "run"].contains(&name.as_str()) {
                    walk(&path, root, found);
                }
                continue;
            }
            let content = match fs::read_link(&path) {
                Ok(target) => format!("-> {}", target.display()),
                Err(_) => String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned(),
            };
            found.insert(name, (kind.mode() & 0o777, content));
        }
    }
    let mut found = BTreeMap::new();
    let root = home.path("");
    walk(&root, &root, &mut found);
    found
}

/// The user's configuration and the state of the local service.
fn user_files(home: &Home) -> (String, String) {
    let path = |name: &str| home.path(name).to_str().unwrap().to_owned();
    (
        path(".config/unstuck/unstuck.toml"),
        path(".local/state/unstuck"),
    )
}

fn json(home: &Home, name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(home.path(name)).unwrap()).unwrap()
}

/// A person's settings: comments, their own hooks, odd indentation, a last comma.
const SETTINGS: &str = r#"{
   // my theme
   "theme": "dark",   /* never light */
   "hooks": {
      "PreToolUse": [
         {"matcher": "Bash", "hooks": [{"type": "command", "command": "echo hi"}]}
      ],
      "Stop": [],
   },
}
"#;

#[test]
fn init_twice_is_init_once_and_remove_restores_every_byte() {
    let home = Home::new();
    let _requests = serve_unix(&home, ok("{}"));
    let linked = home.write("dotfiles/claude.json", SETTINGS);
    fs::set_permissions(&linked, fs::Permissions::from_mode(0o640)).unwrap();
    fs::create_dir(home.path(".claude")).unwrap();
    symlink(&linked, home.path(".claude/settings.json")).unwrap();
    home.write(".gemini/settings.json", "{}");
    home.write(".qwen/settings.json", "{\n\t\"hooks\": {}\n}");
    home.write(".cline/hooks/Other", "#!/bin/sh\n");
    for agent in AGENTS {
        let before = files(&home);
        init_ok(&home, &["--yes", "--agent", agent]);
        let once = files(&home);
        assert_ne!(once, before, "{agent}");
        let again = init_ok(&home, &["--yes", "--agent", agent]);
        assert!(again.starts_with("Nothing to change."), "{agent}: {again}");
        assert_eq!(files(&home), once, "{agent}");
        // Other options, and back.
        init_ok(&home, &["--yes", "--agent", agent, "--light", "--text"]);
        init_ok(&home, &["--yes", "--agent", agent]);
        assert_eq!(files(&home), once, "{agent}");
        init_ok(&home, &["--yes", "--agent", agent, "--remove"]);
        assert_eq!(files(&home), before, "{agent}");
        let nothing = init_ok(&home, &["--yes", "--agent", agent, "--remove"]);
        assert_eq!(nothing, "Nothing to change.\n", "{agent}");
    }
}

#[test]
fn a_link_to_a_file_that_does_not_exist_stays_a_link() {
    let home = Home::new();
    let _requests = serve_unix(&home, ok("{}"));
    fs::create_dir(home.path(".claude")).unwrap();
    symlink(
        "../dotfiles/claude.json",
        home.path(".claude/settings.json"),
    )
    .unwrap();
    init_ok(&home, &["--yes", "--agent", "claude-code"]);
    assert!(home.path(".claude/settings.json").is_symlink());
    assert!(json(&home, "dotfiles/claude.json")["hooks"].is_object());
    init_ok(&home, &["--yes", "--agent", "claude-code", "--remove"]);
    assert!(home.path(".claude/settings.json").is_symlink());
    assert!(!home.path("dotfiles/claude.json").exists());
}

#[test]
fn what_others_wrote_stays_and_the_first_file_is_kept() {
    let home = Home::new();
    let _requests = serve_unix(&home, ok("{}"));
    let path = home.write(".claude/settings.json", SETTINGS);
    let shown = init_ok(&home, &["--yes", "--agent", "claude-code"]);
    assert!(shown.contains("+"), "{shown}");
    let written = fs::read_to_string(&path).unwrap();
    for part in [
        "// my theme",
        "/* never light */",
        "\"echo hi\"",
        "\"theme\": \"dark\"",
    ] {
        assert!(written.contains(part), "{part} in {written}");
    }
    let backup = home.path(".claude/settings.json.unstuck-backup");
    assert_eq!(fs::read_to_string(&backup).unwrap(), SETTINGS);
    // Since then a person has changed something: only what is ours goes.
    let changed = written
        .replace("dark", "light")
        .replace("my theme", "the theme");
    fs::write(&path, &changed).unwrap();
    init_ok(&home, &["--yes", "--agent", "claude-code", "--remove"]);
    let left = fs::read_to_string(&path).unwrap();
    for part in [
        "// the theme",
        "\"light\"",
        "/* never light */",
        "\"echo hi\"",
    ] {
        assert!(left.contains(part), "{part} in {left}");
    }
    assert!(!left.contains("unstuck"), "{left}");
    assert_eq!(fs::read_to_string(&backup).unwrap(), SETTINGS);
}

#[test]
fn each_agent_gets_the_form_that_it_reads() {
    let home = Home::new();
    let _requests = serve_unix(&home, ok("{}"));
    for agent in AGENTS {
        init_ok(&home, &["--yes", "--agent", agent]);
    }
    let program = env!("CARGO_BIN_EXE_unstuck");
    let (config, state) = user_files(&home);
    let files = format!("--config {config} --state {state}");
    let claude = json(&home, ".claude/settings.json");
    let hook = &claude["hooks"]["PostToolBatch"][0];
    assert_eq!(hook["matcher"], "*");
    assert_eq!(hook["hooks"][0]["type"], "command");
    assert_eq!(
        hook["hooks"][0]["command"],
        format!("{program} hook claude-code {files}")
    );
    assert_eq!(hook["hooks"][0]["timeout"], 2);
    let matcher = &claude["hooks"]["PostToolUse"][0]["matcher"];
    assert_eq!(matcher, "Edit|Write|NotebookEdit");
    assert_eq!(claude["hooks"]["MessageDisplay"], Value::Null);
    let codex = json(&home, ".codex/hooks.json");
    assert_eq!(codex["hooks"]["PostToolUse"][0]["hooks"][0]["timeout"], 2);
    assert_eq!(
        codex.as_object().unwrap().len(),
        1,
        "Codex refuses other members"
    );
    let gemini = json(&home, ".gemini/settings.json");
    assert_eq!(gemini["hooksConfig"]["enabled"], true);
    assert_eq!(
        gemini["hooks"]["AfterTool"][0]["hooks"][0]["timeout"],
        2_000
    );
    assert_eq!(
        gemini["hooks"]["AfterTool"][0]["hooks"][0]["name"],
        "unstuck"
    );
    let qwen = json(&home, ".qwen/settings.json");
    assert_eq!(qwen["hooks"]["PreToolUse"][0]["hooks"][0]["timeout"], 2);
    let copilot = json(&home, ".copilot/hooks/unstuck.json");
    assert_eq!(copilot["version"], 1);
    let hook = &copilot["hooks"]["preToolUse"][0];
    // Copilot and Gemini refuse everything while a hook cannot be run.
    let command = format!("{program} hook copilot {files} --event preToolUse");
    let or_go_on = format!("command -v {program} >/dev/null || exit 0; exec");
    assert_eq!(hook["bash"], format!("{or_go_on} {command}"));
    let command = &gemini["hooks"]["AfterTool"][0]["hooks"][0]["command"];
    assert_eq!(
        *command,
        format!("{or_go_on} {program} hook gemini {files}")
    );
    assert_eq!(hook["timeoutSec"], 2);
    let script = home.path(".cline/hooks/PreToolUse");
    assert_eq!(fs::metadata(&script).unwrap().mode() & 0o777, 0o755);
    let script = fs::read_to_string(script).unwrap();
    let command = format!("exec {program} hook cline {files} --event PreToolUse\n");
    assert!(script.ends_with(&command), "{script}");
    for (path, agent) in [
        (".config/opencode/plugin/unstuck.js", "opencode"),
        (".pi/agent/extensions/unstuck.ts", "pi"),
    ] {
        let plugin = fs::read_to_string(home.path(path)).unwrap();
        let words = [
            program, "hook", agent, "--config", &config, "--state", &state,
        ];
        let words = format!("= {};", serde_json::json!(words));
        assert!(plugin.contains(&words), "{plugin}");
    }
    // Nothing before a call, and what is said while it is said.
    init_ok(
        &home,
        &["--yes", "--agent", "claude-code", "--light", "--text"],
    );
    let claude = json(&home, ".claude/settings.json");
    assert_eq!(claude["hooks"]["PreToolUse"], Value::Null);
    assert!(claude["hooks"]["MessageDisplay"].is_array());
}

#[test]
fn the_variables_of_a_repository_do_not_move_hooks() {
    let home = Home::new();
    let requests = serve_unix(&home, ok("{}"));
    init_ok(&home, &["--yes", "--agent", "gemini"]);
    let gemini = json(&home, ".gemini/settings.json");
    let command = &gemini["hooks"]["BeforeTool"][0]["hooks"][0]["command"];
    while requests.try_recv().is_ok() {}
    // What a `.env` in a cloned repository sets, and Gemini loads.
    let (elsewhere, stolen) = serve_tcp(ok("{}"));
    let hostile = format!("[hooks]\nurl = \"{elsewhere}\"\n");
    for dir in ["work/.config", "work"] {
        home.write(&format!("{dir}/unstuck/unstuck.toml"), &hostile);
    }
    let work = home.path("work");
    let variables = [
        &[("UNSTUCK_HOOKS_URL", elsewhere.as_str())][..],
        &[("XDG_CONFIG_HOME", work.to_str().unwrap())],
        &[("XDG_STATE_HOME", work.to_str().unwrap())],
        &[("HOME", work.to_str().unwrap())],
    ];
    for variables in variables {
        let user = home.command(&[]);
        let mut run = std::process::Command::new("/bin/sh");
        run.args(["-c", command.as_str().unwrap()]);
        run.current_dir(&work).env_clear();
        run.envs(
            user.get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        run.envs(variables.iter().copied());
        run.stdin(fs::File::open(home.write("payload", "{}")).unwrap());
        run.stdout(std::process::Stdio::piped());
        run.stderr(std::process::Stdio::piped());
        let ran = output(run);
        assert_eq!(text(&ran.stdout), "{}\n", "{ran:?}");
        requests.recv_timeout(DEADLINE).unwrap();
        assert!(stolen.try_recv().is_err(), "{variables:?}");
    }
    // Its journal is where `doctor` looks, and nothing is left in the repository.
    assert!(home.path(".local/state/unstuck/hooks/gemini.json").exists());
    assert!(!home.path("work/unstuck/hooks").exists());
}

#[test]
fn agents_are_found_by_their_directory_or_program() {
    let home = Home::new();
    let _requests = serve_unix(&home, ok("{}"));
    let nobody = init(&home, &["--yes"]);
    assert_eq!(nobody.status.code(), Some(3), "{nobody:?}");
    fs::create_dir(home.path(".codex")).unwrap();
    let qwen = home.write("bin/qwen", "#!/bin/sh\n");
    fs::set_permissions(&qwen, fs::Permissions::from_mode(0o755)).unwrap();
    home.write("bin/gemini", "not a program\n");
    let mut command = home.command(&["init", "--yes"]);
    command.env("PATH", home.path("bin"));
    let ran = output(command);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    assert!(home.path(".codex/hooks.json").exists());
    assert!(home.path(".qwen/settings.json").exists());
    assert!(!home.path(".gemini").exists());
    // Its own variable says where an agent keeps its files.
    let mut command = home.command(&["init", "--yes", "--agent", "claude-code"]);
    command.env("CLAUDE_CONFIG_DIR", home.path("elsewhere"));
    assert_eq!(output(command).status.code(), Some(0));
    assert!(home.path("elsewhere/settings.json").exists());
}

#[test]
fn nothing_is_written_unasked_or_into_a_file_that_is_not_understood() {
    let home = Home::new();
    let before = files(&home);
    let dry = init_ok(&home, &["--dry-run", "--agent", "codex"]);
    assert!(dry.contains("+++") && dry.contains("hook codex"), "{dry}");
    let unasked = init(&home, &["--agent", "codex"]);
    assert_eq!(unasked.status.code(), Some(2));
    assert!(text(&unasked.stderr).contains("--yes"), "{unasked:?}");
    assert_eq!(files(&home), before);
    for settings in [
        "{\"a\": ",
        "[]",
        "{\"hooks\": []}",
        "{a: 1}",
        "{\"hooks\": {\"Stop\": {}}}",
    ] {
        home.write(".claude/settings.json", settings);
        let refused = init(&home, &["--yes", "--agent", "claude-code"]);
        assert_eq!(refused.status.code(), Some(1), "{settings}");
        assert!(
            text(&refused.stderr).contains("is not changed"),
            "{refused:?}"
        );
        let snippet = text(&refused.stdout);
        assert!(snippet.contains("hook claude-code"), "{snippet}");
        let left = fs::read_to_string(home.path(".claude/settings.json")).unwrap();
        assert_eq!(left, settings);
    }
    // A file of another program by the name of ours.
    let own = home.write(".cline/hooks/PreToolUse", "#!/bin/sh\necho mine\n");
    let refused = init(&home, &["--yes", "--agent", "cline"]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(fs::read_to_string(&own).unwrap(), "#!/bin/sh\necho mine\n");
    init(&home, &["--yes", "--agent", "cline", "--remove"]);
    assert!(own.exists());
}

#[test]
fn a_teams_service_is_named_by_https_and_its_token_by_a_variable() {
    let home = Home::new();
    let url = "https://unstuck.example.com/";
    let team = ["--dry-run", "--http", url, "--token-env", "TEAM_TOKEN"];
    let shown = |agent: &str, more: &[&str]| {
        init_ok(&home, &[&team[..], &["--agent", agent], more].concat())
    };
    let claude = shown("claude-code", &[]);
    // Only this machine knows its name.
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let host = host.trim();
    let own_url =
        format!("\"url\": \"https://unstuck.example.com/v1/hooks/claude-code?label.host={host}\"");
    for part in [
        "\"type\": \"http\"",
        &own_url,
        "\"Authorization\": \"Bearer $TEAM_TOKEN\"",
        "\"allowedEnvVars\": [\"TEAM_TOKEN\"]",
    ] {
        assert!(claude.contains(part), "{part} in {claude}");
    }
    let arguments = "--http https://unstuck.example.com --token-env TEAM_TOKEN";
    assert!(shown("codex", &[]).contains(&format!("hook codex {arguments}")));
    assert!(shown("qwen", &[]).contains("\"type\": \"http\""));
    // Only the command can end its run.
    let qwen = shown("qwen", &["--unattended"]);
    assert!(qwen.contains(&format!("hook qwen {arguments}")), "{qwen}");
    let plugin = r#""--http","https://unstuck.example.com","--token-env","TEAM_TOKEN","--config""#;
    assert!(shown("opencode", &[]).contains(plugin));
    for args in [
        &["--http", "http://unstuck.example.com"][..],
        &["--http", url, "--token-env", "not a name"],
        &["--token-env", "TEAM_TOKEN"],
        // It would have no effect.
        &["--http", url, "--shadow"],
    ] {
        let refused = init(&home, &[&["--dry-run", "--agent", "codex"], args].concat());
        assert_eq!(refused.status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn hooks_that_call_a_service_themselves_are_changed_and_removed_as_ours() {
    let home = Home::new();
    let (url, _requests) = serve_tcp(ok("{}"));
    let settings = home.write(".claude/settings.json", "{\"theme\": \"dark\"}\n");
    let before = fs::read_to_string(&settings).unwrap();
    let agent = ["--agent", "claude-code"];
    let install = ["--yes", "--http", &url, agent[0], agent[1]];
    init_ok(&home, &install);
    let with_host = fs::read_to_string(&settings).unwrap();
    assert!(with_host.contains("/v1/hooks/claude-code?label.host="));
    assert!(init_ok(&home, &install).starts_with("Nothing to change."));
    // As an earlier version wrote it.
    let without_host = with_host.replace("?label.host=", "\", \"was\": \"");
    fs::write(&settings, without_host).unwrap();
    init_ok(&home, &install);
    assert_eq!(fs::read_to_string(&settings).unwrap(), with_host);
    init_ok(&home, &["--yes", "--remove", agent[0], agent[1]]);
    assert_eq!(fs::read_to_string(&settings).unwrap(), before);
    // A file for all users of a repository has nobody's name.
    let shared = ["--dry-run", "--project", "--http", &url, agent[0], agent[1]];
    assert!(init_ok(&home, &shared).contains("/v1/hooks/claude-code\""));
}

/// Agents would call it when the cache has been emptied.
#[test]
fn a_program_in_a_cache_is_not_written_into_settings() {
    let home = Home::new();
    fs::create_dir(home.path(".claude")).unwrap();
    let before = files(&home);
    for dir in [
        ".cache/uv/archive-v0/6fk2/bin",
        ".npm/_npx/9a2c/node_modules/.bin",
        "tmp/unpacked",
    ] {
        fs::create_dir_all(home.path(dir)).unwrap();
        let program = home.path(&format!("{dir}/unstuck"));
        symlink(env!("CARGO_BIN_EXE_unstuck"), &program).unwrap();
        let run = |args: &[&str]| {
            let mut command = home.command(&[&["init", "--agent", "claude-code"], args].concat());
            command
                .env("PATH", home.path(dir))
                .env("TMPDIR", home.path("tmp"));
            output(command)
        };
        let refused = run(&["--yes"]);
        assert_eq!(refused.status.code(), Some(2), "{dir}: {refused:?}");
        let why = text(&refused.stderr);
        assert!(why.contains("uv tool install unstuck"), "{why}");
        // A repository's files name no path, and removing needs none.
        assert_eq!(run(&["--dry-run", "--project"]).status.code(), Some(0));
        assert_eq!(run(&["--yes", "--remove"]).status.code(), Some(0));
        fs::remove_file(program).unwrap();
    }
    assert_eq!(files(&home), before);
}

#[test]
fn the_files_of_each_agent_are_listed_before_they_are_changed() {
    let home = Home::new();
    let _requests = serve_unix(&home, ok("{}"));
    let args = ["--yes", "--agent", "claude-code", "--agent", "cline"];
    let shown = init_ok(&home, &[&args[..], &["--unattended"]].concat());
    let path = |name: &str| home.path(name).to_str().unwrap().to_owned();
    let list = format!(
        "\nClaude Code: {}\nCline CLI: {} and 5 other files\nunstuck: {}\n",
        path(".claude/settings.json"),
        path(".cline/hooks/PreToolUse"),
        path(".config/unstuck/unstuck.toml"),
    );
    let (_, after) = shown.split_once(&list).expect(&shown);
    assert!(after.starts_with("written "), "{after}");
}

#[test]
fn the_files_of_a_repository_work_for_those_without_the_program() {
    let home = Home::new();
    for agent in AGENTS {
        init_ok(&home, &["--yes", "--project", "--agent", agent]);
    }
    let written: Vec<String> = files(&home).into_keys().collect();
    let expected = [
        ".config/unstuck/unstuck.toml",
        "work/.claude/settings.json",
        "work/.clinerules/hooks/PostToolUse",
        "work/.clinerules/hooks/PreCompact",
        "work/.clinerules/hooks/PreToolUse",
        "work/.clinerules/hooks/TaskComplete",
        "work/.clinerules/hooks/TaskStart",
        "work/.clinerules/hooks/UserPromptSubmit",
        "work/.codex/hooks.json",
        "work/.gemini/settings.json",
        "work/.github/hooks/unstuck.json",
        "work/.opencode/plugin/unstuck.js",
        "work/.pi/extensions/unstuck.ts",
        "work/.qwen/settings.json",
    ];
    assert_eq!(written, expected);
    let claude = json(&home, "work/.claude/settings.json");
    let command = claude["hooks"]["Stop"][0]["hooks"][0]["command"]
        .as_str()
        .unwrap();
    assert!(!command.contains('/'.to_string().as_str()) || command.contains("/dev/null"));
    // Without the program, the agent goes on.
    let mut shell = std::process::Command::new("/bin/sh");
    shell
        .args(["-c", command])
        .env_clear()
        .env("PATH", "/nowhere");
    shell
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let ran = output(shell);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    init_ok(
        &home,
        &["--yes", "--project", "--remove", "--agent", "claude-code"],
    );
    assert!(!home.path("work/.claude/settings.json").exists());
}

#[test]
fn unattended_and_shadow_are_keys_of_the_users_own_file() {
    let home = Home::new();
    let _requests = serve_unix(&home, ok("{}"));
    fs::create_dir(home.path(".codex")).unwrap();
    let own = home.path(".config/unstuck/unstuck.toml");
    let before = fs::read_to_string(&own).unwrap();
    init_ok(&home, &["--yes", "--unattended"]);
    init_ok(&home, &["--yes", "--shadow", "--agent", "codex"]);
    let config: toml::Table = toml::from_str(&fs::read_to_string(&own).unwrap()).unwrap();
    let hooks = config["hooks"].as_table().unwrap();
    assert_eq!(hooks["kill"].as_bool(), Some(true));
    assert_eq!(hooks["escalate"].as_str(), Some("stop"));
    assert_eq!(hooks["shadow"].as_bool(), Some(true));
    let checked = output(home.command(&["config", "check", "--config", own.to_str().unwrap()]));
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    // What is not said is not so, and without the last agent nothing is.
    let shown = init_ok(&home, &["--yes", "--unattended"]);
    assert!(shown.contains("-shadow = true"), "{shown}");
    init_ok(&home, &["--yes"]);
    assert_eq!(fs::read_to_string(&own).unwrap(), before);
    init_ok(&home, &["--yes", "--agent", "pi", "--shadow"]);
    init_ok(&home, &["--yes", "--agent", "codex", "--remove"]);
    assert!(fs::read_to_string(&own).unwrap().contains("shadow = true"));
    init_ok(&home, &["--yes", "--agent", "pi", "--remove"]);
    assert_eq!(fs::read_to_string(&own).unwrap(), before);
}
