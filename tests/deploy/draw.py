"""Draws the dashboards' panels from the answers to their own queries, by hand:

    pip install matplotlib && python tests/deploy/draw.py docs

Some minutes of load with an incident in the middle; the queries, titles, units
and colours are those of the dashboards' files, the drawing is matplotlib's.
"""

import sys
import tempfile
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from conftest import dashboards
from live import running
from PIL import Image

# Phases: the duration, and the share of new sessions that loop.
PHASES = [(60, 0.08), (80, 0.55), (60, 0.08)]
STEP_SECS = 2
PAPER, PANEL, INK, FAINT = "#111217", "#181b1f", "#d8d9da", "#8e9196"
PALETTE = [
    "#73bf69",
    "#f2cc0c",
    "#8ab8ff",
    "#ff780a",
    "#f2495c",
    "#5794f2",
    "#b877d9",
    "#37872d",
    "#fade2a",
    "#56a64b",
    "#c4162a",
    "#1f60c4",
]
COLOURS = {
    "blue": "#5794f2",
    "light-blue": "#8ab8ff",
    "green": "#73bf69",
    "yellow": "#fade2a",
    "orange": "#ff9830",
    "dark-orange": "#fa6400",
    "red": "#f2495c",
    "dark-red": "#c4162a",
    "purple": "#b877d9",
    "light-purple": "#ca95e5",
}


def human(value, unit):
    if unit == "currencyUSD":
        return f"${value:,.2f}"
    if unit == "percentunit":
        return f"{100 * value:.3g}%"
    if unit == "s":
        for size, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if value >= size:
                return f"{value / size:.3g} {name}"
        return f"{value:.1g} s"
    ending = {"bytes": "B", "Bps": "B/s"}.get(unit, "")
    for size, name in ((1e6, "M"), (1e3, "K")):
        if value >= size:
            return f"{value / size:.3g}{name}{ending}"
    return f"{value:.3g}{ending}"


def value_text(panel, name, value, unit):
    """The text of a value in a panel: its mapped text, the name of the series, or the number."""
    if panel["options"].get("textMode") == "value_and_name":
        return name
    for mapping in panel["fieldConfig"]["defaults"].get("mappings", []):
        if word := mapping["options"].get(f"{value:g}"):
            return word["text"]
    return human(value, unit)


def threshold_colour(panel, value):
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    return COLOURS[[step["color"] for step in steps if step["value"] is None or value >= step["value"]][-1]]


def name_of(target, labels):
    name = target.get("legendFormat", "value")
    for key, value in labels.items():
        name = name.replace(f"{{{{{key}}}}}", value)
    return name


def answers(prometheus, panel, start, end):
    """Name and points of each series."""
    found = []
    for target in panel["targets"]:
        for series in prometheus.query_range(target["expr"], start, end, STEP_SECS):
            points = {float(at): float(value) for at, value in series["values"]}
            found.append((name_of(target, series["metric"]), {at: v for at, v in points.items() if v == v}))
    return [(name, points) for name, points in found if points]


def draw_stat(axes, panel, found, unit):
    (name, points), *_ = found
    value = list(points.values())[-1]
    colour = threshold_colour(panel, value)
    if panel["fieldConfig"]["defaults"].get("decimals") == 0:
        value = round(value)
    axes.fill_between(list(points), list(points.values()), color=colour, alpha=0.18, lw=0)
    axes.plot(list(points), list(points.values()), color=colour, lw=0.8)
    axes.set_ylim(0, max(max(points.values()), 1e-9) * 2.6)
    axes.text(
        0.5,
        0.62,
        value_text(panel, name, value, unit),
        transform=axes.transAxes,
        ha="center",
        va="center",
        color=colour,
        fontsize=21,
        fontweight="bold",
    )
    axes.axis("off")


def draw_gauge(axes, panel, found, unit):
    value = list(found[0][1].values())[-1]
    colour = threshold_colour(panel, value)
    axes.barh([0], [1], color="#2c3235", height=0.35)
    axes.barh([0], [value], color=colour, height=0.35)
    axes.set(xlim=(0, 1), ylim=(-1, 1.4))
    axes.text(
        0.5,
        0.72,
        human(value, unit),
        transform=axes.transAxes,
        ha="center",
        va="center",
        color=colour,
        fontsize=20,
        fontweight="bold",
    )
    axes.axis("off")


def draw_bars(axes, panel, found, unit):
    rows = sorted(((list(points.values())[-1], name) for name, points in found))[-10:]
    top = rows[-1][0]
    for place, (value, name) in enumerate(rows):
        axes.barh(place, top, color="#22252b", height=0.7)
        axes.barh(place, value, color=plt.get_cmap("RdYlBu_r")(0.1 + 0.8 * value / top), height=0.7)
        axes.text(-0.01 * top, place, name, ha="right", va="center", color=INK, fontsize=8)
        axes.text(1.01 * top, place, human(value, unit), ha="left", va="center", color=INK, fontsize=8)
    axes.set_xlim(-0.32 * top, 1.12 * top)
    axes.axis("off")


def draw_series(axes, panel, found, unit, start, end):
    overrides = {
        o["matcher"]["options"]: COLOURS[o["properties"][0]["value"]["fixedColor"]]
        for o in panel["fieldConfig"]["overrides"]
    }
    custom = panel["fieldConfig"]["defaults"]["custom"]
    found.sort(key=lambda series: -max(series[1].values()))
    times = [start + n * STEP_SECS for n in range(int((end - start) / STEP_SECS) + 1)]
    base = [0.0] * len(times)
    stacked = custom["stacking"]["mode"] == "normal"
    for place, (name, points) in enumerate(found):
        colour = overrides.get(name, PALETTE[place % len(PALETTE)])
        values = [points.get(at, 0.0 if stacked else float("nan")) for at in times]
        label = f"{name}  {human(list(points.values())[-1], unit)}"
        if stacked:
            top = [low + value for low, value in zip(base, values)]
            axes.fill_between(
                times,
                base,
                top,
                color=colour,
                alpha=0.8 if custom["drawStyle"] == "bars" else 0.45,
                lw=0,
                label=label,
                step="mid" if custom["drawStyle"] == "bars" else None,
            )
            base = top
        else:
            axes.plot(times, values, color=colour, lw=1.3, label=label)
    drawn = [value for _, points in found for value in points.values() if value > 0]
    # Within one power of ten a logarithmic axis would have no label.
    if custom.get("scaleDistribution") and max(drawn) > 10 * min(drawn):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlim(start, end)
    axes.set_xticks(
        [start + n * 60 for n in range(int((end - start) // 60) + 1)],
        [f"{n} min" for n in range(int((end - start) // 60) + 1)],
    )
    axes.yaxis.set_major_formatter(lambda value, _: human(value, unit) if value else "0")
    axes.yaxis.set_minor_formatter(lambda *_: "")
    axes.tick_params(colors=FAINT, labelsize=7, length=0)
    axes.grid(color="#2c3235", lw=0.5)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(1.0, 1.04),
        fontsize=7,
        frameon=False,
        labelcolor=INK,
        handlelength=0.8,
        labelspacing=0.35,
    )


UNIT_PIXELS = (1680 / 24, 34)


def draw(prometheus, dashboard, start, end, path):
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    width, height = 24 * UNIT_PIXELS[0], (rows + 3) * UNIT_PIXELS[1]
    figure = plt.figure(figsize=(width / 100, height / 100), dpi=100, facecolor=PAPER)
    figure.text(
        0.008,
        1 - 1.0 * UNIT_PIXELS[1] / height,
        dashboard["title"],
        color=INK,
        fontsize=15,
        fontweight="bold",
        va="center",
    )
    caption = "Drawn from the answers of Prometheus to the panels' queries during a test load; it is not a screenshot of Grafana."
    figure.text(0.008, 0.5 * UNIT_PIXELS[1] / height, caption, color=FAINT, fontsize=9, va="center")
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        left, top = at["x"] / 24, 1 - (at["y"] + 2) * UNIT_PIXELS[1] / height
        if panel["type"] == "row":
            figure.text(
                left + 0.008,
                top - 0.5 * UNIT_PIXELS[1] / height,
                f"⌄ {panel['title']}",
                color=INK,
                fontsize=10,
                va="center",
            )
            continue
        w, h = at["w"] / 24, at["h"] * UNIT_PIXELS[1] / height
        frame = figure.add_axes([left + 0.003, top - h + 0.002, w - 0.006, h - 0.004], facecolor=PANEL)
        frame.set(xticks=[], yticks=[])
        for side in frame.spines.values():
            side.set_color("#2c3235")
        figure.text(
            left + 0.01, top - 0.62 * UNIT_PIXELS[1] / height, panel["title"], color=INK, fontsize=9, va="center"
        )
        unit = panel["fieldConfig"]["defaults"]["unit"]
        found = answers(prometheus, panel, start, end)
        line = UNIT_PIXELS[1] / height
        if panel["type"] == "timeseries":
            inner = figure.add_axes(
                [left + 0.04, top - h + 0.95 * line, w - 0.04 - 0.12, h - 2.2 * line], facecolor=PANEL
            )
            draw_series(inner, panel, found, unit, start, end)
        else:
            inner = figure.add_axes([left + 0.012, top - h + 0.3 * line, w - 0.024, h - 1.5 * line], facecolor=PANEL)
            {"stat": draw_stat, "gauge": draw_gauge, "bargauge": draw_bars}[panel["type"]](inner, panel, found, unit)
    figure.savefig(path, facecolor=PAPER)
    # A palette takes a quarter of the bytes.
    Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def main(folder):
    with tempfile.TemporaryDirectory() as directory, running(Path(directory), agents=120, pause_secs=0.5) as prometheus:
        start = int(time.time())
        for secs, share in PHASES:
            prometheus.fleet.stuck_share = share
            time.sleep(secs)
        end = int(time.time())
        for name, dashboard in dashboards().items():
            draw(prometheus, dashboard, start, end, folder / f"dashboard-{name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
