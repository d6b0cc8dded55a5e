"""How each agent program is run without a person: command line, settings, environment.

Every program gets an empty home directory, talks to the model on loopback, may call every
tool without asking, and has its updates, its telemetry and its own loop detection off.
"""

import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from fake_models import MODEL

PACKAGES = Path(__file__).resolve().parent / "node_modules"
CPU = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


@dataclass
class Program:
    """One agent program. `agent` is the name that `unstuck init --agent` knows."""

    agent: str
    # The executable in node_modules. Packages are installed without their scripts, so
    # where a script would put the program into place, it is the one of the platform's package.
    file: str
    # What the person types; it is the name that Unstuck looks for.
    command: str
    # The plays that make it loop.
    read_loop: str = "read-loop"
    fail_loop: str = "fail-loop"
    # False: a hook can end the run, but not refuse one call.
    can_refuse: bool = True
    # How many calls later a read loop is found. Qwen Code answers each read but the first
    # with a note that the file has not changed, so the first result is another one.
    late_reads: int = 0
    # How Unstuck classes the call by which it edits a file.
    edits_by: str = "EDIT"

    def arguments(self, prompt):
        raise NotImplementedError

    def environment(self, model):
        return {}

    def settings(self, model):
        """{path under the home directory: content}"""
        return {}

    def resume(self, session, prompt):
        raise NotImplementedError


class ClaudeCode(Program):
    def arguments(self, prompt):
        return ["-p", prompt, "--dangerously-skip-permissions", "--output-format", "json"]

    def environment(self, model):
        return {
            "ANTHROPIC_BASE_URL": model,
            "ANTHROPIC_API_KEY": "none",
            "ANTHROPIC_MODEL": "claude-sonnet-4-5",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }

    def resume(self, session, prompt):
        return ["--resume", session, *self.arguments(prompt)]


class Codex(Program):
    def arguments(self, prompt):
        return [
            "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
            "--dangerously-bypass-hook-trust", prompt,
        ]

    def environment(self, model):
        return {"FAKE_KEY": "none"}

    def settings(self, model):
        return {
            ".codex/config.toml": f'''
model = "gpt-5.1-codex"
model_provider = "fake"
check_for_update_on_startup = false
[model_providers.fake]
name = "fake"
base_url = "{model}/v1"
wire_api = "responses"
env_key = "FAKE_KEY"
[analytics]
enabled = false
'''
        }

    def resume(self, session, prompt):
        first, *rest = self.arguments(prompt)
        return [first, "resume", *rest[:-1], session, prompt]


class Gemini(Program):
    def arguments(self, prompt):
        return ["--prompt", prompt, "--yolo", "--skip-trust"]

    def environment(self, model):
        return {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": model, "GEMINI_MODEL": "gemini-2.5-pro"}

    def settings(self, model):
        return {
            ".gemini/settings.json": json.dumps({
                "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
                "model": {"disableLoopDetection": True},
                "privacy": {"usageStatisticsEnabled": False},
                "security": {"auth": {"selectedType": "gemini-api-key"}},
                "telemetry": {"enabled": False},
            }, indent=2)
        }

    def resume(self, session, prompt):
        return ["--resume", session, *self.arguments(prompt)]


class Qwen(Program):
    def arguments(self, prompt):
        return ["--prompt", prompt, "--yolo", "--auth-type", "openai"]

    def environment(self, model):
        return {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{model}/v1", "OPENAI_MODEL": MODEL}

    def settings(self, model):
        return {
            ".qwen/settings.json": json.dumps({
                "general": {"enableAutoUpdate": False},
                "model": {"skipLoopDetection": True},
                "privacy": {"usageStatisticsEnabled": False},
                "telemetry": {"enabled": False},
            }, indent=2)
        }

    def resume(self, session, prompt):
        return ["--resume", session, *self.arguments(prompt)]


class Copilot(Program):
    def arguments(self, prompt):
        return ["-p", prompt, "--allow-all-tools", "--allow-all-paths", "--no-auto-update"]

    def environment(self, model):
        return {
            "COPILOT_MODEL": MODEL,
            "COPILOT_OFFLINE": "true",
            "COPILOT_PROVIDER_API_KEY": "none",
            "COPILOT_PROVIDER_BASE_URL": f"{model}/v1",
        }

    def resume(self, session, prompt):
        return [f"--resume={session}", *self.arguments(prompt)]


class Cline(Program):
    def arguments(self, prompt):
        return ["--json", prompt]

    def environment(self, model):
        # Without a backend of its own, a run leaves a process behind that later runs use.
        return {"CLINE_NO_AUTO_UPDATE": "1", "CLINE_SESSION_BACKEND_MODE": "local"}

    def settings(self, model):
        provider = {"provider": "openai-compatible", "apiKey": "none", "model": MODEL, "baseUrl": f"{model}/v1"}
        return {
            ".cline/data/settings/providers.json": json.dumps({
                "version": 1,
                "lastUsedProvider": "openai-compatible",
                "modes": {},
                "providers": {
                    "openai-compatible": {
                        "settings": provider,
                        "updatedAt": "2026-01-01T00:00:00.000Z",
                        "tokenSource": "manual",
                    }
                },
            }, indent=2)
        }

    # `--id` opens the terminal's interface and takes no prompt: see test_terminal.py.


class OpenCode(Program):
    def arguments(self, prompt):
        return ["run", "--model", f"fake/{MODEL}", prompt]

    def environment(self, model):
        return {
            # A program with plug-ins first installs a package for them and waits for it.
            "npm_config_offline": "true",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
        }

    def settings(self, model):
        return {
            ".config/opencode/opencode.json": json.dumps({
                "autoupdate": False,
                "share": "disabled",
                "permission": "allow",
                "provider": {
                    "fake": {
                        "npm": "@ai-sdk/openai-compatible",
                        "options": {"baseURL": f"{model}/v1", "apiKey": "none"},
                        "models": {MODEL: {"name": MODEL, "tool_call": True}},
                    }
                },
            }, indent=2)
        }

    def resume(self, session, prompt):
        first, *rest = self.arguments(prompt)
        return [first, "--session", session, *rest]


class Pi(Program):
    def arguments(self, prompt):
        return ["--print", "--provider", "fake", "--model", MODEL, prompt]

    def environment(self, model):
        return {"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1", "PI_TELEMETRY": "0"}

    def settings(self, model):
        return {
            ".pi/agent/models.json": json.dumps({
                "providers": {
                    "fake": {
                        "baseUrl": f"{model}/v1",
                        "api": "openai-completions",
                        "apiKey": "none",
                        "models": [{"id": MODEL}],
                    }
                }
            }, indent=2)
        }

    def resume(self, session, prompt):
        return ["--session", session, *self.arguments(prompt)]


PROGRAMS = [
    ClaudeCode("claude-code", f"@anthropic-ai/claude-code-linux-{CPU}/claude", "claude"),
    Codex("codex", "@openai/codex/bin/codex.js", "codex"),
    Gemini("gemini", "@google/gemini-cli/bundle/gemini.js", "gemini"),
    Qwen("qwen", "@qwen-code/qwen-code/cli-entry.js", "qwen", late_reads=1, read_loop="read-loop-with-others", fail_loop="fail-loop-with-others"),
    Copilot("copilot", "@github/copilot/npm-loader.js", "copilot"),
    Cline("cline", f"@cline/cli-linux-{CPU}/bin/cline", "cline", read_loop="read-loop-with-others", fail_loop="fail-loop-with-others", can_refuse=False),
    OpenCode("opencode", f"opencode-linux-{CPU}/bin/opencode", "opencode"),
    Pi("pi", "@mariozechner/pi-coding-agent/dist/cli.js", "pi"),
]
