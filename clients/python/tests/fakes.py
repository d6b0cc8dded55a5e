"""The model server of tests/agents, which is on loopback and speaks the formats of four providers."""

import os
import sys

from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests/agents"))
from fake_models import FakeModels  # noqa: E402

__all__ = ["FakeModels", "environment"]


def environment(models, service=None):
    """The variables with which any program asks this server instead of a provider."""
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "LANG", "PYTHONPATH", "TMPDIR")}
    return kept | {
        "OPENAI_BASE_URL": f"{models.url}/v1", "OPENAI_API_KEY": "none",
        "ANTHROPIC_BASE_URL": models.url, "ANTHROPIC_API_KEY": "none", "ANTHROPIC_MODEL": "claude-sonnet-4-5",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", "IS_SANDBOX": "1",
        "CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_DISABLE_TRACKING": "true", "OTEL_SDK_DISABLED": "true",
        "OPENAI_AGENTS_DISABLE_TRACING": "1", "PYTHONDONTWRITEBYTECODE": "1",
    } | ({"UNSTUCK_SERVER": service.target} if service else {})
