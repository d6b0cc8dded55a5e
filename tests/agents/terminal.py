"""A terminal that a test types into and reads, and a picture of what it has shown."""

import codecs
import fcntl
import html
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

import pyte

COLUMNS, LINES = 96, 30
# A pause that a viewer need not sit through is shortened to this.
PAUSE_SECS_MAX = 1.6
# Changes that are closer than this are one frame.
FRAME_SECS_MIN = 0.12
LAST_FRAME_SECS = 6


class Terminal:
    def __init__(self, command, cwd, env, **options):
        self.screen = pyte.Screen(COLUMNS, LINES)
        self.stream = pyte.Stream(self.screen)
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.frames = []
        self.controller, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))

        def become_foreground():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        if "user" in options:
            os.fchown(terminal, options["user"], -1)
        self.process = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=terminal, stdout=terminal, stderr=terminal,
            preexec_fn=become_foreground, **options,
        )
        os.close(terminal)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self.controller)

    def type(self, text):
        os.write(self.controller, text.encode())

    def type_slowly(self, text):
        """As a person does, so that the recording shows it."""
        for letter in text:
            self.type(letter)
            self.read(0.03)

    def read(self, seconds):
        """Shows what the program writes within this time. False: it has ended."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([self.controller], [], [], left)[0]:
                break
            try:
                data = os.read(self.controller, 65536)
            except OSError:
                return False
            if not data:
                return False
            self.answer(data)
            self.stream.feed(self.decoder.decode(data))
            self.snapshot()
        return True

    def answer(self, data):
        """Programs ask a terminal what it is and wait for its answer."""
        for question, reply in {b"\x1b[c": b"\x1b[?62;22c", b"\x1b[0c": b"\x1b[?62;22c", b"\x1b[6n": b"\x1b[1;1R"}.items():
            if question in data:
                os.write(self.controller, reply)

    def text(self):
        return "\n".join(line.rstrip() for line in self.screen.display)

    def lines_shown(self):
        """Every line that was on the screen at some time."""
        lines = {}
        for _, rows in self.frames:
            for pieces in rows:
                line = ""
                for column, text, _ in pieces:
                    line = line.ljust(column) + text
                lines[line.rstrip()] = None
        return list(lines)

    def wait_for(self, text, seconds):
        deadline = time.monotonic() + seconds
        while text not in self.text():
            assert time.monotonic() < deadline and self.read(0.2), f"no {text!r} in the terminal:\n{self.text()}"

    def wait_for_quiet(self, quiet_secs, seconds):
        """Waits until the screen has not changed for a while."""
        deadline = time.monotonic() + seconds
        last, since = self.text(), time.monotonic()
        while time.monotonic() - since < quiet_secs:
            assert time.monotonic() < deadline, f"the terminal does not come to rest:\n{self.text()}"
            self.read(0.1)
            if self.text() != last:
                last, since = self.text(), time.monotonic()

    def snapshot(self):
        now = time.monotonic()
        rows = tuple(tuple(runs(self.screen.buffer[line])) for line in range(LINES))
        if self.frames and self.frames[-1][1] == rows:
            return
        if self.frames and now - self.frames[-1][0] < FRAME_SECS_MIN:
            self.frames[-1] = (self.frames[-1][0], rows)
        else:
            self.frames.append((now, rows))


def runs(row):
    """[(column, text, colour, is bold)]: pieces of a line that look the same."""
    pieces = []
    for column in range(COLUMNS):
        cell = row[column]
        foreground, background = cell.fg, cell.bg
        if cell.reverse:
            foreground, background = background, foreground
        look = (foreground, background, cell.bold)
        if pieces and pieces[-1][2] == look:
            pieces[-1][1] += cell.data
        else:
            pieces.append([column, cell.data, look])
    return [
        (column, text, look)
        for column, text, look in pieces
        if text.strip() or look[1] != "default"
    ]


NAMED = {
    "default": "#d7dae0", "black": "#3f4451", "red": "#e06c75", "green": "#98c379", "brown": "#e5c07b",
    "blue": "#61afef", "magenta": "#c678dd", "cyan": "#56b6c2", "white": "#d7dae0",
    "brightblack": "#7f848e", "brightred": "#e06c75", "brightgreen": "#98c379", "brightbrown": "#e5c07b",
    "brightblue": "#61afef", "brightmagenta": "#c678dd", "brightcyan": "#56b6c2", "brightwhite": "#ffffff",
}
BACKGROUND = "#1e2127"
CELL_WIDTH, CELL_HEIGHT, MARGIN, TITLE_HEIGHT = 8.4, 18, 14, 30


# Signs that many fonts lack, and some that they have.
SIGNS = str.maketrans({"⏵": "▸", "⎿": "└", "✻": "*", "✽": "*", "✶": "*", "✢": "*", "⏺": "●"})


def colour(name):
    return NAMED.get(name, f"#{name}")


def picture(frames, title):
    """An SVG that plays the frames in a loop, without script."""
    seconds, starts = 0.0, []
    for number, (at, _) in enumerate(frames):
        starts.append(seconds)
        following = frames[number + 1][0] if number + 1 < len(frames) else at + LAST_FRAME_SECS
        pause = following - at
        seconds += pause if number + 1 == len(frames) else min(pause, PAUSE_SECS_MAX)
    # A line that stays is drawn once, for as long as it stays.
    drawn = []
    for line in range(LINES):
        begin = 0
        for number in range(1, len(frames) + 1):
            if number == len(frames) or frames[number][1][line] != frames[begin][1][line]:
                if frames[begin][1][line]:
                    end = seconds if number == len(frames) else starts[number]
                    drawn.append((line, starts[begin], end, frames[begin][1][line]))
                begin = number
    width = COLUMNS * CELL_WIDTH + 2 * MARGIN
    height = LINES * CELL_HEIGHT + 2 * MARGIN + TITLE_HEIGHT
    times = {}
    for _, begin, end, _ in drawn:
        times.setdefault((begin, end), f"t{len(times)}")
    style = [
        f"text{{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre;fill:{colour('default')}}}",
        ".b{font-weight:bold}",
    ]
    for (begin, end), name in times.items():
        if begin == 0 and end == seconds:
            continue
        one, two = 100 * begin / seconds, 100 * end / seconds
        steps = [] if begin == 0 else ["0%{visibility:hidden}"]
        steps.append(f"{one:.3f}%{{visibility:visible}}")
        if end < seconds:
            steps.append(f"{two:.3f}%,to{{visibility:hidden}}")
        style.append(f".{name}{{visibility:hidden;animation:{name} {seconds:.2f}s step-end infinite}}@keyframes {name}{{{''.join(steps)}}}")
    body = []
    for line, begin, end, pieces in drawn:
        y = TITLE_HEIGHT + MARGIN + line * CELL_HEIGHT
        group = []
        for column, text, (foreground, background, bold) in pieces:
            x = MARGIN + column * CELL_WIDTH
            if background != "default":
                group.append(f'<rect x="{x:.1f}" y="{y}" width="{len(text) * CELL_WIDTH:.1f}" height="{CELL_HEIGHT}" fill="{colour(background)}"/>')
            if text.strip():
                # A line of the same length in every font.
                lead = len(text) - len(text.lstrip())
                text = text.strip()
                fill = "" if foreground == "default" else f' fill="{colour(foreground)}" style="fill:{colour(foreground)}"'
                weight = ' class="b"' if bold else ""
                group.append(
                    f'<text x="{x + lead * CELL_WIDTH:.1f}" y="{y + 13}" textLength="{len(text) * CELL_WIDTH:.1f}"{fill}{weight}>{html.escape(text.translate(SIGNS))}</text>'
                )
        name = times[begin, end]
        shown = "" if begin == 0 and end == seconds else f' class="{name}"'
        body.append(f"<g{shown}>{''.join(group)}</g>")
    dots = "".join(f'<circle cx="{MARGIN + 6 + 18 * number}" cy="17" r="5.5" fill="#3f4451"/>' for number in range(3))
    newline = "\n"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" role="img" aria-label="{html.escape(title)}">
<style>
{newline.join(style)}
</style>
<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>{dots}
{newline.join(body)}
</svg>
"""
