//! Finds the commands that change something besides what they print: formatters and fixers,
//! installers, generators, clusters and services; and which move to another state of the
//! world, such as another commit. A change is progress, whatever made it.

/// What a simple command changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandEffect {
    /// It changes files, data or a service.
    pub changes: bool,
    /// It moves to another commit, branch, cluster or environment.
    pub moves_world: bool,
}

const CHANGES: CommandEffect = CommandEffect {
    changes: true,
    moves_world: false,
};
const MOVES: CommandEffect = CommandEffect {
    changes: true,
    moves_world: true,
};

/// Options that make any command write.
const WRITING_OPTIONS: &[&str] = &["--fix", "--write", "--in-place", "--inplace", "--apply"];
/// Words that make any command a generator or a migration.
#[rustfmt::skip]
const GENERATING_WORDS: &[&str] = &[
    "generate", "codegen", "migrate", "makemigrations", "gen", "scaffold", "seed",
];
/// The same for the tasks of a project and the verbs of a tool: `npm run format`, `make fmt`,
/// `ruff format`.
const FORMATTING_WORDS: &[&str] = &["fmt", "format", "fix", "autofix", "prettify"];
/// What the command lines of clouds and forges do: `aws s3api put-bucket-policy`, `gh pr merge`.
#[rustfmt::skip]
const CHANGING_VERBS: &[&str] = &[
    "create", "update", "delete", "put", "set", "add", "remove", "deploy", "apply", "start", "stop",
    "restart", "cp", "mv", "rm", "sync", "merge", "close", "reopen", "comment", "edit", "upload",
    "publish", "enable", "disable", "attach", "detach", "modify", "scale", "rollback", "promote",
    "push", "review", "approve", "rename", "tag", "untag", "restore", "import", "rerun",
];

/// The effect of a command by its name and arguments. Git is apart.
pub fn command_effect(name: &[u8], rest: &[&str]) -> CommandEffect {
    let verb = rest.iter().find(|word| !word.starts_with('-'));
    let verb = verb.copied().unwrap_or_default();
    if moves_world(name, rest) {
        return MOVES;
    }
    let changes = changes_packages(name, verb, rest)
        || changes_files(name, rest)
        || changes_service(name, verb, rest)
        || runs_changing_task(name, rest)
        || is_changing_cmdlet(name)
        || is_any(rest, WRITING_OPTIONS);
    CommandEffect {
        changes,
        moves_world: false,
    }
}

/// Installers, and the generators that they run.
#[rustfmt::skip]
fn changes_packages(name: &[u8], verb: &str, rest: &[&str]) -> bool {
    const INSTALLING_VERBS: &[&str] = &[
        "install", "i", "add", "ci", "remove", "uninstall", "update", "upgrade", "get", "sync",
        "restore",
    ];
    match name {
        b"npm" | b"pnpm" | b"yarn" | b"bun" | b"pip" | b"pip3" | b"poetry" | b"apt" | b"apt-get"
        | b"apk" | b"brew" | b"gem" | b"bundle" | b"composer" | b"conda" | b"dotnet" | b"uv" => {
            INSTALLING_VERBS.contains(&verb) || is_any(rest, GENERATING_WORDS)
        }
        b"cargo" => matches!(verb, "add" | "remove" | "fmt" | "fix" | "install" | "update"),
        b"go" => matches!(verb, "get" | "mod" | "install" | "generate" | "fmt"),
        b"python" | b"python3" => {
            let is_pip = rest.windows(2).any(|pair| matches!(pair, ["-m", "pip"]));
            is_pip && is_any(rest, &["install"]) || is_any(rest, GENERATING_WORDS)
        }
        _ => is_any(rest, GENERATING_WORDS),
    }
}

/// A task of a project that generates or formats, by its name: `npm run gen:api`, `make fmt`,
/// `python scripts/generate_docs.py`.
fn runs_changing_task(name: &[u8], rest: &[&str]) -> bool {
    let is_changing = |word: &str| {
        let file = word.rsplit('/').next().unwrap_or(word);
        let first = file.split([':', '_', '-', '.']).next().unwrap_or(file);
        let tasks = || file.split(':').any(|task| FORMATTING_WORDS.contains(&task));
        let changes =
            |word: &&str| GENERATING_WORDS.contains(word) || FORMATTING_WORDS.contains(word);
        !file.contains("check") && (changes(&first) || tasks())
    };
    match name {
        b"npm" | b"pnpm" | b"yarn" | b"bun" | b"make" | b"just" | b"task" | b"deno" | b"mix"
        | b"dotnet" | b"terraform" | b"tofu" | b"ruff" | b"uv" | b"poetry" | b"npx" | b"nx"
        | b"turbo" | b"hatch" | b"bundle" | b"rake" | b"rails" | b"composer" | b"php"
        | b"gradle" | b"gradlew" | b"mvn" | b"zig" | b"python" | b"python3" | b"node" | b"sh"
        | b"bash" | b"ruby" | b"php-cs-fixer" => {
            let operands = rest.iter().filter(|word| !word.starts_with('-'));
            !is_any(rest, &["--check", "--diff", "--dry-run", "--list"])
                && operands.take(3).any(|word| is_changing(word))
        }
        b"alembic" | b"flyway" | b"sqlx" | b"diesel" | b"dbmate" | b"goose" => is_any(
            rest,
            &["upgrade", "downgrade", "migrate", "run", "up", "down"],
        ),
        _ => false,
    }
}

/// Formatters and other programs that write files.
fn changes_files(name: &[u8], rest: &[&str]) -> bool {
    match name {
        b"black" | b"isort" | b"rustfmt" | b"protoc" | b"ed" | b"ex" | b"dos2unix" | b"unzip"
        | b"wget" | b"truncate" | b"install" => !is_any(rest, &["--check", "--diff"]),
        b"autopep8" | b"clang-format" | b"yq" => rest.iter().any(|word| word.starts_with("-i")),
        b"gofmt" | b"goimports" | b"shfmt" => is_any(rest, &["-w"]),
        b"perl" | b"ruby" => rest
            .iter()
            .any(|word| word.starts_with('-') && word.contains('i')),
        b"curl" => is_any(
            rest,
            &[
                "-o",
                "-O",
                "--output",
                "--remote-name",
                "PUT",
                "PATCH",
                "DELETE",
            ],
        ),
        b"rubocop" => is_any(rest, &["-a", "-A", "--autocorrect"]),
        b"rsync" | b"scp" | b"stylua" | b"swiftformat" | b"dd" | b"chown" | b"convert"
        | b"ffmpeg" | b"ansible-playbook" => !is_any(rest, &["--check", "--dry-run"]),
        b"tar" => rest.first().is_some_and(|mode| mode.contains('x')),
        _ => false,
    }
}

/// Cmdlets of PowerShell by their verb: `Set-Content`, `Remove-Item`.
fn is_changing_cmdlet(name: &[u8]) -> bool {
    #[rustfmt::skip]
    const VERBS: &[&str] = &[
        "Set", "New", "Remove", "Add", "Copy", "Move", "Rename", "Clear", "Out", "Install",
        "Uninstall", "Update", "Start", "Stop", "Restart", "Enable", "Disable", "Expand", "Import",
    ];
    const OTHERS: &[&str] = &[
        "Set-Location",
        "Out-String",
        "Out-Null",
        "Start-Sleep",
        "Out-Host",
    ];
    let Ok(name) = std::str::from_utf8(name) else {
        return false;
    };
    let verb = name.split_once('-').map_or("", |(verb, _)| verb);
    VERBS.iter().any(|it| it.eq_ignore_ascii_case(verb))
        && !OTHERS.iter().any(|it| it.eq_ignore_ascii_case(name))
}

/// Services, clusters and databases.
#[rustfmt::skip]
fn changes_service(name: &[u8], verb: &str, rest: &[&str]) -> bool {
    match name {
        b"systemctl" | b"service" => {
            is_any(rest, &["start", "stop", "restart", "reload", "enable", "disable"])
        }
        b"kubectl" | b"oc" => [
            "apply", "create", "delete", "patch", "scale", "set", "label", "annotate", "rollout",
            "drain", "cordon", "replace",
        ]
        .contains(&verb),
        b"helm" => matches!(verb, "install" | "upgrade" | "uninstall" | "rollback"),
        b"docker" | b"podman" => is_any(
            rest,
            &["up", "down", "restart", "start", "stop", "rm", "build", "pull", "kill"],
        ),
        b"terraform" | b"tofu" | b"pulumi" => {
            matches!(verb, "apply" | "destroy" | "import" | "init" | "up")
        }
        b"aws" | b"gcloud" | b"az" | b"gh" | b"glab" | b"heroku" | b"fly" | b"flyctl"
        | b"vercel" | b"netlify" | b"firebase" | b"supabase" | b"wrangler" | b"redis-cli" => {
            let operands = rest.iter().filter(|word| !word.starts_with('-')).take(3);
            operands
                .filter_map(|word| word.split('-').next())
                .any(|verb| CHANGING_VERBS.iter().any(|it| it.eq_ignore_ascii_case(verb)))
        }
        b"psql" | b"mysql" | b"sqlite3" => rest
            .iter()
            .any(|word| crate::text::sql::is_mutation(word.trim_start())),
        _ => false,
    }
}

/// The effect of `git` with these arguments.
pub fn git_effect(rest: &[&str]) -> CommandEffect {
    let (verb, operands) = git_verb(rest);
    let mut words = operands.iter().filter(|word| !word.starts_with('-'));
    // `git checkout -- file` and `git checkout file.rs` restore files.
    let names_files = rest.iter().any(|word| *word == "--" || *word == ".")
        || words.clone().any(|word| {
            let extension = word.rsplit_once('.').map(|(_, extension)| extension);
            // `v1.2.3` is a tag.
            extension.is_some_and(|it| it.bytes().all(|byte| byte.is_ascii_alphabetic()))
        });
    match verb {
        "checkout" | "switch" if !names_files => MOVES,
        "bisect" | "worktree" | "merge" | "rebase" | "pull" | "cherry-pick" | "revert" => MOVES,
        "reset" if rest.contains(&"--hard") => MOVES,
        "stash" if !matches!(words.next().copied(), Some("list" | "show")) => MOVES,
        "add" | "commit" | "checkout" | "switch" | "reset" | "restore" | "apply" | "am" | "mv"
        | "rm" | "push" | "tag" | "branch" | "clone" | "init" | "fetch" | "clean" | "submodule" => {
            CHANGES
        }
        _ => CommandEffect::default(),
    }
}

/// Whether `git` with these arguments only shows the state of the repository.
pub fn git_only_looks(rest: &[&str]) -> bool {
    // Another repository is another object.
    let elsewhere = rest
        .windows(2)
        .any(|pair| matches!(pair, ["-C", path] if *path != "."));
    !elsewhere
        && matches!(
            git_verb(rest).0,
            "status" | "diff" | "log" | "show" | "blame" | "grep" | "ls-files" | "rev-parse"
        )
}

/// The subcommand of `git`, behind its options, and the words after it.
fn git_verb<'w, 'a>(mut rest: &'w [&'a str]) -> (&'a str, &'w [&'a str]) {
    while let Some((first, after)) = rest.split_first() {
        rest = match *first {
            "-C" | "-c" => after.get(1..).unwrap_or_default(),
            option if option.starts_with('-') => after,
            verb => return (verb, after),
        };
    }
    ("", &[])
}

/// The effect of a tool that is named after a program and given its arguments.
pub fn program_effect(tool: &str, arguments: &str) -> CommandEffect {
    let words: smallvec::SmallVec<[&str; 16]> = arguments.split_whitespace().take(16).collect();
    let rest = match words.as_slice() {
        [first, rest @ ..] if *first == tool => rest,
        words => words,
    };
    match tool {
        "git" => git_effect(rest),
        "kubectl" | "docker" | "terraform" | "helm" | "npm" | "pip" => {
            command_effect(tool.as_bytes(), rest)
        }
        _ => CommandEffect::default(),
    }
}

fn moves_world(name: &[u8], rest: &[&str]) -> bool {
    match name {
        b"kubectl" | b"oc" | b"docker" => is_any(rest, &["use-context", "use"]),
        b"terraform" | b"tofu" => {
            rest.first() == Some(&"workspace") && is_any(rest, &["select", "new"])
        }
        b"nvm" | b"fnm" | b"rbenv" | b"pyenv" | b"asdf" => {
            is_any(rest, &["use", "local", "global", "shell"])
        }
        b"conda" | b"micromamba" => is_any(rest, &["activate"]),
        b"gcloud" | b"az" => is_any(rest, &["set", "activate"]),
        b"rustup" => is_any(rest, &["default", "override"]),
        b"sdk" | b"volta" | b"mise" => is_any(rest, &["use", "install", "pin"]),
        b"jj" => is_any(rest, &["edit", "new"]),
        b"kubens" | b"kubectx" | b"kubie" => !rest.is_empty(),
        _ => false,
    }
}

fn is_any(rest: &[&str], words: &[&str]) -> bool {
    rest.iter().any(|word| words.contains(word))
}

/// Whether a program in a command line writes files: the text of `python - <<EOF` or
/// `node -e`.
pub fn script_writes(script: &str) -> bool {
    #[rustfmt::skip]
    const WRITES: &[&str] = &[
        ".write(", "write_text(", "write_bytes(", "writelines(", "writeFile", ", 'w'", ", \"w\"",
        ",'w'", ",\"w\"", ", 'a'", ", \"a\"", ".dump(", "File.write", "to_csv(", ".save(",
        "shutil.", "os.rename", "os.remove", "unlink(",
    ];
    WRITES.iter().any(|call| script.contains(call))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(line: &str) -> CommandEffect {
        let words: Vec<_> = line.split(' ').collect();
        match words.split_first() {
            Some((&"git", rest)) => git_effect(rest),
            Some((name, rest)) => command_effect(name.as_bytes(), rest),
            None => CommandEffect::default(),
        }
    }

    #[test]
    fn commands_that_change_something_are_known() {
        for line in [
            "prettier --write src",
            "eslint --fix .",
            "yq -i .a=1 f.yml",
            "npm install left-pad",
            "pip install -e .",
            "python -m pip install x",
            "cargo add serde",
            "go generate ./...",
            "buf generate",
            "perl -pi -e s/a/b/ f",
            "black src",
            "kubectl apply -f x.yml",
            "git commit -m x",
            "git checkout -- src/a.rs",
            "npx prisma migrate dev",
            "isort .",
            "npm run gen:api",
            "yarn lint:fix",
            "make fmt",
            "ruff format src",
            "python scripts/generate_docs.py",
            "alembic upgrade head",
            "aws s3api put-bucket-policy --bucket b",
            "gh pr comment 3 --body x",
            "curl -X PUT localhost",
            "Set-Content -Path a -Value b",
        ] {
            assert_eq!(effect(line), CHANGES, "{line}");
        }
    }

    #[test]
    fn commands_that_move_the_world_are_known() {
        for line in [
            "git bisect bad",
            "git checkout main",
            "git switch -c x",
            "git stash",
            "git stash pop",
            "kubectl config use-context prod",
            "terraform workspace select dev",
            "git reset --hard HEAD~1",
        ] {
            assert_eq!(effect(line), MOVES, "{line}");
        }
    }

    #[test]
    fn other_commands_change_nothing() {
        for line in [
            "git status",
            "git log -3",
            "git diff",
            "pytest -q",
            "npm test",
            "cargo test",
            "black --check src",
            "kubectl get pods",
            "docker ps",
            "git stash list",
            "perl a.pl",
            "gofmt -l .",
            "terraform plan",
            "terraform fmt --check",
            "pytest tests/format_test.py",
            "npm run format:check",
            "gh pr list",
            "aws s3 ls",
            "Get-Content a",
            "Set-Location b",
            "curl localhost",
        ] {
            assert_eq!(effect(line), CommandEffect::default(), "{line}");
        }
    }

    #[test]
    fn a_program_that_opens_a_file_for_writing_writes() {
        assert!(script_writes("open('a', 'w').write(x)"));
        assert!(script_writes("Path('a').write_text(s)"));
        assert!(!script_writes("print(open('a').read())"));
    }
}
