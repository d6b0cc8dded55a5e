"""Every deployed or documented query returns data from a real Prometheus."""

import re
import subprocess
import urllib.request

import pytest
from conftest import DEPLOY, dashboards, documented_queries, panels, rules

EXPRESSIONS = {
    f"{name}: {panel['title']} {target['refId']}": target["expr"]
    for name, dashboard in dashboards().items()
    for panel in panels(dashboard)
    for target in panel.get("targets", [])
}
RECORDED = {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}
ALERTS = {rule["alert"]: rule["expr"] for rule in rules() if "alert" in rule}
QUERIES = documented_queries()
VARIABLES = [
    variable["query"]["query"]
    for dashboard in dashboards().values()
    for variable in dashboard["templating"]["list"]
    if variable["type"] == "query"
]


def metrics(live):
    with urllib.request.urlopen(live.metrics) as response:
        return response.read().decode()


def exported(live):
    names = re.findall(r"^(unstuck_\w+)", metrics(live), re.MULTILINE)
    assert names
    return set(names)


def test_the_exposition_passes_promtool(live):
    checked = subprocess.run(["promtool", "check", "metrics"], input=metrics(live), capture_output=True, text=True)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_names_in_deploy_are_exported(live):
    known = exported(live)
    files = [path for path in DEPLOY.rglob("*") if path.is_file()]
    texts = {path: path.read_text() for path in files}
    # Not a part of a recording rule's name.
    used = {
        (name, path.name)
        for path, text in texts.items()
        for name in re.findall(r"(?<![\w:])unstuck_\w+(?![\w:])", text)
    }
    assert len({name for name, _ in used}) > 15
    assert sorted(use for use in used if use[0] not in known) == []


def test_every_metric_is_on_a_dashboard(live):
    shown = " ".join(EXPRESSIONS.values())
    families = set(re.findall(r"^# TYPE (unstuck_\w+)", metrics(live), re.MULTILINE))
    assert sorted(name for name in families if name not in shown) == []


def test_recorded_names_in_deploy_are_recorded():
    texts = [path.read_text() for path in DEPLOY.rglob("*") if path.is_file()]
    used = {name for text in texts for name in re.findall(r"\b[a-z_]+:unstuck_\w+:\w+", text)}
    assert used == set(RECORDED)


@pytest.mark.parametrize("panel", EXPRESSIONS)
def test_a_panel_shows_data(live, panel):
    assert live.query(EXPRESSIONS[panel]), EXPRESSIONS[panel]


@pytest.mark.parametrize("name", RECORDED)
def test_a_rule_records_data(live, name):
    assert live.query(name) and live.query(RECORDED[name])


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_can_be_evaluated_and_does_not_fire(live, name):
    """Its comparisons return 0 or 1, which shows that their series exist."""
    expression = ALERTS[name]
    if absent := re.fullmatch(r"absent\((.*)\)", expression):
        assert live.query(absent[1]) and not live.query(expression)
        return
    judged = re.sub(r"([<>]=?|==|!=)(?=\s)", r"\1 bool", expression)
    assert judged != expression and live.query(judged), judged


@pytest.mark.parametrize("query", QUERIES)
def test_a_documented_query_returns_data(live, query):
    assert live.query(query)


@pytest.mark.parametrize("query", sorted(set(VARIABLES)))
def test_a_variable_has_values(live, query):
    selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", query).groups()
    assert live.query(f"count by ({label}) ({selector})")


def test_the_rules_of_prometheus_are_loaded(live):
    groups = live.ask("rules")["groups"]
    loaded = [rule for group in groups for rule in group["rules"]]
    assert {rule["name"] for rule in loaded} == set(RECORDED) | set(ALERTS)
    assert {rule["health"] for rule in loaded} == {"ok"}
